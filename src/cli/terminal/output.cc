#include "cli/terminal/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/one_line.h"

namespace kinora::cli {
namespace {

std::atomic<bool> remarks_lost = false;

std::string lost_output(int code) {
  return fmt::format("cannot write to standard output: {}", std::strerror(code));
}

}  // namespace

void guard_standard_descriptors() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    // Whoever closes standard error wants no remarks. Results have no other way out: on a
    // descriptor that cannot be written, printing them fails as it did on the closed one.
    const int mode = descriptor == STDERR_FILENO ? O_WRONLY : O_RDONLY;
    const int opened = ::open("/dev/null", mode);  // takes the lowest free number, which is this
    if (opened >= 0 && opened != descriptor) ::close(opened);
  }
}

void show(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw Error(ErrorKind::resource, lost_output(errno));
  }
}

void remark(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stderr) != text.size()) remarks_lost = true;
}

void complain(std::string_view message) { remark("kinora: {}\n", one_line(message)); }

std::string json_text(const nlohmann::json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

int finish_output(int code) {
  errno = 0;
  // A write that failed before leaves its mark on the stream.
  const bool lost = std::ferror(stdout) != 0 || std::fflush(stdout) != 0;
  if (lost && code == 0) complain(lost_output(errno == 0 ? EIO : errno));
  const bool failed = lost || remarks_lost;
  return code == 0 && failed ? exit_code(ErrorKind::resource) : code;
}

}  // namespace kinora::cli
