// How alike rows are: visual tokens at the same place of two steps, or a token and the mean of its
// frame. Used by what leaves tokens out before the decoder (engine/tokens).
#pragma once

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// out[i] = a[i] · b[i] / (‖a[i]‖ ‖b[i]‖); 0 where one of them has no length.
//   a, b  [rows, d] f32, rows strided at will: a stride of 0 compares with one row
//   out   [rows] f32
void cosine_rows(const Context& context, ConstTensorView a, ConstTensorView b, TensorView out);

}  // namespace kinora
