#include "ops/matmul_cuda.h"

#include "ops/rows_cuda.h"

namespace kinora::cuda {
namespace {

// For shapes that cuBLASLt refuses: an element a thread.
template <typename A, typename Out>
__global__ void plain_kernel(const A* a, int64_t a_stride, const A* weight, int64_t weight_stride,
                             Out* out, int64_t out_stride, int64_t m, int64_t n, int64_t k,
                             bool accumulate) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= m * n) return;
  const int64_t row = i / n, column = i - row * n;
  Out* target = out + row * out_stride + column;
  float sum = accumulate ? to_float(*target) : 0.0f;
  for (int64_t j = 0; j < k; ++j) {
    sum += to_float(a[row * a_stride + j]) * to_float(weight[column * weight_stride + j]);
  }
  *target = from_float<Out>(sum);
}

void matmul_plain(const Context& context, const MatmulWork& work) {
  const int64_t m = work.out.size(0), n = work.out.size(1);
  const Launch how{blocks_for(m * n, 256), 256, 0, enter(context)};
  with_activation(work.a.dtype(), [&]<typename A>(A) {
    with_activation(work.out.dtype(), [&]<typename Out>(Out) {
      launch(how, "matmul", plain_kernel<A, Out>, device_data<A>(work.a), work.a.stride(0),
             device_data<A>(work.weight), work.weight.stride(0), device_data<Out>(work.out),
             work.out.stride(0), m, n, work.a.size(1), work.accumulate);
    });
  });
}

}  // namespace

void matmul(const Context& context, const MatmulWork& work) {
  const int64_t m = work.out.size(0), n = work.out.size(1);
  if (m == 0 || n == 0) return;
  MatmulWork rest = work;
  Tensor wide;
  if (work.a.dtype() == DType::f32) {
    if (m <= few_rows) return matmul_few_f32(context, work, false);
    if (work.weight.dtype() != DType::f32) {
      wide = Tensor(DType::f32, work.weight.shape(), context.device);
      convert(context, work.weight, wide);
      rest.weight = wide;
    }
  } else if (matmul_stream(context, work, false)) {
    return;
  } else if (strips_fit(context, work, false)) {
    return matmul_strips(context, work, false);
  } else if (skinny_fits(context, work)) {
    return matmul_skinny(context, work, false);
  } else if (tiles_fit(context, work, false)) {
    return matmul_tiles(context, work, false);
  }
  if (work.a.size(1) > 0 && matmul_blas(context, rest)) return;
  matmul_plain(context, rest);
  if (work.bias.raw() != nullptr) add_bias(context, work.bias, work.out);
}

bool gated_in_one_pass(const Context& context, ConstTensorView a, ConstTensorView weight,
                       TensorView out) {
  const MatmulWork work{a, weight, {}, out, false};
  if (a.dtype() == DType::f32) return a.size(0) <= few_rows;
  return skinny_fits(context, work) || strips_fit(context, work, true) ||
         tiles_fit(context, work, true);
}

void gated_matmul(const Context& context, ConstTensorView a, ConstTensorView weight,
                  ConstTensorView bias, TensorView out) {
  const int64_t n = out.size(1);
  const MatmulWork work{a, weight, bias, out, false};
  if (a.dtype() == DType::f32 && a.size(0) <= few_rows) return matmul_few_f32(context, work, true);
  if (matmul_stream(context, work, true)) return;
  if (strips_fit(context, work, true)) return matmul_strips(context, work, true);
  if (skinny_fits(context, work)) return matmul_skinny(context, work, true);
  if (tiles_fit(context, work, true)) return matmul_tiles(context, work, true);
  Tensor both(out.dtype(), {a.size(0), 2 * n}, context.device);
  matmul(context, {a, weight, bias, both, false});
  silu_mul(context, both.view().columns(0, n), both.view().columns(n, n), out);
}

}  // namespace kinora::cuda
