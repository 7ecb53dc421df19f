// Runs attention on a GPU: any plan, and the two that need no lists. Arguments are checked by the
// callers (runner.cc, dense.cc, window_attention.cc). In a build without CUDA no_cuda.cc
// stands in the place of runner_cuda.cu. Private to attention/.
//
// Queries, rows and output may each be f32 or bf16. bf16 rows run on tensor cores with queries
// rounded to bf16; f32 rows run in f32 throughout. The host never waits for the device.
#pragma once

#include <cstdint>
#include <span>

#include "attention/runner.h"

namespace kinora::cuda_attention {

// The plan is valid; options.state points into device memory.
void run_plan(const Context& context, const Plan& plan, const QueryView& queries,
              const RowSet& rows, float scale, TensorView out, const RunOptions& options);

// Every query reads every row that is not later than itself.
void run_dense(const Context& context, const QueryView& queries, const RowSet& rows, float scale,
               TensorView out, const RunOptions& options = {});

// Rows [offsets[w], offsets[w + 1]) read one another.
void run_windows(const Context& context, ConstTensorView q, ConstTensorView k, ConstTensorView v,
                 std::span<const int32_t> offsets, float scale, TensorView out);

}  // namespace kinora::cuda_attention
