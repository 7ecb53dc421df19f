#include "model/vision/gpu_patches.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/gpu.h"
#include "model/vision/frame_stage.h"

namespace kinora {

Tensor gpu_patches(const Context& context, ConstTensorView frames, const PatchOrder& order,
                   const PixelNormalizer& normalizer, const PatchFormat& format) {
  const int64_t block = order.patch * order.merge;
  const int64_t own = 3 * order.span * order.patch * order.patch;
  const int64_t columns = format.columns > 0 ? format.columns : own;
  if (frames.rank() != 4 || frames.dtype() != DType::u8 || frames.size(3) != 3 ||
      frames.stride(2) != 3 || columns < own) {
    throw Error(ErrorKind::internal, "frames do not fit the patches of a GPU");
  }
  cuda::PatchWork work;
  work.order = order;
  work.down = frames.size(1) / block;
  work.across = frames.size(2) / block;
  const int64_t units = (frames.size(0) + order.span - 1) / order.span;
  const int64_t patches = work.down * work.across * order.merge * order.merge;

  std::vector<float> values;
  for (int64_t channel = 0; channel < 3; ++channel) {
    const auto& table = normalizer.channel(channel);
    values.insert(values.end(), table.begin(), table.end());
  }
  Tensor table(DType::f32, {3, 256}, context.device);
  copy_async(context, table.view().raw(), values.data(), values.size() * sizeof(float));
  Tensor out(format.type, {units * patches, columns}, context.device);
  work.table = table;
  work.out = out;
  const auto cut = [&](ConstTensorView there) {
    work.frames = there;
    cuda::cut_patches(context, work);
  };
  if (frames.device().is_cpu()) {
    FrameStage::of(context.device).pass(context, frames, cut);
  } else {
    cut(frames);
  }
  return out;
}

}  // namespace kinora
