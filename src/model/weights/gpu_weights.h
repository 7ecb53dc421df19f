// Weights on their way to a GPU: stacked where one product replaces several, padded where rows
// would not start at 16 bytes, and converted to the type that the model computes in. Used by the
// decoder and the families when a model is loaded for a GPU.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "base/context.h"
#include "base/tensor.h"
#include "model/weights/weights.h"

namespace kinora {

// Rows of bf16 start at 16 bytes when their number of columns is a multiple of this.
constexpr int64_t gpu_row_multiple = 8;
inline int64_t padded_for_gpu(int64_t columns) {
  return (columns + gpu_row_multiple - 1) / gpu_row_multiple * gpu_row_multiple;
}

// What a GPU may round: nothing; activations to the type of bf16 weights, which themselves stay as
// they are; or f16 weights to bf16 as well.
enum class GpuPrecision { f32, of_weights, bf16 };
constexpr GpuPrecision gpu_precision(bool exact, bool round) {
  return exact ? GpuPrecision::f32 : round ? GpuPrecision::bf16 : GpuPrecision::of_weights;
}

// What activations are on the context's device; f32 on a CPU.
DType activation_type(const Context& context, DType weight_type, GpuPrecision precision);

// The matrices one under the other on the context's device, each with its rows and columns padded
// with zeros to multiples of `row_multiple` and `column_multiple`. Undefined ones are left out.
// With f32 activations the stored type is kept, else it becomes bf16.
Tensor stacked(const Context& context, std::span<const Tensor* const> matrices, DType activations,
               int64_t row_multiple = 1, int64_t column_multiple = 1);
inline Tensor stacked(const Context& context, std::initializer_list<const Tensor*> matrices,
                      DType activations, int64_t row_multiple = 1, int64_t column_multiple = 1) {
  return stacked(context, std::span(matrices.begin(), matrices.size()), activations, row_multiple,
                 column_multiple);
}
// Vectors one after the other, likewise, in the given type.
Tensor joined(const Context& context, std::initializer_list<const Tensor*> vectors, DType type,
              int64_t multiple = 1);

// A linear layer moved; its bias takes `bias_type`.
LinearWeights on_gpu(const Context& context, const LinearWeights& linear, DType activations,
                     DType bias_type, int64_t row_multiple = 1, int64_t column_multiple = 1);

}  // namespace kinora
