// Softmax over rows: sampling probabilities and small attention maps. (Attention proper runs fused
// in attention/.)
#pragma once

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// out = exp(scale × x − max) / sum over the innermost dimension. f32; out may be x. A row whose
// entries are all −∞ gives zeros.
void softmax(const Context& context, ConstTensorView x, TensorView out, float scale = 1.0f);

}  // namespace kinora
