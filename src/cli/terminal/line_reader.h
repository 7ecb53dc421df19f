// Lines that a person types: with editing, a history, completion and pasting of whole paragraphs on
// a terminal (libedit), plainly from a pipe.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kinora::cli {

// What may stand in place of the end of a line.
struct Completions {
  size_t from = 0;  // where that end begins
  std::vector<std::string> words;
};
// The longest text, in whole characters, that all of them begin with.
std::string common_beginning(const std::vector<std::string>& words);

class LineReader {
 public:
  // The history is kept in this file between runs; if the path is empty or cannot be written, only
  // while this object lives.
  // Tab asks `complete` about what stands before the cursor.
  using Complete = std::function<Completions(std::string_view typed)>;
  LineReader(std::string prompt, const std::string& history_file, Complete complete = nullptr);
  ~LineReader();

  // One line without its end, or lines that were pasted together; nothing at the end of the input.
  // On a terminal an interrupted line comes back as empty; in a pipe, where nobody can begin again,
  // it is the end.
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
