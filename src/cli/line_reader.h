// Lines that a person types: with editing and a history on a terminal (libedit), plainly from a
// pipe.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace kinora::cli {

class LineReader {
 public:
  // The history is kept in this file between runs; empty, or a place that cannot be written: only
  // while this object lives.
  LineReader(std::string prompt, const std::string& history_file);
  ~LineReader();

  // One line without its end; nothing at the end of the input. An interrupted line comes back as
  // empty.
  std::optional<std::string> next();
  bool on_terminal() const;

 private:
  struct Editor;
  std::unique_ptr<Editor> editor_;  // null in a pipe
};

// Where questions are remembered: under $XDG_STATE_HOME, else ~/.local/state; empty without either.
std::string history_place();

}  // namespace kinora::cli
