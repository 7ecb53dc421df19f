#include "memory/growable.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/tensor.h"

namespace kinora {
namespace {

// On a GPU chunks grow with the rows, from what the driver hands out at least up to this.
constexpr size_t largest_chunk = size_t{64} << 20;

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

Growable& Growable::operator=(Growable&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(host_, other.host_);
  std::swap(range_, other.range_);
  std::swap(pinned_, other.pinned_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
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
  size_ = bytes;
}

void Growable::resize_host(size_t bytes) {
  if (!host_.resize(size_, bytes)) {
    throw Error(ErrorKind::resource, "out of memory: the rows of this session need " +
                                         std::to_string(bytes) +
                                         " bytes in one layer; use fewer frames or prune more");
  }
  data_ = host_.data();
  size_ = bytes;
}

}  // namespace kinora
