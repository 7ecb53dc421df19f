// Products of few rows in f32: a warp an output column, nothing is rounded.
#include "ops/matmul_cuda.h"
#include "ops/matmul_parts_cuda.cuh"

namespace kinora::cuda {
namespace {

struct FewShape {
  const float* a;
  const void* weight;
  const void* bias;  // null: none
  DType bias_type;
  bool accumulate;
  int m;
  int64_t n, k, a_stride, weight_stride, out_stride;
};

// gated: row i of the weights and row n + i make one output.
template <bool gated, typename Weight>
__global__ void few_f32_kernel(FewShape shape, float* out) {
  constexpr int parts = gated ? 2 : 1;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (column >= shape.n) return;
  const auto* weight = static_cast<const Weight*>(shape.weight) + column * shape.weight_stride;
  float sum[parts][few_rows] = {};
  for (int64_t j = lane; j < shape.k; j += 32) {
    float value[parts];
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      value[part] = to_float(weight[part * shape.n * shape.weight_stride + j]);
    }
#pragma unroll
    for (int row = 0; row < few_rows; ++row) {
      if (row >= shape.m) continue;
      const float factor = shape.a[row * shape.a_stride + j];
#pragma unroll
      for (int part = 0; part < parts; ++part) sum[part][row] += factor * value[part];
    }
  }
  const auto bias = [&](int64_t at) { return bias_of(shape.bias, shape.bias_type, at); };
#pragma unroll
  for (int row = 0; row < few_rows; ++row) {
    if (row >= shape.m) break;
    float total = warp_sum(sum[0][row]) + bias(column);
    if constexpr (gated) {
      const float up = warp_sum(sum[1][row]) + bias(shape.n + column);
      total = total / (1.0f + expf(-total)) * up;
    }
    if (lane != 0) continue;
    float* target = out + row * shape.out_stride + column;
    *target = total + (shape.accumulate ? *target : 0.0f);
  }
}

}  // namespace

void matmul_few_f32(const Context& context, const MatmulWork& work, bool gated) {
  const int64_t m = work.out.size(0), n = work.out.size(1);
  if (m == 0 || n == 0) return;
  const FewShape shape{device_data<float>(work.a),
                       work.weight.raw(),
                       work.bias.raw(),
                       work.bias.dtype(),
                       work.accumulate,
                       static_cast<int>(m),
                       n,
                       work.a.size(1),
                       work.a.stride(0),
                       work.weight.stride(0),
                       work.out.stride(0)};
  const Launch how{blocks_for(n, 4), 128, 0, enter(context)};
  with_float(work.weight.dtype(), [&]<typename Weight>(Weight) {
    launch(how, "matmul", gated ? few_f32_kernel<true, Weight> : few_f32_kernel<false, Weight>,
           shape, device_data<float>(work.out));
  });
}

}  // namespace kinora::cuda
