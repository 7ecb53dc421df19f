// Lines of standard input as far as they have come, for a command that has other work to do
// meanwhile: `kinora watch`.
#pragma once

#include <optional>
#include <string>

namespace kinora::cli {

class ReadyLines {
 public:
  // A line without its end, if one has come. Waits at most this long for it.
  std::optional<std::string> next(int wait_milliseconds);
  // No more will come.
  bool ended() const { return ended_ && text_.empty(); }

 private:
  std::string text_;  // read and not yet handed out
  bool ended_ = false;
};

}  // namespace kinora::cli
