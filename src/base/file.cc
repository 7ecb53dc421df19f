#include "base/file.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/files/errno_kind.h"
#include "base/files/mapped_ranges.h"

namespace kinora {
namespace {

constexpr int silence_milliseconds = 10'000;
constexpr int look_milliseconds = 50;  // between looks at whether somebody cancels

[[noreturn]] void fail_on(const std::string& path, const char* doing, int code) {
  throw Error(kind_of_errno(code),
              std::string("cannot ") + doing + " " + path + ": " + std::strerror(code));
}

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags, mode_t mode = 0)
      : value_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }
  bool close() {
    const int value = std::exchange(value_, -1);
    return value < 0 || ::close(value) == 0;
  }

 private:
  int value_;
};

struct stat status_of(const Descriptor& file, const std::string& path) {
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) fail_on(path, "inspect", errno);
  if (S_ISDIR(info.st_mode)) fail_on(path, "read", EISDIR);
  return info;
}

// Opening a pipe without a writer must not wait for one; regular files do not care.
constexpr int reading = O_RDONLY | O_NONBLOCK | O_NOCTTY;

class RealMapping final : public MappedFile {
 public:
  RealMapping(void* data, size_t size, const std::string& path)
      : data_(data), size_(size), range_(data, size, path) {}
  ~RealMapping() override {
    if (size_ > 0) ::munmap(data_, size_);
  }
  RealMapping(const RealMapping&) = delete;
  RealMapping& operator=(const RealMapping&) = delete;
  std::span<const std::byte> bytes() const override {
    return {static_cast<const std::byte*>(data_), size_};
  }

 private:
  void* data_;
  size_t size_;
  MappedRange range_;
};

class RealFiles final : public FileSystem {
 public:
  bool is_file(const std::string& path) const override {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
  }

  bool is_directory(const std::string& path) const override {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  }

  std::vector<std::string> list(const std::string& path) const override {
    std::error_code status;
    std::vector<std::string> names;
    for (std::filesystem::directory_iterator it(path, status), end; !status && it != end;
         it.increment(status)) {
      names.push_back(it->path().filename().string());
    }
    if (status) fail_on(path, "list", status.value());
    std::sort(names.begin(), names.end());
    return names;
  }

  std::shared_ptr<MappedFile> map(const std::string& path) const override {
    const Descriptor file(path, reading);
    if (file.get() < 0) fail_on(path, "open", errno);
    const struct stat info = status_of(file, path);
    if (!S_ISREG(info.st_mode)) {
      throw Error(ErrorKind::bad_input, path + " is a pipe or device, not a file");
    }
    const auto size = static_cast<size_t>(info.st_size);
    if (size == 0) return std::make_shared<RealMapping>(nullptr, 0, path);
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
    if (data == MAP_FAILED) fail_on(path, "map", errno);
    return std::make_shared<RealMapping>(data, size, path);
  }

  std::string read(const std::string& path, int64_t limit) const override {
    return read_or_cancel(path, limit, {});
  }

  std::string read_or_cancel(const std::string& path, int64_t limit,
                             const CancelToken& cancel) const override {
    const Descriptor file(path, reading);
    if (file.get() < 0) fail_on(path, "open", errno);
    const struct stat info = status_of(file, path);
    if (info.st_size > limit) refuse(path, limit);
    const bool is_pipe = S_ISFIFO(info.st_mode);
    std::string content;
    char piece[1 << 16];
    int silent = 0;  // milliseconds
    for (;;) {
      cancel.check();
      const ssize_t got = ::read(file.get(), piece, sizeof(piece));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno != EAGAIN) fail_on(path, "read", errno);
      // Nothing yet: a pipe whose writer is slow, or that has none so far.
      if (got < 0 || (got == 0 && content.empty() && is_pipe)) {
        pollfd waiting{file.get(), POLLIN, 0};
        const int ready = ::poll(&waiting, 1, look_milliseconds);
        if (ready < 0 && errno == EINTR) continue;
        if (ready > 0 && got < 0) continue;
        if (ready > 0 && (waiting.revents & POLLIN) != 0) continue;
        if (ready > 0) return content;  // the writer went away
        if ((silent += look_milliseconds) < silence_milliseconds) continue;
        throw Error(ErrorKind::network, path + ": nothing came from it for " +
                                            std::to_string(silence_milliseconds / 1000) +
                                            " seconds");
      }
      if (got == 0) return content;
      silent = 0;
      content.append(piece, static_cast<size_t>(got));
      if (static_cast<int64_t>(content.size()) > limit) refuse(path, limit);
    }
  }

  void write(const std::string& path, std::string_view content) override {
    // A device or a pipe has no content to keep and must not be replaced.
    struct ::stat known {};
    const bool special = ::stat(path.c_str(), &known) == 0 && !S_ISREG(known.st_mode);
    static std::atomic<int> writes = 0;
    const std::string beside =
        special ? path
                : path + ".part-" + std::to_string(::getpid()) + "-" + std::to_string(++writes);
    if (!special) sweep_parts(path);
    // Exclusive: a link that somebody left in its place is never followed.
    Descriptor file(beside, O_WRONLY | (special ? 0 : O_CREAT | O_EXCL), 0644);
    if (file.get() < 0) fail_on(path, "write", errno);
    const auto abandon = [&](int code) {
      if (!special) ::unlink(beside.c_str());
      fail_on(path, "write", code);
    };
    while (!content.empty()) {
      const ssize_t done = ::write(file.get(), content.data(), content.size());
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) abandon(errno);
      content.remove_prefix(static_cast<size_t>(done));
    }
    if (::fsync(file.get()) != 0 && errno != EINVAL) abandon(errno);
    if (!file.close()) abandon(errno);
    if (!special && ::rename(beside.c_str(), path.c_str()) != 0) abandon(errno);
  }

 private:
  // Removes what runs that were killed left beside `path`: parts of processes that are gone.
  static void sweep_parts(const std::string& path) {
    namespace fs = std::filesystem;
    const std::string prefix = fs::path(path).filename().string() + ".part-";
    std::error_code ignored;
    const fs::path folder = fs::path(path).parent_path();
    for (fs::directory_iterator it(folder.empty() ? "." : folder, ignored), end;
         !ignored && it != end; it.increment(ignored)) {
      const std::string name = it->path().filename().string();
      if (!name.starts_with(prefix)) continue;
      pid_t process = 0;
      const char* end_of_name = name.data() + name.size();
      const auto [after, wrong] =
          std::from_chars(name.data() + prefix.size(), end_of_name, process);
      if (wrong != std::errc() || process <= 0 || after == end_of_name || *after != '-') continue;
      const bool gone = ::kill(process, 0) != 0 && errno == ESRCH;
      if (gone) fs::remove(it->path(), ignored);
    }
  }

  [[noreturn]] static void refuse(const std::string& path, int64_t limit) {
    throw Error(ErrorKind::resource,
                path + " is larger than the limit of " + std::to_string(limit) + " bytes");
  }
};

}  // namespace

FileSystem& real_files() {
  static RealFiles files;  // stateless
  return files;
}

std::string join_path(std::string_view directory, std::string_view name) {
  std::string path(directory);
  if (!path.empty() && path.back() != '/') path += '/';
  return path.append(name);
}

}  // namespace kinora
