// Element-wise activations of feed-forward layers. All are f32, [rows, d] or any other rank with
// the innermost dimension contiguous, and may run in place (out the same view as an input).
#pragma once

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// out = x / (1 + exp(−x))
void silu(const Context& context, ConstTensorView x, TensorView out);

// out = silu(gate) × up: the gated feed-forward of the decoders.
void silu_mul(const Context& context, ConstTensorView gate, ConstTensorView up, TensorView out);

// out = x / 2 × (1 + erf(x / √2)): "gelu" in Hugging Face configs.
void gelu_erf(const Context& context, ConstTensorView x, TensorView out);

// out = x / 2 × (1 + tanh(√(2/π) (x + 0.044715 x³))): "gelu_pytorch_tanh" and "gelu_new".
void gelu_tanh(const Context& context, ConstTensorView x, TensorView out);

}  // namespace kinora
