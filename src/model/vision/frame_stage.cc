#include "model/vision/frame_stage.h"

#include <cstring>
#include <map>

#include "base/error.h"

namespace kinora {

FrameStage::FrameStage(Device device) : device_(device), stream_(device, true) {
  for (auto& place : places_) place = std::make_unique<Place>(device);
}

FrameStage& FrameStage::of(Device device) {
  static std::mutex mutex;
  static std::map<int, std::unique_ptr<FrameStage>> stages;
  const std::lock_guard lock(mutex);
  auto& stage = stages[device.index];
  if (stage == nullptr) stage = std::make_unique<FrameStage>(device);
  return *stage;
}

// A place that grows must not be in use; this happens a few times in the life of a program.
void FrameStage::make_room(const Context& context, Place& place, size_t bytes) {
  if (place.filled) place.copied.wait();
  if (place.pinned.size() >= bytes) return;
  if (place.filled) place.used.wait();
  place.pinned = PinnedBuffer(bytes);
  place.there = Buffer::allocate(device_, bytes);
  synchronize(context);  // the copies' stream knows nothing of when memory was taken
}

void FrameStage::pass(const Context& context, ConstTensorView frames,
                      const std::function<void(ConstTensorView there)>& use) {
  const std::lock_guard lock(mutex_);
  Place& place = *places_[next_];
  next_ = (next_ + 1) % places_.size();
  make_room(context, place, static_cast<size_t>(frames.bytes()));
  const int64_t frame_bytes = frames.size(0) > 0 ? frames.bytes() / frames.size(0) : 0;
  context.threads->parallel_for(frames.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t frame = begin; frame < end; ++frame) {
      const ConstTensorView source = frames[frame];
      if (!source.contiguous()) throw Error(ErrorKind::internal, "frames have gaps between rows");
      std::memcpy(place.pinned.data() + frame * frame_bytes, source.raw(),
                  static_cast<size_t>(frame_bytes));
    }
  });
  Context copying = context;
  copying.stream = stream_.handle();
  if (place.filled) place.used.order(copying);
  copy_async(copying, place.there->data(), place.pinned.data(),
             static_cast<size_t>(frames.bytes()));
  place.copied.record(copying);
  place.copied.order(context);
  use(ConstTensorView(place.there->data(), DType::u8, frames.shape(), device_));
  place.used.record(context);
  place.filled = true;
}

}  // namespace kinora
