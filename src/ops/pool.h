// Shrinking grids of visual tokens: the video pooling of LLaVA-OneVision and LLaVA-Video.
// x is [h, w, c] or [frames, h, w, c] f32, out the same with its own height and width.
#pragma once

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// Bilinear interpolation to the size of out, as torch's F.interpolate(mode="bilinear",
// align_corners=False): pixel centres at half positions, edges clamped, no anti-aliasing.
void bilinear_pool(const Context& context, ConstTensorView x, TensorView out);

// Mean or maximum over `window` × `window` tokens, stride = window; what does not fill a window at
// the right and bottom is dropped: out is [h / window, w / window, c].
void average_pool(const Context& context, ConstTensorView x, int64_t window, TensorView out);
void max_pool(const Context& context, ConstTensorView x, int64_t window, TensorView out);

}  // namespace kinora
