// Uploads frames to a GPU while it does other work: pixels are put into pinned memory and copied on
// a separate stream into one of two buffers. Whoever reads them waits for that copy only. Used by
// gpu_patches.cc.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "base/buffer.h"
#include "base/context.h"
#include "base/gpu.h"
#include "base/tensor.h"

namespace kinora {

class FrameStage {
 public:
  explicit FrameStage(Device device);

  // The stage of a device, made at first use.
  static FrameStage& of(Device device);

  // Frames u8 [n, height, width, 3] on the host; `use` gets them on the device and only starts work
  // on the context's stream. The host waits for a free buffer, not for that work.
  void pass(const Context& context, ConstTensorView frames,
            const std::function<void(ConstTensorView there)>& use);

 private:
  struct Place {
    explicit Place(Device device) : copied(device), used(device) {}
    PinnedBuffer pinned;
    std::shared_ptr<Buffer> there;
    GpuEvent copied;  // from pinned memory
    GpuEvent used;    // by whoever read it last
    bool filled = false;
  };
  void make_room(const Context& context, Place& place, size_t bytes);

  Device device_;
  std::mutex mutex_;
  GpuStream stream_;
  std::array<std::unique_ptr<Place>, 2> places_;
  size_t next_ = 0;
};

}  // namespace kinora
