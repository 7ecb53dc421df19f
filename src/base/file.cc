#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"

namespace kinora {
namespace {

[[noreturn]] void fail_on(const std::string& path, const char* doing, int code) {
  const bool absent = code == ENOENT || code == ENOTDIR;
  const bool full = code == ENOSPC || code == EDQUOT || code == ENOMEM || code == EMFILE;
  throw Error(absent ? ErrorKind::not_found : (full ? ErrorKind::resource : ErrorKind::bad_input),
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

int64_t regular_size(const Descriptor& file, const std::string& path) {
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) fail_on(path, "inspect", errno);
  if (S_ISDIR(info.st_mode)) fail_on(path, "read", EISDIR);
  return info.st_size;
}

class RealMapping final : public MappedFile {
 public:
  RealMapping(void* data, size_t size) : data_(data), size_(size) {}
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
    const Descriptor file(path, O_RDONLY);
    if (file.get() < 0) fail_on(path, "open", errno);
    const auto size = static_cast<size_t>(regular_size(file, path));
    if (size == 0) return std::make_shared<RealMapping>(nullptr, 0);
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
    if (data == MAP_FAILED) fail_on(path, "map", errno);
    return std::make_shared<RealMapping>(data, size);
  }

  std::string read(const std::string& path, int64_t limit) const override {
    const Descriptor file(path, O_RDONLY);
    if (file.get() < 0) fail_on(path, "open", errno);
    if (regular_size(file, path) > limit) refuse(path, limit);
    std::string content;
    char piece[1 << 16];
    for (;;) {
      const ssize_t got = ::read(file.get(), piece, sizeof(piece));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail_on(path, "read", errno);
      if (got == 0) return content;
      content.append(piece, static_cast<size_t>(got));
      if (static_cast<int64_t>(content.size()) > limit) refuse(path, limit);
    }
  }

  void write(const std::string& path, std::string_view content) override {
    // A device or a pipe has no content to keep and must not be replaced.
    struct ::stat known {};
    const bool special = ::stat(path.c_str(), &known) == 0 && !S_ISREG(known.st_mode);
    const std::string beside = special ? path : path + ".part-" + std::to_string(::getpid());
    Descriptor file(beside, O_WRONLY | (special ? 0 : O_CREAT | O_TRUNC), 0644);
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
