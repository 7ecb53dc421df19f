// Host memory that grows, for what is read end to end again and again: the rows of a memory, the
// weights of a small model and those in 4 and 8 bits. With pages of 4 KiB a core spends up to a
// quarter of the time of such reads on finding the pages, more so in a virtual machine; so this
// memory lies in pages of 2 MiB where the system has them. Blocks of less than a page share one (a
// block has up to twice the bytes that are used); longer ones get a large page for every stretch
// that is full, so that it costs no memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <utility>

namespace kinora {

constexpr size_t large_page = size_t{2} << 20;

// Blocks of 64 KiB to 1 MiB, cut from large pages. Any thread may call.
class PagePool {
 public:
  static constexpr size_t smallest = size_t{64} << 10, largest = size_t{1} << 20;

  PagePool() = default;
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // `bytes` is a power of two from `smallest` to `largest`. Null when there is no memory.
  std::byte* take(size_t bytes);
  void give(std::byte* block, size_t bytes);
  // Large pages that it holds, one of them perhaps in reserve.
  size_t pages() const;

 private:
  mutable std::mutex mutex_;
  std::map<uintptr_t, uint32_t> pages_;  // address → a bit for each 64 KiB that is in use
};

class HostRange {
 public:
  HostRange() = default;
  // So many bytes, 0 at first, that will be full. Throws a resource error when there is no memory.
  explicit HostRange(size_t bytes);
  // A copy of these bytes.
  explicit HostRange(std::span<const std::byte> bytes);
  ~HostRange();
  HostRange(HostRange&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        capacity_(std::exchange(other.capacity_, 0)),
        large_(std::exchange(other.large_, 0)) {}
  HostRange& operator=(HostRange&& other) noexcept;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t capacity() const { return capacity_; }

  // Makes room for `bytes`, or gives back what lies far beyond them; the first `used` bytes stay,
  // perhaps at another place. False when there is no memory; nothing changes then.
  [[nodiscard]] bool resize(size_t used, size_t bytes);

 private:
  bool pooled() const { return capacity_ <= PagePool::largest; }
  bool move_to(size_t used, size_t capacity);

  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
  size_t large_ = 0;  // bytes at the beginning whose pages are large, as far as the system did it
};

}  // namespace kinora
