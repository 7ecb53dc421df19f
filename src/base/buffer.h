// Owned bytes on a device, or bytes that belong to someone else who is kept alive (a mapped file).
// Tensors share buffers; nothing else owns memory.
#pragma once

#include <cstddef>
#include <memory>

#include "base/device.h"

namespace kinora {

class Buffer {
 public:
  // Uninitialised, aligned to 64 bytes. Throws a resource error when there is not enough memory.
  static std::shared_ptr<Buffer> allocate(Device device, size_t bytes);

  // CPU bytes owned by `owner`, for example a mapped file.
  static std::shared_ptr<Buffer> borrow(const void* data, size_t bytes,
                                        std::shared_ptr<const void> owner);

  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  Device device() const { return device_; }
  size_t size() const { return size_; }
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }

 private:
  Buffer(Device device, std::byte* data, size_t size, std::shared_ptr<const void> owner)
      : device_(device), data_(data), size_(size), owner_(std::move(owner)) {}

  Device device_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::shared_ptr<const void> owner_;  // null when this buffer owns its bytes
};

// Copies bytes between devices (or within one) and waits for the end.
void copy_bytes(void* target, Device target_device, const void* source, Device source_device,
                size_t bytes);

}  // namespace kinora
