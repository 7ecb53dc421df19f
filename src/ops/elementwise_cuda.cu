#include "ops/cuda_kernels.h"
#include "ops/rows_cuda.h"

namespace kinora::cuda {
namespace {

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Scaled {
  float factor;
  __device__ float operator()(float a, float) const { return a * factor; }
};
struct Same {
  __device__ float operator()(float a, float) const { return a; }
};

// x[row] += bias
template <typename X, typename Bias>
__global__ void bias_kernel(const Bias* bias, X* x, DeviceRows rows, int64_t count, int64_t width) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count * width;
       i += step) {
    const int64_t row = i / width, column = i - row * width;
    X* at = x + rows.offset(row) + column;
    *at = from_float<X>(to_float(*at) + to_float(bias[column]));
  }
}

}  // namespace

void add(const Context& context, ConstTensorView a, ConstTensorView b, TensorView out) {
  with_activation(out.dtype(),
                  [&]<typename T>(T) { map_elements<T, T, T>(context, "add", a, b, out, Sum()); });
}

void add_bias(const Context& context, ConstTensorView bias, TensorView x) {
  const int64_t rows = rows_of(x), width = width_of(x);
  if (rows * width == 0) return;
  const cudaStream_t stream = enter(context);
  const Launch how{strided_blocks(context, rows * width, 256), 256, 0, stream};
  with_activation(x.dtype(), [&]<typename X>(X) {
    with_float(bias.dtype(), [&]<typename Bias>(Bias) {
      launch(how, "add_bias", bias_kernel<X, Bias>, device_data<Bias>(bias), device_data<X>(x),
             DeviceRows(x), rows, width);
    });
  });
}

void scale(const Context& context, ConstTensorView x, float factor, TensorView out) {
  with_activation(out.dtype(), [&]<typename T>(T) {
    map_elements<T, T, T>(context, "scale", x, x, out, Scaled{factor});
  });
}

void convert(const Context& context, ConstTensorView x, TensorView out) {
  with_float(x.dtype(), [&]<typename From>(From) {
    with_float(out.dtype(), [&]<typename To>(To) {
      map_elements<From, From, To>(context, "convert", x, x, out, Same());
    });
  });
}

}  // namespace kinora::cuda
