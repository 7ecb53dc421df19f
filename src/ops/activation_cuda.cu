#include "ops/cuda_kernels.h"
#include "ops/rows_cuda.h"

namespace kinora::cuda {
namespace {

struct Silu {
  __device__ float operator()(float x, float) const { return x / (1.0f + expf(-x)); }
};
struct SiluMul {
  __device__ float operator()(float gate, float up) const {
    return gate / (1.0f + expf(-gate)) * up;
  }
};
struct GeluErf {
  __device__ float operator()(float x, float) const {
    return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
  }
};
struct GeluTanh {
  __device__ float operator()(float x, float) const {
    const float inner = 0.79788456080286536f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanhf(inner));
  }
};

template <class Function>
void apply(const Context& context, const char* what, ConstTensorView x, ConstTensorView other,
           TensorView out) {
  with_activation(out.dtype(), [&]<typename T>(T) {
    map_elements<T, T, T>(context, what, x, other, out, Function());
  });
}

}  // namespace

void silu(const Context& context, ConstTensorView x, TensorView out) {
  apply<Silu>(context, "silu", x, x, out);
}
void silu_mul(const Context& context, ConstTensorView gate, ConstTensorView up, TensorView out) {
  apply<SiluMul>(context, "silu_mul", gate, up, out);
}
void gelu_erf(const Context& context, ConstTensorView x, TensorView out) {
  apply<GeluErf>(context, "gelu_erf", x, x, out);
}
void gelu_tanh(const Context& context, ConstTensorView x, TensorView out) {
  apply<GeluTanh>(context, "gelu_tanh", x, x, out);
}

}  // namespace kinora::cuda
