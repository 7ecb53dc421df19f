// Memory that grows without copying: on the host the kernel moves page tables (all but small
// blocks), on a GPU, and on the host where GPUs read it, chunks are put behind addresses reserved
// once. Rows of a long video are appended for an hour; doubling a vector would need three times the
// memory and copy gigabytes at the worst moment.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/device.h"
#include "base/gpu.h"
#include "base/system/host_range.h"

namespace kinora {

class Growable {
 public:
  Growable() = default;
  // `limit` is the most it will ever hold on a GPU, `likely` what it will soon hold there; on the
  // host they are not used.
  explicit Growable(Device device, size_t limit, size_t likely = 0);
  // Host memory that GPUs read, never more than `limit`.
  static Growable pinned(size_t limit);
  Growable(Growable&& other) noexcept
      : device_(other.device_),
        host_(std::move(other.host_)),
        range_(std::move(other.range_)),
        pinned_(std::move(other.pinned_)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Growable& operator=(Growable&& other) noexcept;
  Growable(const Growable&) = delete;
  Growable& operator=(const Growable&) = delete;

  Device device() const { return device_; }
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

  // Grows or shrinks. Growing may move the block on the host, never on a GPU or where GPUs read it,
  // and leaves new bytes unspecified; shrinking far gives memory back to the system. Throws a
  // resource error when there is none left.
  void resize(size_t bytes);
  // Makes memory for this many bytes where GPUs read it, and leaves its size as it is.
  void reserve_pinned(size_t bytes) { pinned_.reserve(bytes); }
  // Copies bytes that lie on any device to [at, at + bytes).
  void copy_in(size_t at, const std::byte* from, Device device, size_t bytes);
  // Forgets what lies beyond `bytes` and keeps its memory for what comes next: nothing waits.
  void truncate(size_t bytes) { size_ = std::min(size_, bytes); }

 private:
  void resize_host(size_t bytes);
  void resize_gpu(size_t bytes);
  void resize_pinned(size_t bytes);

  Device device_;
  HostRange host_;      // behind data_ on the host
  GpuRange range_;      // behind data_ on a GPU
  PinnedRange pinned_;  // behind data_ where GPUs read it
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace kinora
