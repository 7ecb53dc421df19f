#include "base/system/host_range.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <string>

#include "base/error.h"

namespace kinora {
namespace {

constexpr size_t unit = PagePool::smallest;  // a multiple of every page size in use

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// What administrators can switch off.
bool large_pages_allowed() {
  static const bool allowed = [] {
    std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
    std::string words;
    std::getline(file, words);
    return !words.empty() && words.find("[never]") == std::string::npos;
  }();
  return allowed;
}

// Empty memory that will be full: its pages are to be large from the start.
void ask_for_large_pages(void* data, size_t bytes) {
#ifdef MADV_HUGEPAGE
  if (bytes > 0 && large_pages_allowed()) ::madvise(data, bytes, MADV_HUGEPAGE);
#endif
}

// Full memory: its pages become large ones, where the system can do it now. (A request for some
// time later would cut the mapping in two, and mremap moves only whole ones.)
void make_pages_large(void* data, size_t bytes) {
  constexpr int collapse = 25;  // MADV_COLLAPSE, from Linux 6.1; many headers do not have it yet
  if (bytes > 0 && large_pages_allowed()) ::madvise(data, bytes, collapse);
}

// Addresses that begin at a multiple of a large page. MAP_FAILED where there is no memory.
void* map_aligned(size_t bytes) {
  void* all = ::mmap(nullptr, bytes + large_page, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return all;
  auto* const begin = static_cast<std::byte*>(all);
  const size_t before =
      round_up(reinterpret_cast<uintptr_t>(begin), large_page) - reinterpret_cast<uintptr_t>(begin);
  if (before > 0) ::munmap(begin, before);
  if (before < large_page) ::munmap(begin + before + bytes, large_page - before);
  return begin + before;
}

// The same bytes with another capacity, perhaps elsewhere; MAP_FAILED leaves them where they are.
void* remap_aligned(void* data, size_t old_bytes, size_t bytes) {
#ifndef __SANITIZE_THREAD__
  // The thread sanitizer does not follow mremap: it would take what used to be at the new place, a
  // stack perhaps, for these bytes.
  void* const grown = ::mremap(data, old_bytes, bytes, 0);
  if (grown != MAP_FAILED) return grown;
#endif
  void* const there = map_aligned(bytes);
  if (there == MAP_FAILED) return there;
#ifndef __SANITIZE_THREAD__
  const int how = MREMAP_MAYMOVE | MREMAP_FIXED;
  if (::mremap(data, old_bytes, bytes, how, there) != MAP_FAILED) return there;
#endif
  std::memcpy(there, data, std::min(old_bytes, bytes));
  ::munmap(data, old_bytes);
  return there;
}

// Blocks live as long as anything that holds rows, so nothing ends it.
PagePool& shared_pool() {
  static auto& pool = *new PagePool;
  return pool;
}

}  // namespace

PagePool::~PagePool() {
  for (const auto& [address, used] : pages_) ::munmap(reinterpret_cast<void*>(address), large_page);
}

std::byte* PagePool::take(size_t bytes) {
  const auto units = static_cast<unsigned>(bytes / unit);
  const uint32_t block = (uint32_t{1} << units) - 1;
  const auto take_from = [&](uintptr_t address, uint32_t& used) -> std::byte* {
    for (unsigned at = 0; at < large_page / unit; at += units) {
      if ((used & block << at) != 0) continue;
      used |= block << at;
      return reinterpret_cast<std::byte*>(address) + at * unit;
    }
    return nullptr;
  };
  const std::lock_guard lock(mutex_);
  // The first that has room: what is at the end gets empty and goes back.
  for (auto& [address, used] : pages_) {
    if (std::byte* const found = take_from(address, used)) return found;
  }
  void* const page = map_aligned(large_page);
  if (page == MAP_FAILED) return nullptr;
  ask_for_large_pages(page, large_page);
  const auto address = reinterpret_cast<uintptr_t>(page);
  return take_from(address, pages_[address]);
}

void PagePool::give(std::byte* block, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(block);
  const uintptr_t begin = address / large_page * large_page;
  const std::lock_guard lock(mutex_);
  const auto page = pages_.find(begin);
  page->second &= ~(((uint32_t{1} << bytes / unit) - 1) << (address - begin) / unit);
  if (page->second != 0 || pages_.size() == 1) return;
  ::munmap(reinterpret_cast<void*>(begin), large_page);
  pages_.erase(page);
}

size_t PagePool::pages() const {
  const std::lock_guard lock(mutex_);
  return pages_.size();
}

HostRange::HostRange(size_t bytes) {
  if (bytes == 0) return;
  capacity_ = std::max(round_up(bytes, unit), PagePool::largest + unit);
  void* const data = map_aligned(capacity_);
  if (data == MAP_FAILED) {
    throw Error(ErrorKind::resource,
                "out of memory: could not allocate " + std::to_string(bytes) + " bytes");
  }
  data_ = static_cast<std::byte*>(data);
  large_ = capacity_ / large_page * large_page;
  ask_for_large_pages(data_, large_);
}

HostRange::HostRange(std::span<const std::byte> bytes) : HostRange(bytes.size()) {
  if (!bytes.empty()) std::memcpy(data_, bytes.data(), bytes.size());
}

HostRange::~HostRange() {
  if (data_ == nullptr) return;
  if (pooled()) {
    shared_pool().give(data_, capacity_);
  } else {
    ::munmap(data_, capacity_);
  }
}

HostRange& HostRange::operator=(HostRange&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(capacity_, other.capacity_);
  std::swap(large_, other.large_);
  return *this;
}

bool HostRange::resize(size_t used, size_t bytes) {
  // Growth by a quarter keeps the number of moves small; shrinking waits for a factor of four.
  size_t wanted = capacity_;
  if (bytes > capacity_) wanted = std::max(bytes, capacity_ + capacity_ / 4);
  if (bytes < capacity_ / 4) wanted = std::max(bytes, unit);
  if (wanted != capacity_) {
    const bool small = wanted <= PagePool::largest;
    wanted = small ? std::max(std::bit_ceil(wanted), unit) : round_up(wanted, unit);
    if (wanted != capacity_ && !move_to(used, wanted)) return false;
  }
  if (pooled()) return true;
  large_ = std::min(large_, capacity_ / large_page * large_page);
  const size_t full = std::min(used, bytes) / large_page * large_page;
  if (full <= large_) return true;
  make_pages_large(data_ + large_, full - large_);
  large_ = full;
  return true;
}

bool HostRange::move_to(size_t used, size_t capacity) {
  const bool stays_own = data_ != nullptr && !pooled() && capacity > PagePool::largest;
  void* there = nullptr;
  if (stays_own) {
    there = remap_aligned(data_, capacity_, capacity);
  } else if (capacity <= PagePool::largest) {
    there = shared_pool().take(capacity);
  } else {
    there = map_aligned(capacity);
  }
  if (there == nullptr || there == MAP_FAILED) return false;
  if (!stays_own) {
    if (used > 0) std::memcpy(there, data_, std::min(used, capacity));
    *this = HostRange();
  }
  data_ = static_cast<std::byte*>(there);
  capacity_ = capacity;
  return true;
}

}  // namespace kinora
