// Sums, scaling and changes of type, element by element. Views of any rank with equal shapes, outer
// dimensions strided at will; out may be an input.
#pragma once

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// out = a + b, all f32.
void add(const Context& context, ConstTensorView a, ConstTensorView b, TensorView out);

// x += bias for every row: x [..., d] f32, bias [d] f32, bf16 or f16.
void add_bias(const Context& context, ConstTensorView bias, TensorView x);

// out = x × factor, f32.
void scale(const Context& context, ConstTensorView x, float factor, TensorView out);

// Between any two of f32, bf16 and f16, or a plain copy when the types are equal. Rounds to
// nearest, ties to even. x and out do not overlap unless they are the same view.
void convert(const Context& context, ConstTensorView x, TensorView out);

}  // namespace kinora
