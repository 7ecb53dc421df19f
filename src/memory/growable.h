// Host memory that grows without copying: the kernel moves page tables, not bytes. Rows of a long
// video are appended for an hour; doubling a vector would need three times the memory and copy
// gigabytes at the worst moment.
#pragma once

#include <cstddef>
#include <utility>

namespace kinora {

class Growable {
 public:
  Growable() = default;
  ~Growable();
  Growable(Growable&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  Growable& operator=(Growable&& other) noexcept;
  Growable(const Growable&) = delete;
  Growable& operator=(const Growable&) = delete;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

  // Grows or shrinks. Growing may move the block and leaves new bytes unspecified; shrinking far
  // gives memory back to the system. Throws a resource error when there is none left.
  void resize(size_t bytes);

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace kinora
