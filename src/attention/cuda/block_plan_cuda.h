// Block-sparse attention planned on the device: the blocks that MOMO's measured queries choose, and
// plans of chosen blocks. The same sets as momo.h and block_plan.h make. Private to attention/.
#pragma once

#include <bit>
#include <cstdint>

#include "attention/cuda/device_plan.h"
#include "attention/plan/block_plan.h"
#include "attention/policies/delta.h"
#include "attention/policies/momo.h"

namespace kinora::cuda_attention {

// Chosen blocks of every head and tile.
struct DeviceBlocks {
  Tensor blocks;  // i32 [heads, tiles, most], increasing
  Tensor counts;  // i32 [heads, tiles]
};

// Blocks among which a tile's are chosen: a power of two, k for every query that is measured.
inline int64_t candidates_of(const MomoOptions& options) {
  // One more than every γ-th: the first query may be measured besides.
  const int64_t samples =
      (options.layout.tile + options.query_stride - 1) / options.query_stride + 1;
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(samples * options.k)));
}

// Whether a GPU can choose as the options ask: it has the exact top-k only, and a tile's candidates
// must fit its shared memory. Known without one.
inline bool can_choose(const MomoOptions& options) {
  constexpr int64_t most_candidates = 8192;
  const bool exact = options.top_k == TopKMethod::exact ||
                     options.top_k == TopKMethod::tournament ||
                     (options.top_k == TopKMethod::hybrid && options.k_exact >= options.k);
  return exact && candidates_of(options) <= most_candidates;
}

// Runs the measured queries densely into `exact` [measured, heads, d] and chooses by what they
// read; a tile keeps blocks of `keys` keys at most.
DeviceBlocks choose_blocks(const Context& context, const QueryView& queries,
                           const SampledQueries& sampled, const RowSet& rows, float scale,
                           const MomoOptions& options, int64_t keys, TensorView exact);

// Sink, window and chosen blocks; blocks that the first two cover must not be chosen.
DevicePlan block_plan(const Context& context, const QueryView& queries, const RowSet& rows,
                      const BlockLayout& layout, const DeviceBlocks& chosen,
                      const ConstTensorView& out);

}  // namespace kinora::cuda_attention
