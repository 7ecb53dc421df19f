#include "base/cuda_support.h"
#include "model/vision/gpu_patches.h"

namespace kinora::cuda {
namespace {

struct PatchShape {
  int64_t frame_stride, row_stride;  // bytes
  int32_t frames, span, merge, patch, down, across, columns;
};

// A block a patch; threads go over its columns (channel, frame of the unit, y, x).
template <typename Out>
__global__ void patch_kernel(const uint8_t* frames, const float* table, Out* out,
                             PatchShape shape) {
  const int64_t row = blockIdx.x;
  const int32_t inside = shape.merge * shape.merge;
  int64_t rest = row / inside;
  const int32_t inner = static_cast<int32_t>(row % inside);
  const int32_t block_x = static_cast<int32_t>(rest % shape.across);
  rest /= shape.across;
  const int32_t block_y = static_cast<int32_t>(rest % shape.down);
  const int64_t unit = rest / shape.down;
  const int32_t top = (block_y * shape.merge + inner / shape.merge) * shape.patch;
  const int32_t left = (block_x * shape.merge + inner % shape.merge) * shape.patch;
  const int32_t area = shape.patch * shape.patch;
  const int32_t own = 3 * shape.span * area;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < shape.columns;
       i += static_cast<int32_t>(blockDim.x)) {
    float value = 0;
    if (i < own) {
      const int32_t channel = i / (shape.span * area), at = i % area;
      const int64_t frame =
          min(unit * shape.span + i / area % shape.span, static_cast<int64_t>(shape.frames) - 1);
      const int64_t y = top + at / shape.patch, x = left + at % shape.patch;
      const uint8_t byte =
          frames[frame * shape.frame_stride + y * shape.row_stride + x * 3 + channel];
      value = table[channel * 256 + byte];
    }
    out[row * shape.columns + i] = from_float<Out>(value);
  }
}

}  // namespace

void cut_patches(const Context& context, const PatchWork& work) {
  const ConstTensorView& frames = work.frames;
  const PatchShape shape{frames.stride(0),
                         frames.stride(1),
                         static_cast<int32_t>(frames.size(0)),
                         static_cast<int32_t>(work.order.span),
                         static_cast<int32_t>(work.order.merge),
                         static_cast<int32_t>(work.order.patch),
                         static_cast<int32_t>(work.down),
                         static_cast<int32_t>(work.across),
                         static_cast<int32_t>(work.out.size(1))};
  if (work.out.elements() == 0) return;
  const Launch how{static_cast<unsigned int>(work.out.size(0)), 256, 0, enter(context)};
  with_activation(work.out.dtype(), [&]<typename Out>(Out) {
    launch(how, "cut_patches", patch_kernel<Out>, device_data<uint8_t>(frames),
           device_data<float>(work.table), device_data<Out>(work.out), shape);
  });
}

}  // namespace kinora::cuda
