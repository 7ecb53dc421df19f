// Block-sparse attention: every tile of queries reads the first rows, a window before itself, and
// chosen blocks of adjacent rows in between. MOMO chooses by measuring; the oracle and mean pooling
// are the yardsticks.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "attention/plan/plan.h"
#include "attention/policies/online_top_k.h"

namespace kinora {

struct BlockLayout {
  int64_t tile = 128;    // queries
  int64_t block = 32;    // key rows
  int64_t sink = 128;    // first rows, read by all; whole blocks
  int64_t window = 512;  // rows before a tile's first query, read by the tile

  // Rows [0, sink_end) and [window_begin, …) are read whatever is chosen; both on block borders.
  int64_t sink_end(int64_t rows) const;
  int64_t window_begin(const QueryView& queries, const RowSet& rows, int64_t tile_index) const;
  int64_t tiles(int64_t queries) const { return (queries + tile - 1) / tile; }
};

// Adds the tiles of one head. choose(t) gives the blocks of tile t in increasing order; those that
// the sink or the window covers are left out.
void add_block_tiles(PlanBuilder& builder, const QueryView& queries, const RowSet& rows,
                     const BlockLayout& layout, int head,
                     const std::function<std::span<const int32_t>(int64_t tile)>& choose);

// Chosen keys per tile for an input of this length: scaled down below the nominal one (pattern.h).
int64_t scaled_keys(int64_t keys, int64_t length);

// Chosen blocks of every head and tile: [heads × tiles], each increasing.
using BlockChoice = std::vector<std::vector<int32_t>>;

Plan block_plan(const QueryView& queries, const RowSet& rows, const BlockLayout& layout,
                const BlockChoice& choice);

// For each tile, the `count` blocks with the largest true attention (mean over its queries),
// outside sink and window. Costs more than dense attention.
BlockChoice oracle_blocks(const Context& context, const QueryView& queries, const RowSet& rows,
                          float scale, const BlockLayout& layout, int64_t count);

// For each tile, the `count` blocks with the largest product of mean query and mean key.
BlockChoice mean_pool_blocks(const Context& context, const QueryView& queries, const RowSet& rows,
                             const BlockLayout& layout, int64_t count);

// The strongest `count` of (block, score), as increasing block numbers; earlier ones among equals.
std::vector<int32_t> strongest_blocks(std::vector<BlockScore> scores, int64_t count);

}  // namespace kinora
