// Executes any plan on the device of the context: the one place where attention is computed.
#pragma once

#include <cstdint>

#include "attention/attention.h"
#include "attention/attention_dtype.h"
#include "attention/plan/plan.h"

namespace kinora {

// What merging partial results needs besides the output: per query and head the largest score
// (scale · q · k, natural units) and Σ exp(score − max). Where nothing was read: −∞ and 0.
struct SoftmaxState {
  float* max = nullptr;  // [count, heads]
  float* sum = nullptr;  // [count, heads]
};

// Receives the weight of every block of keys while a plan runs (MOMO's measuring pass). Called from
// several threads, never at once for the same query and head; blocks of a query in list order.
class BlockObserver {
 public:
  virtual ~BlockObserver() = default;
  virtual int64_t block_size() const = 0;  // 32 or 64 keys, counted along a tile's list
  // score[i] = log2 Σ 2^(s · log2 e) over the block's keys for row i of the piece: the query
  // query[i] of head head[i]; −∞ where it reads none of them. `block` counts from 0.
  virtual void observe(int64_t block, int64_t count, const int32_t* query, const int32_t* head,
                       const float* score) = 0;
};

// How a plan is run.
struct RunOptions {
  SoftmaxState state{};  // filled when its pointers are set
  // Output and state already hold attention over other rows: the result covers both. Needs both
  // halves of the state.
  bool onto = false;
  BlockObserver* observer = nullptr;  // CPU only
  double* tile_seconds = nullptr;     // [tiles]: the time spent on each is added; CPU only
  AttentionDtype dtype = AttentionDtype::bf16;  // GPU only
  // FP8 is for calls of so many queries: for fewer, rounding the rows takes longer than it saves.
  int64_t least_fp8_queries = 256;
  AttentionLaunches* launches = nullptr;  // counted here where FP8 is asked for
};

// out[i, h] = softmax-weighted values of the rows that the plan gives query i of head h; zero where
// it gives none; a row of weight w counts as w rows. Checks shapes and validates the plan before
// any arithmetic. Results do not depend on the number of threads; rows of 8 bits give on a CPU
// those of the same rows in f32, bit for bit.
//   queries [count, heads, d] f32; rows f32, bf16, f16, 8 bits; out [count, heads, d] f32
// On a GPU queries and output may be bf16 too, the state lies in device memory, and the call
// returns before the work is done; with bf16 rows queries are rounded to bf16, and rows of 8 bits
// are widened to bf16 first (attention/cuda/wide_rows.h).
void run_plan(const Context& context, const Plan& plan, const QueryView& queries,
              const RowSet& rows, float scale, TensorView out, const RunOptions& options = {});

}  // namespace kinora
