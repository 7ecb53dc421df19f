// How a product of many rows is cut for caches and threads; the kernels fill in packing and tiles.
//
// Rows of `a` are packed once, in panels of tile_rows, shared by all threads. A task takes some
// columns of out and, for every block of k, packs the weights of those columns (into a cache of its
// own thread) and runs over all panels of `a`: a panel of `a` stays in the first-level cache while
// the packed weights stream from the second.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/matmul_cpu.h"
#include "ops/scratch.h"

namespace kinora::cpu {

struct BlockShape {
  int64_t tile_rows;      // rows of `a` in a panel
  int64_t tile_columns;   // weight rows in a panel
  int64_t k_unit;         // k is padded to a multiple of this in panels
  int64_t block_k;        // values of k in a block, at most; a multiple of k_unit
  int64_t weight_panels;  // panels that a task packs at once, at most
};

// Rows [row_begin, row_end) of the chunk that starts at row first_row × columns [column_begin,
// column_end), all of k.
struct BlockTask {
  int64_t first_row;
  int64_t row_begin, row_end;
  int64_t column_begin, column_end;
};

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

// The step from one block of k to the next: equal blocks, a multiple of k_unit.
inline int64_t block_step(const BlockShape& shape, int64_t k) {
  const int64_t blocks = std::max<int64_t>(1, divide_up(k, shape.block_k));
  return std::max(shape.k_unit, round_up(divide_up(k, blocks), shape.k_unit));
}

// How the rows of a chunk and the columns of out are divided: at least one task per thread if the
// matrix allows, and tasks of nearly equal size.
struct BlockCut {
  int64_t row_blocks, rows_per_block;
  int64_t column_blocks, columns_per_block;
};

inline BlockCut cut_blocks(const BlockShape& shape, int64_t rows, int64_t columns,
                           int64_t threads) {
  const int64_t panels = divide_up(columns, shape.tile_columns);
  const int64_t row_tiles = divide_up(rows, shape.tile_rows);
  const int64_t wanted = round_up(divide_up(panels, shape.weight_panels), threads);
  BlockCut cut;
  cut.columns_per_block = divide_up(panels, std::min(panels, wanted)) * shape.tile_columns;
  cut.column_blocks = divide_up(columns, cut.columns_per_block);
  const int64_t row_blocks = std::min(row_tiles, divide_up(threads, cut.column_blocks));
  cut.rows_per_block = divide_up(row_tiles, row_blocks) * shape.tile_rows;
  cut.row_blocks = divide_up(rows, cut.rows_per_block);
  return cut;
}

// pack_rows(row, count, panel): packs `count` ≤ tile_rows rows of `a` from `row`, all of k.
// run_task(task, packed, scratch): packed holds the chunk's panels, round_up(k, k_unit) × tile_rows
// elements each; scratch is for the task's packed weights.
template <typename Packed, class PackRows, class RunTask>
void run_blocks(const Context& context, const MatmulWork& work, const BlockShape& shape,
                const PackRows& pack_rows, const RunTask& run_task) {
  constexpr int64_t chunk_bytes = int64_t{16} << 20;  // packed rows of `a` at a time
  const int64_t threads = context.threads->threads();
  const int64_t packed_k = std::max(shape.k_unit, round_up(work.k, shape.k_unit));
  const int64_t limit = std::clamp<int64_t>(
      chunk_bytes / (packed_k * static_cast<int64_t>(sizeof(Packed))), 256, 4096);
  const int64_t chunk = round_up(divide_up(work.m, divide_up(work.m, limit)), shape.tile_rows);
  const ScratchLease packed(static_cast<size_t>(chunk * packed_k) * sizeof(Packed));
  Packed* panels = packed.as<Packed>();

  for (int64_t first = 0; first < work.m; first += chunk) {
    const int64_t rows = std::min(chunk, work.m - first);
    const int64_t row_tiles = divide_up(rows, shape.tile_rows);
    context.threads->parallel_for(
        row_tiles, divide_up(row_tiles, 4 * threads), [&](int64_t begin, int64_t end) {
          for (int64_t tile = begin; tile < end; ++tile) {
            const int64_t row = tile * shape.tile_rows;
            pack_rows(first + row, std::min(shape.tile_rows, rows - row), panels + row * packed_k);
          }
        });
    const BlockCut cut = cut_blocks(shape, rows, work.n, threads);
    context.threads->parallel_for(
        cut.row_blocks * cut.column_blocks, 1, [&](int64_t begin, int64_t end) {
          const ScratchLease weights(static_cast<size_t>(cut.columns_per_block * shape.block_k) *
                                     sizeof(Packed));
          for (int64_t index = begin; index < end; ++index) {
            const int64_t row = index % cut.row_blocks * cut.rows_per_block;
            const int64_t column = index / cut.row_blocks * cut.columns_per_block;
            const BlockTask task{first, row, std::min(rows, row + cut.rows_per_block), column,
                                 std::min(work.n, column + cut.columns_per_block)};
            run_task(task, panels, weights.template as<Packed>());
          }
        });
  }
}

}  // namespace kinora::cpu
