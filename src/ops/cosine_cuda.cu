#include "ops/cuda_kernels.h"
#include "ops/rows_cuda.h"

namespace kinora::cuda {
namespace {

// A block takes one row.
template <int pack>
__global__ void cosine_kernel(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                              float* out, int64_t out_stride, int64_t width) {
  __shared__ float scratch[32];
  const int64_t row = blockIdx.x;
  const float* left = a + row * a_stride;
  const float* right = b + row * b_stride;
  float lefts = 0, rights = 0, both = 0;
  for (int64_t at = static_cast<int64_t>(threadIdx.x) * pack; at < width;
       at += static_cast<int64_t>(blockDim.x) * pack) {
    const auto x = Pack<float, pack>::load(left + at);
    const auto y = Pack<float, pack>::load(right + at);
#pragma unroll
    for (int k = 0; k < pack; ++k) {
      lefts += x.values[k] * x.values[k];
      rights += y.values[k] * y.values[k];
      both += x.values[k] * y.values[k];
    }
  }
  lefts = block_sum(lefts, scratch);
  rights = block_sum(rights, scratch);
  both = block_sum(both, scratch);
  if (threadIdx.x != 0) return;
  const float lengths = sqrtf(lefts) * sqrtf(rights);
  out[row * out_stride] = lengths == 0 ? 0.0f : both / lengths;
}

}  // namespace

void cosine_rows(const Context& context, ConstTensorView a, ConstTensorView b, TensorView out) {
  const int64_t rows = a.size(0), width = a.size(1);
  if (rows == 0) return;
  const auto threads = static_cast<unsigned int>(std::clamp<int64_t>(width / 4 / 32 * 32, 32, 256));
  launch({static_cast<unsigned int>(rows), threads, 0, enter(context)}, "cosine_rows",
         all_take_fours({a, b}) ? cosine_kernel<4> : cosine_kernel<1>, device_data<float>(a),
         a.stride(0), device_data<float>(b), b.stride(0), device_data<float>(out), out.stride(0),
         width);
}

}  // namespace kinora::cuda
