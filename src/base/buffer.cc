#include "base/buffer.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/device_cuda.h"
#include "base/error.h"

namespace kinora {
namespace {

constexpr size_t alignment = 64;

// Aligned by hand: glibc before 2.38 seldom gives a freed block of aligned_alloc to the next one of
// the same size, and a long video then leaves ever more of them. The block's own address stands
// right before the data; malloc's alignment leaves room for it.
std::byte* allocate_host(size_t bytes) {
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  auto* block = static_cast<std::byte*>(std::malloc(rounded + alignment));
  if (block == nullptr) {
    throw Error(ErrorKind::resource,
                "out of memory: could not allocate " + std::to_string(bytes) + " bytes");
  }
  static_assert(alignof(std::max_align_t) >= sizeof(block));
  std::byte* data = block + alignment - reinterpret_cast<uintptr_t>(block) % alignment;
  std::memcpy(data - sizeof block, &block, sizeof block);
  return data;
}

void release_host(std::byte* data) {
  std::byte* block = nullptr;
  std::memcpy(&block, data - sizeof block, sizeof block);
  std::free(block);
}

}  // namespace

std::shared_ptr<Buffer> Buffer::allocate(Device device, size_t bytes) {
  if (bytes > (size_t{1} << 62)) {
    throw Error(ErrorKind::resource, "out of memory: absurd allocation size");
  }
  std::byte* data = device.is_cpu() ? allocate_host(bytes)
                                    : static_cast<std::byte*>(cuda::allocate(device.index, bytes));
  return std::shared_ptr<Buffer>(new Buffer(device, data, bytes, nullptr));
}

std::shared_ptr<Buffer> Buffer::borrow(const void* data, size_t bytes,
                                       std::shared_ptr<const void> owner) {
  auto* start = static_cast<std::byte*>(const_cast<void*>(data));
  return std::shared_ptr<Buffer>(new Buffer(Device::cpu(), start, bytes, std::move(owner)));
}

Buffer::~Buffer() {
  if (owner_ != nullptr) return;
  if (device_.is_cpu()) {
    release_host(data_);
  } else {
    cuda::release(device_.index, data_, size_);
  }
}

void copy_bytes(void* target, Device target_device, const void* source, Device source_device,
                size_t bytes) {
  if (bytes == 0) return;
  if (target_device.is_cpu() && source_device.is_cpu()) {
    std::memmove(target, source, bytes);
  } else {
    cuda::copy(target, source, bytes);
  }
}

}  // namespace kinora
