#include "memory/row_ops/mean_rows.h"

#include "base/cuda_support.h"

namespace kinora::cuda {
namespace {

__global__ void mean_of_rows(const float* rows, int64_t stride, const int32_t* begins,
                             int64_t width, float* out) {
  const int64_t column = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (column >= width) return;
  const int32_t begin = begins[blockIdx.x], end = begins[blockIdx.x + 1];
  double sum = 0;
  for (int32_t row = begin; row < end; ++row) sum += rows[row * stride + column];
  out[blockIdx.x * width + column] = static_cast<float>(sum / max(1, end - begin));
}

}  // namespace

void mean_rows(const Context& context, ConstTensorView rows, ConstTensorView begins,
               TensorView out) {
  const int64_t width = rows.size(1);
  const dim3 grid(static_cast<unsigned int>(out.size(0)), blocks_for(width, 128));
  launch({grid, 128, 0, enter(context)}, "mean_rows", mean_of_rows, device_data<float>(rows),
         rows.stride(0), device_data<int32_t>(begins), width, device_data<float>(out));
}

}  // namespace kinora::cuda
