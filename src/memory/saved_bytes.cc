#include "memory/saved_bytes.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace kinora {
namespace {

// Pages that one thread reads in one go.
constexpr int64_t most_pages = 16;

}  // namespace

SavedBytes::SavedBytes(int64_t bytes, int64_t page, ReadPages read, Announce announce,
                       std::shared_ptr<const FileOrder> order)
    : bytes_(bytes),
      page_(page),
      read_(std::move(read)),
      announce_(std::move(announce)),
      order_(std::move(order)),
      used_(static_cast<size_t>(bytes / page + (bytes % page != 0 ? 1 : 0))) {
  if (order_) {
    if (page_ % order_->unit != 0 || order_->unit * std::ssize(order_->place_of) != bytes_ ||
        order_->place_of.size() != order_->piece_at.size()) {
      throw Error(ErrorKind::internal, "pieces of a file do not fit its pages");
    }
    pieces_in_.resize(static_cast<size_t>(bytes_ / ::getpagesize() + 1));
  }
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

std::vector<int64_t> SavedBytes::pages_of(std::span<const Range> ranges) const {
  std::vector<int64_t> pages;
  for (const Range& range : ranges) {
    if (range.begin >= range.end) continue;
    if (range.begin < 0 || range.end > bytes_) {
      throw Error(ErrorKind::internal, "there are no such bytes in a file of rows");
    }
    const int64_t unit = order_ ? order_->unit : page_;
    for (int64_t i = range.begin / unit; i <= (range.end - 1) / unit; ++i) {
      pages.push_back(order_ ? order_->place_of[static_cast<size_t>(i)] * unit / page_ : i);
    }
  }
  std::sort(pages.begin(), pages.end());
  pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
  return pages;
}

void SavedBytes::read_run(int64_t first, int64_t count) const {
  if (!order_) return read_(first, count, data_ + first * page_);
  const int64_t begin = first * page_, end = std::min(bytes_, (first + count) * page_);
  std::vector<std::byte> bytes(static_cast<size_t>(end - begin));
  read_(first, count, bytes.data());
  const int64_t unit = order_->unit;
  for (int64_t at = begin; at < end; at += unit) {
    const int64_t piece = order_->piece_at[static_cast<size_t>(at / unit)];
    std::memcpy(data_ + piece * unit, bytes.data() + (at - begin), static_cast<size_t>(unit));
  }
}

template <class Each>
void SavedBytes::for_system_pages(size_t page, const Each& each) const {
  const int64_t unit = order_->unit, system = ::getpagesize();
  const int64_t begin = static_cast<int64_t>(page) * page_;
  for (int64_t at = begin; at < begin + size_of(page); at += unit) {
    const int64_t first = order_->piece_at[static_cast<size_t>(at / unit)] * unit;
    for (int64_t i = first / system; i <= (first + unit - 1) / system; ++i) {
      each(static_cast<size_t>(i));
    }
  }
}

SavedBytes::Runs SavedBytes::missing(std::span<const int64_t> pages) const {
  Runs runs;
  for (const int64_t page : pages) {
    if (used_[static_cast<size_t>(page)] > 0) continue;
    if (!runs.empty() && runs.back().second == page && page - runs.back().first < most_pages) {
      ++runs.back().second;
    } else {
      runs.emplace_back(page, page + 1);
    }
  }
  return runs;
}

void SavedBytes::announce(const ThreadPool& threads, std::span<const Range> ranges) const {
  if (!announce_) return;
  const std::vector<int64_t> all = pages_of(ranges);
  Runs runs;
  {
    const std::lock_guard lock(mutex_);
    runs = missing(all);
  }
  threads.parallel_for(std::ssize(runs), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& [first, past] = runs[static_cast<size_t>(i)];
      announce_(first, past - first);
    }
  });
}

SavedBytes::Pages SavedBytes::need(const ThreadPool& threads, std::span<const Range> ranges) {
  const std::vector<int64_t> all = pages_of(ranges);
  const std::lock_guard lock(mutex_);
  ++now_;
  const Runs runs = missing(all);
  threads.parallel_for(std::ssize(runs), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& [first, past] = runs[static_cast<size_t>(i)];
      read_run(first, past - first);
    }
  });
  Pages pages;
  for (const int64_t page : all) {
    const auto number = static_cast<size_t>(page);
    pages.wanted += size_of(number);
    if (std::exchange(used_[number], now_) > 0) continue;
    pages.late += size_of(number);
    if (order_) for_system_pages(number, [&](size_t system) { ++pieces_in_[system]; });
  }
  resident_ += pages.late;
  return pages;
}

void SavedBytes::release(size_t page) {
  if (!order_) {
    ::madvise(data_ + static_cast<int64_t>(page) * page_, static_cast<size_t>(size_of(page)),
              MADV_DONTNEED);
    return;
  }
  const int64_t system = ::getpagesize();
  for_system_pages(page, [&](size_t number) {
    if (--pieces_in_[number] > 0) return;
    const int64_t at = static_cast<int64_t>(number) * system;
    ::madvise(data_ + at, static_cast<size_t>(std::min(system, bytes_ - at)), MADV_DONTNEED);
  });
}

void SavedBytes::keep(int64_t most) {
  const std::lock_guard lock(mutex_);
  // Memory is given back in pages of the system, which may be larger than ours.
  if (resident_ <= most || (!order_ && page_ % ::getpagesize() != 0)) return;
  std::vector<std::pair<uint64_t, size_t>> here;
  for (size_t page = 0; page < used_.size(); ++page) {
    if (used_[page] > 0) here.emplace_back(used_[page], page);
  }
  std::sort(here.begin(), here.end());
  for (const auto& [when, page] : here) {
    if (resident_ <= most) break;
    release(page);
    used_[page] = 0;
    resident_ -= size_of(page);
  }
}

int64_t SavedBytes::resident() const {
  const std::lock_guard lock(mutex_);
  return resident_;
}

std::unique_ptr<SavedBytes> open_section(std::shared_ptr<const Archive> archive,
                                         const std::string& name,
                                         std::shared_ptr<const FileOrder> order) {
  const ArchiveSection section = archive->section(name);
  auto read = [archive, section, checks = archive->checks(section)](int64_t first, int64_t count,
                                                                    std::byte* out) {
    archive->read_pages(section, checks, first, count, out);
  };
  auto announce = [archive, section](int64_t first, int64_t count) {
    archive->announce(section, first, count);
  };
  return std::make_unique<SavedBytes>(section.bytes, section.page, std::move(read),
                                      std::move(announce), std::move(order));
}

}  // namespace kinora
