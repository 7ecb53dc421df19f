// This build has no CUDA compiler: no tensor can live on a GPU, so nothing gets here but a caller
// that names one anyway.
#include "attention/cuda/decode_cuda.h"
#include "attention/cuda/runner_cuda.h"
#include "base/error.h"

namespace kinora {
namespace {

[[noreturn]] void refuse(const Context& context) {
  throw Error(ErrorKind::unsupported, "this kinora was built without CUDA and cannot run on " +
                                          to_string(context.device) + "; use the device cpu");
}

}  // namespace

namespace cuda_attention {

void run_plan(const Context& context, const Plan&, const QueryView&, const RowsView&, float,
              TensorView, const RunOptions&) {
  refuse(context);
}
void run_dense(const Context& context, const QueryView&, const RowsView&, float, TensorView) {
  refuse(context);
}
void run_windows(const Context& context, ConstTensorView, ConstTensorView, ConstTensorView,
                 std::span<const int32_t>, float, TensorView) {
  refuse(context);
}

}  // namespace cuda_attention

int decode_splits(const Context& context, int, int64_t) { refuse(context); }
size_t decode_scratch_bytes(int64_t, int64_t, int64_t, int) { return 0; }
bool decode_turns(const Context&, const DecodeAttention&) { return false; }
void decode_attention(const Context& context, const DecodeAttention&) { refuse(context); }

}  // namespace kinora
