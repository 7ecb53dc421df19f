// One linear layer: out = x · weightᵀ + bias, or added to what out holds. Used by the decoder and
// the vision towers.
#pragma once

#include "base/context.h"
#include "base/tensor.h"
#include "model/weights/weights.h"
#include "ops/matmul.h"
#include "ops/packed_strips.h"

namespace kinora {

inline void apply_linear(const Context& context, ConstTensorView x, const LinearWeights& linear,
                         TensorView out, bool accumulate = false, bool native_bf16 = false) {
  MatmulOptions options;
  if (linear.bias.defined()) options.bias = linear.bias.view();
  options.accumulate = accumulate;
  options.native_bf16 = native_bf16;
  if (linear.strips != nullptr) return matmul(context, x, *linear.strips, out, options);
  if (linear.packed != nullptr) return matmul(context, x, *linear.packed, out, options);
  matmul(context, x, linear.weight, out, options);
}

inline int64_t outputs_of(const LinearWeights& linear) {
  return linear.packed != nullptr ? linear.packed->rows() : linear.weight.size(0);
}

// The layer as one of several products of the same input.
inline MatmulPart part_of(const LinearWeights& linear, TensorView out) {
  return {linear.weight, linear.bias.defined() ? linear.bias.view() : ConstTensorView(), out,
          linear.packed.get()};
}

}  // namespace kinora
