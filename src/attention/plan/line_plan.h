// Patterns made of lines and bands: A-shape, tri-shape, the two of SparseTransformer,
// vertical-slash and grid are all one index with different parts set. The index is what is left
// once everything that depends on the input (which columns, which stride) has been decided; this
// turns it into tiles.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/plan/plan.h"
#include "attention/plan/region.h"

namespace kinora {

// Which keys a query reads, in coordinates of a region (c: the query's, r: its reach, j: a key's,
// j ≤ r ≤ c):
struct LineIndex {
  bool everything = false;       // all of them
  int32_t sink = 0;              // the first `sink` rows of the region
  int32_t local = 0;             // r − j < local
  int32_t segment = 0;           // ⌊r / segment⌋ = ⌊j / segment⌋; 0: off
  int32_t bottom = 0;            // the region's last `bottom` queries read everything
  std::vector<int32_t> columns;  // j is one of these; increasing
  std::vector<int32_t> slashes;  // c − j is one of these; increasing, not negative
  int32_t stride = 0;            // of the grid; 0: none
  // Phases of its lines, each in [0, stride), increasing; empty: no such lines.
  std::vector<int32_t> vertical{};    // j mod stride is one of these
  std::vector<int32_t> slash{};       // (c − j) mod stride is one of these
  std::vector<int32_t> horizontal{};  // queries with c mod stride among these read everything

  bool operator==(const LineIndex&) const = default;
};

// What a probe has to choose for an index: this many of the columns and of the diagonals that hold
// most of its weight; the first of either are among them whatever they hold.
struct StrongestLines {
  int32_t columns = 0;
  int32_t forced_columns = 0;
  int32_t slashes = 0;
  int32_t forced_slashes = 0;
};

// The same of a grid: stride and phases as docs/methods/grid.md finds them.
struct GridLook {
  int32_t sink = 0;
  int32_t local = 0;  // 0: one stride, or nothing where there are slashes
  int32_t phases = 1;
  int32_t stride = 0;  // 0: searched up to most_stride
  int32_t most_stride = 0;
  // Which lines it has, 0 or 1 each.
  int32_t horizontal = 0;
  int32_t vertical = 0;
  int32_t slash = 0;
};

// Queries per tile. A tile reads what any of its queries asks for, so each slash costs `slash_tile`
// more keys, and bands around queries that lie a stride apart merge into at most `comb_tile`
// strides; everything else is better off with tall tiles.
constexpr int64_t line_tile = 128;
constexpr int64_t slash_tile = 64;
constexpr int64_t comb_tile = 16;

// The queries of a region in the order and tiles in which they are run: those that read everything
// first, then the others; with a slash phase, queries of equal c mod stride together, which makes
// every line affine. Places in region.queries.
std::vector<std::vector<int32_t>> group_queries(const Region& region, const LineIndex& index,
                                                int64_t slash_queries = slash_tile);

// Adds the tiles of one region for heads [head, head + heads) of one kv head. `slash_queries` is
// the height of tiles with slashes; plans made on a GPU have line_tile there.
void add_line_tiles(PlanBuilder& builder, const Region& region, const LineIndex& index, int head,
                    int heads = 1, int64_t slash_queries = slash_tile);

}  // namespace kinora
