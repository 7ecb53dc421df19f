#include "base/no_cuda.h"

#include "attention/cuda/decode_cuda.h"
#include "attention/cuda/mass_cuda.h"
#include "attention/cuda/runner_cuda.h"

namespace kinora {

void cuda_attention::run_plan(const Context&, const Plan&, const QueryView&, const RowSet&, float,
                              TensorView, const RunOptions&) {
  no_cuda();
}
void cuda_attention::run_dense(const Context&, const QueryView&, const RowSet&, float, TensorView,
                               const RunOptions&) {
  no_cuda();
}
void cuda_attention::run_windows(const Context&, ConstTensorView, ConstTensorView, ConstTensorView,
                                 std::span<const int32_t>, float, TensorView) {
  no_cuda();
}
void cuda_attention::add_mass(const Context&, int, const QueryView&, std::span<const RowSet>, float,
                              int64_t, RowMass&) {
  no_cuda();
}
void cuda_attention::accept_mass(const Context&, TensorView, ConstTensorView, int64_t,
                                 std::span<const int32_t>) {
  no_cuda();
}

int decode_splits(const Context&, int, int64_t) { no_cuda(); }
size_t decode_scratch_bytes(const Context&, const DecodeAttention&) { no_cuda(); }
bool decode_turns(const Context&, const DecodeAttention&) { no_cuda(); }
void decode_attention(const Context&, const DecodeAttention&) { no_cuda(); }

}  // namespace kinora
