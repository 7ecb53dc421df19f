#include "memory/saved_bytes.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace kinora {
namespace {

// Pages that one thread reads in one go.
constexpr int64_t most_pages = 16;

}  // namespace

SavedBytes::SavedBytes(int64_t bytes, int64_t page, ReadPages read)
    : bytes_(bytes),
      page_(page),
      read_(std::move(read)),
      used_(static_cast<size_t>(bytes / page + (bytes % page != 0 ? 1 : 0))) {
  if (bytes_ == 0) return;
  void* room = ::mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) {
    throw Error(ErrorKind::resource,
                "out of memory: there are no addresses for " + std::to_string(bytes_) + " bytes");
  }
  data_ = static_cast<std::byte*>(room);
}

SavedBytes::~SavedBytes() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

int64_t SavedBytes::size_of(size_t page) const {
  return std::min(page_, bytes_ - static_cast<int64_t>(page) * page_);
}

void SavedBytes::need(int64_t begin, int64_t end) {
  static const ThreadPool alone(1);
  const Range range{begin, end};
  need(alone, {&range, 1});
}

SavedBytes::Pages SavedBytes::need(const ThreadPool& threads, std::span<const Range> ranges) {
  std::vector<Range> sorted(ranges.begin(), ranges.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const Range& x, const Range& y) { return x.begin < y.begin; });
  const std::lock_guard lock(mutex_);
  ++now_;
  Pages pages;
  std::vector<std::pair<int64_t, int64_t>> missing;  // runs of pages: first and past the last
  int64_t next = 0;                                  // the first page that was not looked at
  for (const Range& range : sorted) {
    if (range.begin >= range.end) continue;
    if (range.begin < 0 || range.end > bytes_) {
      throw Error(ErrorKind::internal, "there are no such bytes in a file of rows");
    }
    const int64_t past = (range.end - 1) / page_ + 1;
    for (int64_t page = std::max(next, range.begin / page_); page < past; ++page) {
      pages.wanted += size_of(static_cast<size_t>(page));
      uint64_t& used = used_[static_cast<size_t>(page)];
      if (used > 0) {
        used = now_;
      } else if (!missing.empty() && missing.back().second == page &&
                 page - missing.back().first < most_pages) {
        ++missing.back().second;
      } else {
        missing.emplace_back(page, page + 1);
      }
    }
    next = std::max(next, past);
  }
  threads.parallel_for(std::ssize(missing), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& [first, past] = missing[static_cast<size_t>(i)];
      read_(first, past - first, data_ + first * page_);
    }
  });
  for (const auto& [first, past] : missing) {
    for (int64_t page = first; page < past; ++page) {
      used_[static_cast<size_t>(page)] = now_;
      pages.late += size_of(static_cast<size_t>(page));
    }
  }
  resident_ += pages.late;
  return pages;
}

void SavedBytes::keep(int64_t most) {
  const std::lock_guard lock(mutex_);
  // Memory is given back in pages of the system, which may be larger than ours.
  if (resident_ <= most || page_ % ::getpagesize() != 0) return;
  std::vector<std::pair<uint64_t, size_t>> here;
  for (size_t page = 0; page < used_.size(); ++page) {
    if (used_[page] > 0) here.emplace_back(used_[page], page);
  }
  std::sort(here.begin(), here.end());
  for (const auto& [when, page] : here) {
    if (resident_ <= most) break;
    ::madvise(data_ + static_cast<int64_t>(page) * page_, static_cast<size_t>(size_of(page)),
              MADV_DONTNEED);
    used_[page] = 0;
    resident_ -= size_of(page);
  }
}

int64_t SavedBytes::resident() const {
  const std::lock_guard lock(mutex_);
  return resident_;
}

std::unique_ptr<SavedBytes> open_section(std::shared_ptr<const Archive> archive,
                                         const std::string& name) {
  const ArchiveSection section = archive->section(name);
  auto read = [archive, section, checks = archive->checks(section)](int64_t first, int64_t count,
                                                                    std::byte* out) {
    archive->read_pages(section, checks, first, count, out);
  };
  return std::make_unique<SavedBytes>(section.bytes, section.page, std::move(read));
}

}  // namespace kinora
