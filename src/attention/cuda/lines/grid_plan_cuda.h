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
  const float* columns = nullptr;    // [heads, size]: weight of every row
  const float* diagonals = nullptr;  // [heads, size]: of every distance
  int32_t size = 0;
  int32_t row_count = 0;  // of the memory
  int32_t first_row = 0;  // the first row's ordinal
  int32_t queries = 0;
};
// FoundGrid of every head, as bytes.
Tensor find_grids(const Context& context, const GridProbe& probe, std::span<const LineHead> heads);

// Tiles of the heads that have a grid: those of queries that read everything, and the others.
struct GridTiles {
  const LineHead* heads = nullptr;
  const FoundGrid* grids = nullptr;
  const int32_t* grid_heads = nullptr;  // [count]: which heads have one
  int32_t count = 0;
  int32_t query_count = 0;
  int32_t limit_base = 0;
  int32_t first_row = 0;  // ordinals
  int32_t first_query = 0;
  int32_t job_rows = 0;
  int32_t block_keys = 0;
  int32_t full_slots = 0;  // tiles that a head has at most, of either kind
  int32_t other_slots = 0;
  int32_t tile_segments = 0;
  int64_t segment_begin = 0;        // of the first one, in the plan
  CudaSegment* segments = nullptr;  // [count, full_slots + other_slots, tile_segments]
  int32_t* queries = nullptr;       // [count, query_count]: the queries of a head, tile by tile
  int32_t* strides = nullptr;       // [heads], zero before
  CudaJob* full_jobs = nullptr;     // [full_slots, jobs of a tile, count]
  CudaJob* other_jobs = nullptr;    // [other_slots, jobs of a tile, count]

  size_t segment_count() const {
    return static_cast<size_t>(count) * static_cast<size_t>(full_slots + other_slots) *
           static_cast<size_t>(tile_segments);
  }
};
// Counts the tiles: `count` and what follows from sizes alone are known afterwards.
GridTiles count_grid_tiles(std::span<const LineHead> heads, int64_t queries, int64_t rows);
void list_grid_tiles(const Context& context, const GridTiles& tiles);

}  // namespace kinora::cuda_attention
