// Frames cut into patches on a GPU: bytes go up, are normalised and put in the processor's order
// there. Used by the processors.
#pragma once

#include <cstdint>

#include "base/context.h"
#include "base/tensor.h"
#include "model/vision/processor_pixels.h"

namespace kinora {

// `span` frames make a unit; patches come in blocks of merge × merge, block by block in raster
// order, and inside a block likewise. Span and merge of 1 give plain raster order.
struct PatchOrder {
  int64_t span = 1;
  int64_t merge = 1;
  int64_t patch = 14;
};

// Frames u8 [n, height, width, 3], on the host or already on the device → rows [units × patches,
// format.columns] on the context's device; columns go by channel, frame of the unit, y, x. A short
// last unit repeats its last frame. What does not fill a block at the right and bottom is left out.
Tensor gpu_patches(const Context& context, ConstTensorView frames, const PatchOrder& order,
                   const PixelNormalizer& normalizer, const PatchFormat& format);

namespace cuda {
struct PatchWork {
  ConstTensorView frames;  // u8, on the device
  ConstTensorView table;   // f32 [3, 256]
  TensorView out;          // f32 or bf16
  PatchOrder order;
  int64_t down = 0, across = 0;  // blocks
};
void cut_patches(const Context& context, const PatchWork& work);
}  // namespace cuda

}  // namespace kinora
