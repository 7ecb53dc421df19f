#include "cli/watch/ready_lines.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace kinora::cli {

std::optional<std::string> ReadyLines::next(int wait_milliseconds) {
  while (text_.find('\n') == std::string::npos && !ended_) {
    pollfd waiting{STDIN_FILENO, POLLIN, 0};
    if (::poll(&waiting, 1, wait_milliseconds) <= 0) return std::nullopt;
    std::array<char, 4096> piece;
    const ssize_t got = ::read(STDIN_FILENO, piece.data(), piece.size());
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return std::nullopt;
    if (got > 0) {
      text_.append(piece.data(), static_cast<size_t>(got));
    } else {
      ended_ = true;
    }
  }
  if (text_.empty()) return std::nullopt;
  const size_t end = text_.find('\n');
  std::string line = text_.substr(0, end);
  text_.erase(0, end == std::string::npos ? end : end + 1);
  while (!line.empty() && line.back() == '\r') line.pop_back();
  return line;
}

}  // namespace kinora::cli
