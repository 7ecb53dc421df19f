// Root-mean-square normalisation: every decoder layer, Qwen2.5-VL's vision blocks, and the q/k
// normalisation of Qwen3.
#pragma once

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// out = x / sqrt(mean(x²) + epsilon) × weight, over the innermost dimension.
//   x, out  [rows, d] or [rows, heads, d] f32, outer dimensions strided at will; out may be x
//   weight  [d] f32, bf16 or f16
void rms_norm(const Context& context, ConstTensorView x, ConstTensorView weight, float epsilon,
              TensorView out);

}  // namespace kinora
