#include "base/no_cuda.h"

#include "ops/cuda_kernels.h"

namespace kinora::cuda {

void rms_norm(const Context&, ConstTensorView, ConstTensorView, float, TensorView) { no_cuda(); }
void layer_norm(const Context&, ConstTensorView, ConstTensorView, ConstTensorView, float,
                TensorView) {
  no_cuda();
}
void silu(const Context&, ConstTensorView, TensorView) { no_cuda(); }
void silu_mul(const Context&, ConstTensorView, ConstTensorView, TensorView) { no_cuda(); }
void gelu_erf(const Context&, ConstTensorView, TensorView) { no_cuda(); }
void gelu_tanh(const Context&, ConstTensorView, TensorView) { no_cuda(); }
void rope_table(const Context&, const RopeColumns&, TensorView, TensorView) { no_cuda(); }
void apply_rope(const Context&, ConstTensorView, ConstTensorView, TensorView) { no_cuda(); }
void rerotate(const Context&, std::span<const double>, std::span<const int32_t>,
              std::span<const std::array<int32_t, 3>>, TensorView) {
  no_cuda();
}
void rope_split(const Context&, ConstTensorView, ConstTensorView, ConstTensorView, TensorView,
                TensorView, TensorView) {
  no_cuda();
}
void pack_rows(const Context&, ConstTensorView, TensorView) { no_cuda(); }
void widen_rows(const Context&, ConstTensorView, TensorView) { no_cuda(); }
void gather_rows(const Context&, ConstTensorView, std::span<const int32_t>, TensorView) {
  no_cuda();
}
void scatter_rows(const Context&, ConstTensorView, std::span<const int32_t>, TensorView) {
  no_cuda();
}
void add_rows(const Context&, ConstTensorView, std::span<const int32_t>, TensorView) { no_cuda(); }
void add(const Context&, ConstTensorView, ConstTensorView, TensorView) { no_cuda(); }
void add_bias(const Context&, ConstTensorView, TensorView) { no_cuda(); }
void scale(const Context&, ConstTensorView, float, TensorView) { no_cuda(); }
void convert(const Context&, ConstTensorView, TensorView) { no_cuda(); }
void softmax(const Context&, ConstTensorView, TensorView, float) { no_cuda(); }
void cosine_rows(const Context&, ConstTensorView, ConstTensorView, TensorView) { no_cuda(); }
std::vector<int64_t> argmax_rows(const Context&, ConstTensorView) { no_cuda(); }
std::vector<Candidate> top_k(const Context&, ConstTensorView, int64_t) { no_cuda(); }
std::vector<RankedRow> top_k_rows(const Context&, ConstTensorView, int64_t) { no_cuda(); }
void rank_rows(const Context&, const RankWork&) { no_cuda(); }
int64_t rank_room(int64_t, int64_t) { no_cuda(); }
double exp_sum(const Context&, ConstTensorView, float, double) { no_cuda(); }
void bilinear_pool(const Context&, ConstTensorView, TensorView) { no_cuda(); }
void window_pool(const Context&, ConstTensorView, int64_t, cpu::PoolKind, TensorView) { no_cuda(); }
void matmul(const Context&, const MatmulWork&) { no_cuda(); }
void gated_matmul(const Context&, ConstTensorView, ConstTensorView, ConstTensorView, TensorView) {
  no_cuda();
}
bool gated_in_one_pass(const Context&, ConstTensorView, ConstTensorView, TensorView) { no_cuda(); }

bool norm_matmul(const Context&, const MatmulWork&, ConstTensorView, float, bool) { no_cuda(); }
bool packed_matmul(const Context&, const MatmulWork&, const PackedStrips&, const RowNorm&, int) {
  no_cuda();
}
void widen_strips(const Context&, const PackedStrips&, int64_t, int64_t, TensorView) { no_cuda(); }

}  // namespace kinora::cuda
