// This build has no CUDA compiler: no tensor can live on a GPU, so nothing gets here but a caller
// that names one anyway.
#include "base/error.h"
#include "ops/cuda_kernels.h"

namespace kinora::cuda {
namespace {

[[noreturn]] void refuse(const Context& context) {
  throw Error(ErrorKind::unsupported, "this kinora was built without CUDA and cannot run on " +
                                          to_string(context.device) + "; use the device cpu");
}

}  // namespace

void rms_norm(const Context& context, ConstTensorView, ConstTensorView, float, TensorView) {
  refuse(context);
}
void add_rms_norm(const Context& context, ConstTensorView, TensorView, ConstTensorView, float,
                  TensorView) {
  refuse(context);
}
void layer_norm(const Context& context, ConstTensorView, ConstTensorView, ConstTensorView, float,
                TensorView) {
  refuse(context);
}
void silu(const Context& context, ConstTensorView, TensorView) { refuse(context); }
void silu_mul(const Context& context, ConstTensorView, ConstTensorView, TensorView) {
  refuse(context);
}
void gelu_erf(const Context& context, ConstTensorView, TensorView) { refuse(context); }
void gelu_tanh(const Context& context, ConstTensorView, TensorView) { refuse(context); }
void rope_table(const Context& context, const RopeColumns&, TensorView, TensorView) {
  refuse(context);
}
void apply_rope(const Context& context, ConstTensorView, ConstTensorView, TensorView) {
  refuse(context);
}
void rope_split(const Context& context, ConstTensorView, ConstTensorView, ConstTensorView,
                TensorView, TensorView, TensorView) {
  refuse(context);
}
void gather_rows(const Context& context, ConstTensorView, std::span<const int32_t>, TensorView) {
  refuse(context);
}
void scatter_rows(const Context& context, ConstTensorView, std::span<const int32_t>, TensorView) {
  refuse(context);
}
void add(const Context& context, ConstTensorView, ConstTensorView, TensorView) { refuse(context); }
void add_bias(const Context& context, ConstTensorView, TensorView) { refuse(context); }
void scale(const Context& context, ConstTensorView, float, TensorView) { refuse(context); }
void convert(const Context& context, ConstTensorView, TensorView) { refuse(context); }
void softmax(const Context& context, ConstTensorView, TensorView, float) { refuse(context); }
int64_t argmax(const Context& context, ConstTensorView) { refuse(context); }
std::vector<Candidate> top_k(const Context& context, ConstTensorView, int64_t) { refuse(context); }
double exp_sum(const Context& context, ConstTensorView, float, double) { refuse(context); }
void bilinear_pool(const Context& context, ConstTensorView, TensorView) { refuse(context); }
void window_pool(const Context& context, ConstTensorView, int64_t, cpu::PoolKind, TensorView) {
  refuse(context);
}
void matmul(const Context& context, const MatmulWork&) { refuse(context); }
void gated_matmul(const Context& context, ConstTensorView, ConstTensorView, ConstTensorView,
                  TensorView) {
  refuse(context);
}

bool norm_matmul(const Context& context, const MatmulWork&, ConstTensorView, float, bool) {
  refuse(context);
}

}  // namespace kinora::cuda
