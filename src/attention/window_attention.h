// Attention of the vision towers: tokens see all tokens of their own window, both ways, and no
// others. With one window per picture this is full attention within each picture.
#pragma once

#include <cstdint>
#include <span>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// q, k, v, out: [n, heads, head size] f32; rows and heads may be strided (slices of a fused qkv).
// offsets: window w is the rows [offsets[w], offsets[w + 1]); the first is 0, the last n, never
// decreasing. An empty window is allowed.
void attend_windows(const Context& context, ConstTensorView q, ConstTensorView k, ConstTensorView v,
                    std::span<const int32_t> offsets, float scale, TensorView out);

}  // namespace kinora
