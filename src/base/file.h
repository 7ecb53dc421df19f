// Files behind a small interface, so that tests can inject faults: a file that vanishes, a short
// read, a full disk. real_files() is the operating system's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"

namespace kinora {

// A whole file, readable as memory for as long as the object lives.
class MappedFile {
 public:
  virtual ~MappedFile() = default;
  virtual std::span<const std::byte> bytes() const = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual bool is_file(const std::string& path) const = 0;
  virtual bool is_directory(const std::string& path) const = 0;
  // Names (not paths) in a directory, sorted.
  virtual std::vector<std::string> list(const std::string& path) const = 0;
  // Read-only and shared. An empty file gives an empty span.
  virtual std::shared_ptr<MappedFile> map(const std::string& path) const = 0;
  // The whole file; refuses more than `limit` bytes with a resource error.
  virtual std::string read(const std::string& path, int64_t limit = int64_t{1} << 30) const = 0;
  // The same where a person may stop waiting: a pipe can be silent.
  virtual std::string read_or_cancel(const std::string& path, int64_t limit,
                                     const CancelToken& cancel) const {
    cancel.check();
    return read(path, limit);
  }
  // Writes a temporary file next to the target and renames it, so that no reader ever sees half a
  // file and a failure leaves the old content in place.
  virtual void write(const std::string& path, std::string_view content) = 0;
};

FileSystem& real_files();

// Joins two parts with a slash unless one is already there.
std::string join_path(std::string_view directory, std::string_view name);

}  // namespace kinora
