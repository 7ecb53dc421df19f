// Lines that a person types: with editing and a history on a terminal (libedit), plainly from a
// pipe.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace kinora::cli {

class LineReader {
 public:
  // The history is kept in this file between runs; if the path is empty or cannot be written, only
  // while this object lives.
  LineReader(std::string prompt, const std::string& history_file);
  ~LineReader();

  // One line without its end; nothing at the end of the input. On a terminal an interrupted line
  // comes back as empty; in a pipe, where nobody can begin again, it is the end.
  std::optional<std::string> next();
  bool on_terminal() const;
  bool interrupted() const { return interrupted_; }  // a signal caused the end

 private:
  struct Editor;
  std::optional<std::string> next_of_pipe();

  std::unique_ptr<Editor> editor_;  // null in a pipe
  std::string read_;                // of the pipe, not yet handed out
  bool interrupted_ = false;
};

// Where questions are remembered: under $XDG_STATE_HOME, else ~/.local/state; empty without either.
std::string history_place();

}  // namespace kinora::cli
