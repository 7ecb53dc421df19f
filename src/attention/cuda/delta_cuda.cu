#include "attention/cuda/delta_cuda.h"

#include "base/cuda_support.h"
#include "ops/rows_cuda.h"

namespace kinora::cuda_attention {
namespace {

// A thread has one column of one measured query and those that follow it, so that it has read the
// sparse result before it changes it.  grid: (samples, heads)
template <typename T>
__global__ void delta_kernel(const T* dense, int64_t dense_stride, int64_t dense_head, T* out,
                             int64_t out_stride, int64_t out_head, int64_t count,
                             const int32_t* places, int32_t head_size) {
  const int64_t first = places[blockIdx.x];
  const int64_t last = blockIdx.x + 1 < gridDim.x ? places[blockIdx.x + 1] : count;
  dense += blockIdx.x * dense_stride + blockIdx.y * dense_head;
  out += blockIdx.y * out_head;
  for (int column = static_cast<int>(threadIdx.x); column < head_size;
       column += static_cast<int>(blockDim.x)) {
    const float delta =
        cuda::to_float(dense[column]) - cuda::to_float(out[first * out_stride + column]);
    // Several at once, so that one waits for memory while another does.
    constexpr int batch = 8;
    for (int64_t begin = first; begin < last; begin += batch) {
      T values[batch];
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        if (begin + i < last) values[i] = out[(begin + i) * out_stride + column];
      }
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        if (begin + i >= last) break;
        out[(begin + i) * out_stride + column] =
            cuda::from_float<T>(cuda::to_float(values[i]) + delta);
      }
    }
  }
}

}  // namespace

void apply_delta(const Context& context, ConstTensorView dense, std::span<const int32_t> places,
                 TensorView out) {
  if (places.empty()) return;
  if (dense.dtype() != out.dtype()) {
    throw Error(ErrorKind::internal, "apply_delta: both must have one type");
  }
  const cudaStream_t stream = cuda::enter(context);
  const Tensor told = cuda::upload(context, places);
  cuda::with_activation(out.dtype(), [&](auto zero) {
    using T = decltype(zero);
    cuda::launch(
        {dim3(static_cast<unsigned int>(places.size()), static_cast<unsigned int>(out.size(1))),
         128, 0, stream},
        "delta correction", delta_kernel<T>, cuda::device_data<T>(dense), dense.stride(0),
        dense.stride(1), cuda::device_data<T>(out), out.stride(0), out.stride(1), out.size(0),
        cuda::device_data<int32_t>(told.view()), static_cast<int32_t>(out.size(2)));
  });
}

}  // namespace kinora::cuda_attention
