// The parts of line_plan_cuda.h that deal with grids: finding them, and listing their tiles.
// Private to attention/cuda.
#pragma once

#include <cstdint>
#include <span>

#include "attention/cuda/lines/line_plan_cuda.h"

namespace kinora::cuda_attention {

// What a look at the last queries has seen, for all heads.
struct GridProbe {
  const LineHead* heads = nullptr;
  const float* columns = nullptr;    // [heads, column_size]: weight of every row
  const float* diagonals = nullptr;  // [heads, diagonal_size]: of every distance
  int32_t column_size = 0;
  int32_t diagonal_size = 0;
  int32_t row_count = 0;  // of the space
  int32_t first_row = 0;  // the first row's coordinate
  int32_t queries = 0;
};
// FoundGrid of every head, as bytes.
Tensor find_grids(const Context& context, const GridProbe& probe, std::span<const LineHead> heads);

// What a plan has of a grid. Heads in_two_plans have their bands and the queries that read
// everything in the first and their lines in the second; all others are in the first.
enum class GridPart : uint8_t { first, second };

// Tiles of the heads that have a grid: those of queries that read everything, and the others.
struct GridTiles {
  GridPart part = GridPart::first;
  const LineHead* heads = nullptr;
  const FoundGrid* grids = nullptr;
  const int32_t* grid_heads = nullptr;  // [count]: which heads have tiles
  int32_t count = 0;
  int32_t query_count = 0;                 // of the space
  const int32_t* space_queries = nullptr;  // [query_count]; null: all, in order
  const int32_t* space_limits = nullptr;   // by query; null: limit_base + query
  int32_t limit_base = 0;
  int32_t row_count = 0;
  int32_t first_row = 0;  // coordinates
  int32_t first_query = 0;
  bool by_place = false;  // as in LineSpace
  int32_t job_rows = 0;
  int32_t block_keys = 0;
  int32_t full_slots = 0;  // tiles that a head has at most, of either kind
  int32_t other_slots = 0;
  int32_t tile_segments = 0;
  int64_t segment_begin = 0;        // of the first one, in the plan
  CudaSegment* segments = nullptr;  // [count, full_slots + other_slots, tile_segments]
  int32_t* queries = nullptr;       // [count, query_count]: the queries of a head, tile by tile
  int64_t list_begin = 0;           // of these, in the plan's list
  int32_t* strides = nullptr;       // [heads], zero before
  CudaJob* full_jobs = nullptr;     // [full_slots, jobs of a tile, count]
  CudaJob* other_jobs = nullptr;    // [other_slots, jobs of a tile, count]
  // The second plan's limits, by query: what the first query of its tile in the first plan sees.
  // Taken back by the window they are where the window begins.
  int32_t* tile_limits = nullptr;

  size_t segment_count() const {
    return static_cast<size_t>(count) * static_cast<size_t>(full_slots + other_slots) *
           static_cast<size_t>(tile_segments);
  }
};
// Counts the tiles: `count` and what follows from sizes alone are known afterwards.
GridTiles count_grid_tiles(std::span<const LineHead> heads, int64_t queries, int64_t rows,
                           GridPart part);
void list_grid_tiles(const Context& context, const GridTiles& tiles);

}  // namespace kinora::cuda_attention
