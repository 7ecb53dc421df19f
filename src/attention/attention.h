// What every attention policy looks like to the decoder: queries of a group go in, rows of memory
// are read, one output row comes out for every query row. A policy decides which rows each query
// reads; a plan (plan.h) says so, and a runner (runner.h) executes it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/cancel.h"
#include "base/context.h"
#include "base/modality.h"
#include "base/tensor.h"

namespace kinora {

class Planner;
struct AttentionReport;

// Key and value rows of one layer, as attention sees them. Rows are not positions: pruned memory
// has gaps. The ordinal is the place of a row's token in the whole sequence and decides causality.
struct RowSet {
  ConstTensorView keys;                  // [rows, kv heads, stored columns] (ops/packed_rows.h)
  ConstTensorView values;                // the same shape and type
  std::span<const int32_t> ordinals;     // [rows], strictly increasing
  std::span<const Modality> modalities;  // [rows]
  std::span<const float> times = {};     // [rows] seconds in their video, NaN for text; or empty
  ConstTensorView weights = {};          // f32 [rows], above 0: w adds ln w to a row's score
  std::span<const int32_t> serves = {};  // the queries that read these rows, increasing; empty: all
  ConstTensorView list = {};             // i32 [n]: only these rows, in this order; the per-row
                                         // fields above then describe the listed rows

  int64_t count() const { return listed() ? list.size(0) : keys.size(0); }
  bool weighted() const { return weights.raw() != nullptr; }
  bool listed() const { return list.raw() != nullptr; }
};
constexpr int most_row_sets = 4;  // the most that one query may read

// Queries of the group under way. Their own keys and values are already the last rows of memory.
struct QueryView {
  ConstTensorView queries;               // [count, heads, head size], f32 (on a GPU also bf16)
  std::span<const int32_t> ordinals;     // [count], strictly increasing
  std::span<const Modality> modalities;  // [count]
  // A token tree: the place of each query's parent among the queries, −1 for a root. A query then
  // reads older rows, its ancestors and itself. Empty: a chain.
  std::span<const int32_t> parents = {};
  // Looked at between pieces of work on a CPU, which then ends with a cancelled error; may be null.
  const CancelToken* cancel = nullptr;

  int64_t count() const { return queries.size(0); }
  void check_cancelled() const {
    if (cancel != nullptr) cancel->check();
  }
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
                      const RowSet& rows, float scale, TensorView out) = 0;

  // What else it can do; callers ask this and never which class it is.

  // True if every query reads every row that is not later than itself and nothing is observed, so
  // that a decoder may compute the same result in another way.
  virtual bool reads_all() const { return false; }
  // What it has done since the last clear_report (report.h); null: it keeps no record.
  virtual const AttentionReport* report() const { return nullptr; }
  virtual void clear_report() {}
  // Shows what it would read, without reading it (planner.h); null: it reads everything.
  virtual Planner* planner() { return nullptr; }
};

}  // namespace kinora
