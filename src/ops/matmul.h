// Matrix products with weights as Hugging Face stores them: out = a · weightᵀ (+ bias). The work of
// every projection, feed-forward layer and output head in model/. Weights stay in the type they
// were stored in and are widened on the way into registers or cache, never in memory.
#pragma once

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

struct MatmulOptions {
  ConstTensorView bias;      // [n] f32, bf16 or f16; a default view means none
  bool accumulate = false;   // out += the product (residual connections) instead of out =
  bool native_bf16 = false;  // with bf16 weights: round a to bf16 too and use the CPU's bf16
                             // instructions where native_bf16_available(); else no effect
};

// out[m, n] = sum over k of a[m, k] × weight[n, k] + bias[n], accumulated in f32.
//   a       [m, k] f32
//   weight  [n, k] f32, bf16 or f16
//   out     [m, n] f32; must not overlap a
// Rows of all three may be strided. A few rows (decoding) read the weights once, at memory speed;
// more rows run a blocked product on all threads. Each element of out is computed in an order that
// does not depend on the number of threads.
void matmul(const Context& context, ConstTensorView a, ConstTensorView weight, TensorView out,
            const MatmulOptions& options = {});

// Whether this CPU multiplies bf16 matrices natively and kinora uses it.
bool native_bf16_available();

}  // namespace kinora
