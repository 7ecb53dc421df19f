#include "memory/growable.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/tensor.h"

namespace kinora {
namespace {

constexpr size_t unit = size_t{1} << 16;  // a multiple of every page size in use

// On a GPU chunks grow with the rows, from what the driver hands out at least up to this.
constexpr size_t largest_chunk = size_t{64} << 20;

size_t round_up(size_t bytes) { return (bytes + unit - 1) / unit * unit; }

// MAP_FAILED where there is no memory, here and below.
void* map(size_t bytes) {
  return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

void* moved_to(void* data, size_t old_bytes, size_t bytes) {
#ifdef __SANITIZE_THREAD__
  // The sanitizer does not follow mremap: it would take what used to be at the new place, a stack
  // perhaps, for these rows.
  void* moved = map(bytes);
  if (moved == MAP_FAILED) return moved;
  std::memcpy(moved, data, std::min(old_bytes, bytes));
  ::munmap(data, old_bytes);
  return moved;
#else
  return ::mremap(data, old_bytes, bytes, MREMAP_MAYMOVE);
#endif
}

}  // namespace

Growable::Growable(Device device, size_t limit, size_t likely) : device_(device) {
  if (device.is_cpu()) return;
  range_ = GpuRange(device, limit, likely);
  data_ = range_.data();
}

Growable Growable::pinned(size_t limit) {
  Growable out;
  out.pinned_ = PinnedRange(limit);
  out.data_ = out.pinned_.data();
  return out;
}

Growable::~Growable() {
  const bool ours = device_.is_cpu() && pinned_.data() == nullptr;
  if (ours && data_ != nullptr) ::munmap(data_, capacity_);
}

Growable& Growable::operator=(Growable&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(range_, other.range_);
  std::swap(pinned_, other.pinned_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

void Growable::resize(size_t bytes) {
  if (pinned_.data() != nullptr) return resize_pinned(bytes);
  device_.is_cpu() ? resize_host(bytes) : resize_gpu(bytes);
}

void Growable::resize_pinned(size_t bytes) {
  if (bytes > pinned_.capacity()) {
    pinned_.reserve(bytes);
  } else if (bytes < pinned_.capacity() / 4) {
    pinned_.shrink(bytes);
  }
  capacity_ = pinned_.capacity();
  size_ = bytes;
}

void Growable::copy_in(size_t at, const std::byte* from, Device device, size_t bytes) {
  const size_t most = pinned_.data() != nullptr ? PinnedRange::chunk : SIZE_MAX;
  for (size_t done = 0; done < bytes;) {
    const size_t here = std::min(bytes - done, most - (at + done) % most);
    copy_bytes(data_ + at + done, device_, from + done, device, here);
    done += here;
  }
}

void Growable::resize_gpu(size_t bytes) {
  if (bytes > range_.capacity()) {
    range_.reserve(
        std::max(bytes, range_.capacity() + std::min(range_.capacity() / 4, largest_chunk)));
  } else if (bytes < range_.capacity() / 4) {
    range_.shrink(bytes);
  }
  capacity_ = range_.capacity();
  size_ = bytes;
}

void Growable::resize_host(size_t bytes) {
  // Growth by a quarter keeps the number of moves small; shrinking waits for a factor of four.
  size_t wanted = capacity_;
  if (bytes > capacity_) wanted = round_up(std::max(bytes, capacity_ + capacity_ / 4));
  if (bytes < capacity_ / 4) wanted = round_up(std::max(bytes, unit));
  if (wanted != capacity_) {
    void* moved = data_ == nullptr ? map(wanted) : moved_to(data_, capacity_, wanted);
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
