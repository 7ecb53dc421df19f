#include "video/source/file_input.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/files/errno_kind.h"

namespace kinora {

namespace {

constexpr int buffer_bytes = 32 * 1024;

int open_regular(const std::string& path, const std::string& name) {
  // Without waiting: somebody may put a pipe in the place of a file.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (descriptor < 0) {
    throw Error(
        kind_of_errno(errno),
        fmt::format("{}: {}", name, errno == ENOENT ? "no such file" : std::strerror(errno)));
  }
  struct stat status {};
  if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode)) return descriptor;
  ::close(descriptor);
  throw Error(ErrorKind::bad_input,
              fmt::format("{}: {}, not a file", name,
                          S_ISDIR(status.st_mode) ? "a folder" : "a pipe or device"));
}

}  // namespace

FileInput::FileInput(const std::string& path, const std::string& name, const Watch& watch)
    : watch_(watch), descriptor_(open_regular(path, name)) {
  auto* buffer = static_cast<unsigned char*>(av_malloc(buffer_bytes));
  AVIOContext* context =
      buffer == nullptr ? nullptr
                        : avio_alloc_context(buffer, buffer_bytes, 0, this, &read, nullptr, &seek);
  if (context == nullptr) {
    av_free(buffer);
    ::close(descriptor_);
    throw Error(ErrorKind::resource, "not enough memory to read a file");
  }
  context_.reset(context);
}

FileInput::~FileInput() { ::close(descriptor_); }

std::vector<uint8_t> FileInput::head(size_t count) const {
  std::vector<uint8_t> bytes(count);
  const ssize_t got = ::pread(descriptor_, bytes.data(), count, 0);
  bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return bytes;
}

int FileInput::read(void* self, uint8_t* bytes, int size) {
  const auto& input = *static_cast<FileInput*>(self);
  while (!input.watch_.give_up()) {
    const ssize_t got = ::read(input.descriptor_, bytes, static_cast<size_t>(size));
    if (got > 0) return static_cast<int>(got);
    if (got == 0) return AVERROR_EOF;
    if (errno != EINTR) return AVERROR(errno);
  }
  return AVERROR_EXIT;
}

int64_t FileInput::seek(void* self, int64_t offset, int whence) {
  const int descriptor = static_cast<FileInput*>(self)->descriptor_;
  if (whence == AVSEEK_SIZE) {
    struct stat status {};
    return ::fstat(descriptor, &status) == 0 ? status.st_size : AVERROR(errno);
  }
  const int64_t place = ::lseek(descriptor, offset, whence & ~AVSEEK_FORCE);
  return place < 0 ? AVERROR(errno) : place;
}

}  // namespace kinora
