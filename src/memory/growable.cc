#include "memory/growable.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>

#include "base/error.h"

namespace kinora {
namespace {

constexpr size_t unit = size_t{1} << 16;  // a multiple of every page size in use

size_t round_up(size_t bytes) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Growable::~Growable() {
  if (data_ != nullptr) ::munmap(data_, capacity_);
}

Growable& Growable::operator=(Growable&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

void Growable::resize(size_t bytes) {
  // Growth by a quarter keeps the number of moves small; shrinking waits for a factor of four.
  size_t wanted = capacity_;
  if (bytes > capacity_) wanted = round_up(std::max(bytes, capacity_ + capacity_ / 4));
  if (bytes < capacity_ / 4) wanted = round_up(std::max(bytes, unit));
  if (wanted != capacity_) {
    void* moved = data_ == nullptr ? ::mmap(nullptr, wanted, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                                   : ::mremap(data_, capacity_, wanted, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) {
      throw Error(ErrorKind::resource, "out of memory: the rows of this session need " +
                                           std::to_string(wanted) +
                                           " bytes in one layer; use fewer frames or prune more");
    }
    data_ = static_cast<std::byte*>(moved);
    capacity_ = wanted;
  }
  size_ = bytes;
}

}  // namespace kinora
