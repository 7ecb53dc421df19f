// Softmax over rows: sampling probabilities and small attention maps. (Attention proper runs fused
// in attention/.)
#pragma once

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// out = exp(scale × x − max) / sum over the innermost dimension. f32; out may be x. A row whose
// entries are all −∞ gives zeros.
void softmax(const Context& context, ConstTensorView x, TensorView out, float scale = 1.0f);

// Σ exp((x[i] − highest) × factor) over x [n] f32, added in double precision; NaN left out. With
// `highest` the largest entry it is the mass that sampling shares out.
double exp_sum(const Context& context, ConstTensorView x, float highest, double factor);

}  // namespace kinora
