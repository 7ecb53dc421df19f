#include "model/weights/gpu_weights.h"

#include "base/gpu.h"
#include "ops/elementwise.h"

namespace kinora {
namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Moves a host matrix into part of a device matrix, converting on the device.
void place(const Context& context, const Tensor& source, TensorView target) {
  const Tensor there = source.to(context.device);
  convert(context, there, target);
}

}  // namespace

DType activation_type(const Context& context, DType weight_type, GpuPrecision precision) {
  if (context.device.is_cpu() || precision == GpuPrecision::f32) return DType::f32;
  const bool narrow =
      weight_type == DType::bf16 || (weight_type == DType::f16 && precision == GpuPrecision::bf16);
  return narrow ? DType::bf16 : DType::f32;
}

Tensor stacked(const Context& context, std::span<const Tensor* const> matrices, DType activations,
               int64_t row_multiple, int64_t column_multiple) {
  int64_t rows = 0, columns = 0;
  DType stored = DType::f32;
  for (const Tensor* matrix : matrices) {
    if (!matrix->defined()) continue;
    rows += round_up(matrix->size(0), row_multiple);
    columns = matrix->size(1);
    stored = matrix->dtype();
  }
  // One type for all: parts stored in different ones are widened.
  for (const Tensor* matrix : matrices) {
    if (matrix->defined() && matrix->dtype() != stored) stored = DType::f32;
  }
  const DType type = activations == DType::f32 ? stored : DType::bf16;
  Tensor result(type, {rows, round_up(columns, column_multiple)}, context.device);
  clear_async(context, result.view().raw(), static_cast<size_t>(result.bytes()));
  int64_t row = 0;
  for (const Tensor* matrix : matrices) {
    if (!matrix->defined()) continue;
    place(context, *matrix, result.view().rows(row, matrix->size(0)).columns(0, columns));
    row += round_up(matrix->size(0), row_multiple);
  }
  return result;
}

Tensor joined(const Context& context, std::initializer_list<const Tensor*> vectors, DType type,
              int64_t multiple) {
  int64_t length = 0;
  for (const Tensor* vector : vectors) {
    if (!vector->defined()) return {};
    length += round_up(vector->size(0), multiple);
  }
  Tensor result(type, {length}, context.device);
  clear_async(context, result.view().raw(), static_cast<size_t>(result.bytes()));
  int64_t at = 0;
  for (const Tensor* vector : vectors) {
    place(context, *vector, result.view().rows(at, vector->size(0)));
    at += round_up(vector->size(0), multiple);
  }
  return result;
}

LinearWeights on_gpu(const Context& context, const LinearWeights& linear, DType activations,
                     DType bias_type, int64_t row_multiple, int64_t column_multiple) {
  return {stacked(context, {&linear.weight}, activations, row_multiple, column_multiple),
          joined(context, {&linear.bias}, bias_type, row_multiple)};
}

}  // namespace kinora
