// Products of normed rows, as at the start of both halves of a decoder layer. For one row, as in
// decoding, a GPU norms and multiplies in one pass.
#pragma once

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// Rows before their RMS norm.
struct NormedRows {
  ConstTensorView x;     // [m, k] f32
  ConstTensorView norm;  // [k] f32, bf16 or f16
  float epsilon = 1e-6f;
  TensorView room;  // [m, k] of the type in which to multiply; its contents are lost
};

// out = rms_norm(x) · weightᵀ + bias, as matmul with a = rms_norm(x) rounded to the room's type.
void norm_matmul(const Context& context, const NormedRows& rows, ConstTensorView weight,
                 ConstTensorView bias, TensorView out);

// The same with gated_matmul.
void norm_gated_matmul(const Context& context, const NormedRows& rows, ConstTensorView weight,
                       ConstTensorView bias, TensorView out);

}  // namespace kinora
