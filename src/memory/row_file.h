// The file in which old rows of one session wait: written once, page by page, each with a checksum
// that stays in memory, and gone with the session. Shared by the forks of a memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace kinora {

class RowFile {
 public:
  static constexpr int64_t page = int64_t{1} << 14;

  // In $TMPDIR, else /var/tmp, which is on a disk where /tmp may be memory. The file has no name.
  RowFile();
  ~RowFile();
  RowFile(const RowFile&) = delete;
  RowFile& operator=(const RowFile&) = delete;

  struct Page {
    int64_t offset = 0;
    uint64_t check = 0;
  };
  // Whole pages. Throws a resource error when the disk is full.
  std::vector<Page> write(std::span<const std::byte> bytes);
  // Pages [first, first + count) of a list. Those that lie together are read together, and the
  // system is told of all of them before the first is waited for.
  void read(std::span<const Page> pages, int64_t first, int64_t count, std::byte* out) const;

  int descriptor() const { return file_; }  // for tests that damage it
  int64_t bytes() const;

 private:
  int file_ = -1;
  mutable std::mutex mutex_;
  int64_t end_ = 0;
};

}  // namespace kinora
