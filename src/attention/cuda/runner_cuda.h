// Runs attention on a GPU: any plan, and the two that need no lists. Arguments are checked by the
// callers (runner.cc, dense.cc, window_attention.cc). In a build without CUDA no_cuda.cc
// stands in the place of runner_cuda.cu. Private to attention/.
//
// Queries, rows and output may each be f32 or bf16; callers widen rows of 8 bits (wide_rows.h).
// bf16 rows run on tensor cores with queries rounded to bf16; f32 rows run in f32 throughout. The
// host never waits for the device.
#pragma once

#include <cstdint>
#include <span>

#include "attention/cuda/device_plan.h"
#include "attention/runner.h"

namespace kinora::cuda_attention {

// The plan is valid; options.state points into device memory.
void run_plan(const Context& context, const Plan& plan, const QueryView& queries,
              const RowSet& rows, float scale, TensorView out, const RunOptions& options);

// A plan of the host as lists on the device, for `out` and tensors laid out like these.
DevicePlan device_plan(const Context& context, const Plan& plan, const QueryView& queries,
                       const RowSet& rows, const ConstTensorView& out);
// Runs it: launches only.
void run_plan(const Context& context, const DevicePlan& plan, const QueryView& queries,
              const RowSet& rows, float scale, TensorView out, const RunOptions& options = {});

// Every query reads every row that is not later than itself.
void run_dense(const Context& context, const QueryView& queries, const RowSet& rows, float scale,
               TensorView out, const RunOptions& options = {});

// What a measuring pass writes for query i of head h: at data[(i · heads + h) · stride + b] the
// score log2 Σ 2^(s · log2 e) of the 32 keys from 32 b on; −∞ where it reads none of them. Blocks
// that lie after the query may stay unwritten.
struct BlockScores {
  float* data = nullptr;
  int64_t stride = 0;
};
// Dense as above; scores on the way.
void run_measured(const Context& context, const QueryView& queries, const RowSet& rows, float scale,
                  TensorView out, SoftmaxState state, BlockScores scores);

// Rows [offsets[w], offsets[w + 1]) read one another.
void run_windows(const Context& context, ConstTensorView q, ConstTensorView k, ConstTensorView v,
                 std::span<const int32_t> offsets, float scale, TensorView out);

}  // namespace kinora::cuda_attention
