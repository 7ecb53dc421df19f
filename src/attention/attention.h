// What every attention policy looks like to the decoder: queries of a group go in, rows of memory
// are read, one output row comes out for every query row. A policy decides which rows each query
// reads; a plan (plan.h) says so, and a runner (runner.h) executes it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/context.h"
#include "base/modality.h"
#include "base/tensor.h"

namespace kinora {

// Key and value rows of one layer, as attention sees them. Rows are not positions: pruned memory
// has gaps. The ordinal is the place of a row's token in the whole sequence and decides causality.
struct RowsView {
  ConstTensorView keys;                  // [rows, kv heads, head size], f32 or bf16
  ConstTensorView values;                // the same shape and type
  std::span<const int32_t> ordinals;     // [rows], strictly increasing
  std::span<const Modality> modalities;  // [rows]

  int64_t count() const { return keys.size(0); }
};

// Queries of the group under way. Their own keys and values are already the last rows of memory.
struct QueryView {
  ConstTensorView queries;               // [count, heads, head size], f32 (on a GPU also bf16)
  std::span<const int32_t> ordinals;     // [count], strictly increasing
  std::span<const Modality> modalities;  // [count]

  int64_t count() const { return queries.size(0); }
};

// Attention while prefilling and generating. One object serves all layers of one session and may
// keep what it learns between calls (indexes, reports); it is called by one thread at a time.
class Attention {
 public:
  virtual ~Attention() = default;
  virtual std::string_view name() const = 0;

  // out[i, h] = Σ_r softmax_r(scale · q[i, h] · k[r]) v[r] over the rows r that the policy lets
  // query i of head h read, never one with ordinals[r] > the query's ordinal.
  // out: [count, heads, head size], f32 (on a GPU also bf16).
  virtual void attend(const Context& context, int layer, const QueryView& queries,
                      const RowsView& rows, float scale, TensorView out) = 0;
};

}  // namespace kinora
