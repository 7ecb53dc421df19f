// Layer normalisation with weight and bias: the SigLIP vision tower.
#pragma once

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// out = (x − mean(x)) / sqrt(variance(x) + epsilon) × weight + bias, over the innermost dimension.
//   x, out        [rows, d] or [rows, heads, d] f32, outer dimensions strided at will; out may be x
//   weight, bias  [d] f32, bf16 or f16, both of one type
void layer_norm(const Context& context, ConstTensorView x, ConstTensorView weight,
                ConstTensorView bias, float epsilon, TensorView out);

}  // namespace kinora
