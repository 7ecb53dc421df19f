// MOMO, "measure once, mask once": every γ-th query (delta.h) is computed densely and, as it scans
// the keys, notes which blocks held its attention; all queries then read only those blocks, the
// first rows and a window; the error at the measured queries corrects their neighbours.
// docs/methods/momo.md.
#pragma once

#include "attention/plan/block_plan.h"
#include "attention/policies/delta.h"
#include "attention/policies/online_top_k.h"
#include "attention/policies/sparse_attention.h"

namespace kinora {

// What the trim ranks the blocks of a tile by.
enum class BlockRank {
  mean,  // the mean score over the measured queries that chose the block, as published
  mass,  // the attention that all its measured queries together gave it
};

struct MomoOptions {
  BlockLayout layout{};       // χ, β, sink, window
  int64_t query_stride = 16;  // γ; see spread_stride
  TopKMethod top_k = TopKMethod::hybrid;
  int64_t k = 64;              // blocks that a measured query keeps
  int64_t k_exact = 64;        // of these, exactly (hybrid)
  int64_t sparse_keys = 4096;  // keys per tile after the trim; scaled below 25k rows
  bool trim = true;            // false: the whole union
  BlockRank rank = BlockRank::mean;
  bool delta = true;
};

// The least γ from `stride` on that shares no factor with the tokens of a frame: otherwise only a
// few places of a frame would ever be measured.
int64_t spread_stride(int64_t stride, int64_t frame_tokens);

// Throws a usage error: a stride, block or count that makes no sense.
void check(const MomoOptions& options);

// Blocks of every head and tile after union and trim.
//   kept: [measured × heads], what each measured query chose, scores as log2 of its share of
//   attention; places: of these queries in the group, whose tiles have `tile` queries
BlockChoice union_and_trim(const Context& context, const std::vector<std::vector<BlockScore>>& kept,
                           std::span<const int32_t> places, int64_t heads, int64_t tile,
                           int64_t tiles, int64_t blocks_kept, BlockRank rank);

class MomoAttention final : public SparseAttention {
 public:
  MomoAttention(MomoOptions momo, SparseOptions options);

  std::string_view name() const override { return "momo"; }

 protected:
  std::vector<LabelledPlan> sparse_plans(const Context& context, int layer,
                                         const QueryView& queries, const RowSet& rows,
                                         float scale) override;
  void attend_sparsely(const Context& context, int layer, const QueryView& queries,
                       const RowSet& rows, float scale, TensorView out) override;
  std::optional<GpuWorkload> gpu_workload(int layer, const QueryView& queries,
                                          const RowSet& rows) const override;
  void attend_on_gpu(const Context& context, int layer, const QueryView& queries,
                     const RowSet& rows, float scale, TensorView out) override;

 private:
  // Runs the measured queries densely into `exact` and returns the chosen blocks.
  BlockChoice measure(const Context& context, const QueryView& queries,
                      const SampledQueries& sampled, const RowSet& rows, float scale,
                      TensorView exact) const;

  MomoOptions momo_;
};

}  // namespace kinora
