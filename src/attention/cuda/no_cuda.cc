#include "base/no_cuda.h"

#include "attention/cuda/block_plan_cuda.h"
#include "attention/cuda/decode/decode_cuda.h"
#include "attention/cuda/delta_cuda.h"
#include "attention/cuda/device_plan.h"
#include "attention/cuda/fp8/fp8_rows.h"
#include "attention/cuda/fp8/runner_fp8.h"
#include "attention/cuda/lines/line_plan_cuda.h"
#include "attention/cuda/mass_cuda.h"
#include "attention/cuda/runner_cuda.h"

namespace kinora {

void cuda_attention::run_plan(const Context&, const Plan&, const QueryView&, const RowSet&, float,
                              TensorView, const RunOptions&) {
  no_cuda();
}
void cuda_attention::run_plan(const Context&, const DevicePlan&, const QueryView&, const RowSet&,
                              float, TensorView, const RunOptions&) {
  no_cuda();
}
cuda_attention::Kernel cuda_attention::choose_kernel(const Context&, const ConstTensorView&,
                                                     const RowSet&, const ConstTensorView&) {
  no_cuda();
}
CudaCut cuda_attention::cut_for(const Context&, Kernel) { no_cuda(); }
cuda_attention::DevicePlan cuda_attention::upload_plan(const Context&, Kernel, const CudaPlan&,
                                                       const CudaShape&) {
  no_cuda();
}
cuda_attention::DevicePlan cuda_attention::device_plan(const Context&, const Plan&,
                                                       const QueryView&, const RowSet&,
                                                       const ConstTensorView&) {
  no_cuda();
}
void cuda_attention::upload(const Context&, LineSpace&) { no_cuda(); }
RowSet cuda_attention::rows_of(const Context&, const LineSpace&, const RowSet&, Tensor&, Tensor&) {
  no_cuda();
}
cuda_attention::DeviceLines cuda_attention::find_lines(const Context&, const LineSpace&,
                                                       const QueryView&, const RowSet&, float,
                                                       std::span<const LineHead>) {
  no_cuda();
}
std::vector<cuda_attention::DevicePlan> cuda_attention::line_plans(const Context&, const LineSpace&,
                                                                   const QueryView&, const RowSet&,
                                                                   std::span<const LineHead>,
                                                                   const DeviceLines&,
                                                                   const ConstTensorView&) {
  no_cuda();
}
cuda_attention::DeviceBlocks cuda_attention::choose_blocks(const Context&, const QueryView&,
                                                           const SampledQueries&, const RowSet&,
                                                           float, const MomoOptions&, int64_t,
                                                           TensorView) {
  no_cuda();
}
cuda_attention::DevicePlan cuda_attention::block_plan(const Context&, const QueryView&,
                                                      const RowSet&, const BlockLayout&,
                                                      const DeviceBlocks&, const ConstTensorView&) {
  no_cuda();
}
Tensor cuda_attention::count_pairs(const Context&, const DevicePlan&) { no_cuda(); }
void cuda_attention::apply_delta(const Context&, ConstTensorView, std::span<const int32_t>,
                                 TensorView) {
  no_cuda();
}
bool cuda_attention::unbroken(const QueryView&, const RowSet&) { no_cuda(); }
void cuda_attention::run_measured(const Context&, const QueryView&, const RowSet&, float,
                                  TensorView, SoftmaxState, BlockScores) {
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

bool fp8_attention::runs_on(int) { return false; }
fp8_attention::Fp8Rows fp8_attention::round_rows(const Context&, const ConstTensorView&,
                                                 const RowSet&) {
  no_cuda();
}

int decode_splits(const Context&, int, int64_t) { no_cuda(); }
size_t decode_scratch_bytes(const Context&, const DecodeAttention&) { no_cuda(); }
bool decode_turns(const Context&, const DecodeAttention&) { no_cuda(); }
bool decode_shares(const Context&, const DecodeAttention&) { no_cuda(); }
void decode_attention(const Context&, const DecodeAttention&) { no_cuda(); }
void add_decode_mass(const Context&, std::span<const DecodeAttention>) { no_cuda(); }

}  // namespace kinora
