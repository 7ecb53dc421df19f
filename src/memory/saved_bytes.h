// Bytes that have addresses but need not be in memory: a section of a saved memory, or old rows of
// a session that wait in a file. What is needed is read, checked, when it is needed, and can be
// given up again. Shared by the forks of a memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/files/archive.h"
#include "base/threads.h"

namespace kinora {

// Pieces of equal size that stand in a file in another order than they are used in.
struct FileOrder {
  int64_t unit = 0;               // bytes of a piece
  std::vector<int32_t> piece_at;  // place in the file → piece
  std::vector<int32_t> place_of;  // piece → place in the file
};

class SavedBytes {
 public:
  // Reads pages [first, first + count) to `out` and checks them; throws what is wrong.
  using ReadPages = std::function<void(int64_t first, int64_t count, std::byte* out)>;
  // Pages [first, first + count) will be read soon: the disk may begin.
  using Announce = std::function<void(int64_t first, int64_t count)>;

  // Pages are those of the file; with an order they hold whole pieces.
  SavedBytes(int64_t bytes, int64_t page, ReadPages read, Announce announce = nullptr,
             std::shared_ptr<const FileOrder> order = nullptr);
  ~SavedBytes();
  SavedBytes(const SavedBytes&) = delete;
  SavedBytes& operator=(const SavedBytes&) = delete;

  int64_t bytes() const { return bytes_; }
  // Only what was needed, and not given up since, may be read.
  const std::byte* data() const { return data_; }
  // Bytes [begin, end) can be read from now on. After an error the next call tries again.
  void need(int64_t begin, int64_t end);
  // The same for several ranges, whose pages all threads read.
  struct Range {
    int64_t begin = 0, end = 0;
  };
  // Tells the system of what `need` will read, and does not wait: a disk that knows of many places
  // at once reads them many times faster than one after another.
  void announce(const ThreadPool& threads, std::span<const Range> ranges) const;
  struct Pages {
    int64_t wanted = 0, late = 0;  // bytes of all pages, and of those that were not here
  };
  Pages need(const ThreadPool& threads, std::span<const Range> ranges);
  // Gives up the pages that were needed longest ago, until at most this many bytes are in memory.
  // Pieces that stand in another order here than in the file may hold on to more: the system takes
  // memory back in pages of its own.
  void keep(int64_t most);
  int64_t resident() const;  // bytes in memory

 private:
  int64_t size_of(size_t page) const;
  std::vector<int64_t> pages_of(std::span<const Range> ranges) const;  // increasing
  using Runs = std::vector<std::pair<int64_t, int64_t>>;  // of pages: first and past the last
  Runs missing(std::span<const int64_t> pages) const;
  void read_run(int64_t first, int64_t count) const;
  // Calls each(number) for the system's pages that the pieces of a page of the file lie in, once
  // for every piece.
  template <class Each>
  void for_system_pages(size_t page, const Each& each) const;
  void release(size_t page);

  const int64_t bytes_;
  const int64_t page_;
  const ReadPages read_;
  const Announce announce_;
  const std::shared_ptr<const FileOrder> order_;
  std::byte* data_ = nullptr;
  mutable std::mutex mutex_;
  std::vector<uint64_t> used_;       // by page: when it was last needed; 0: it is not here
  std::vector<uint32_t> pieces_in_;  // by page of the system, where there is an order
  uint64_t now_ = 0;
  int64_t resident_ = 0;
};

// A section of a file. Its pages are read when they are needed.
std::unique_ptr<SavedBytes> open_section(std::shared_ptr<const Archive> archive,
                                         const std::string& name,
                                         std::shared_ptr<const FileOrder> order = nullptr);

}  // namespace kinora
