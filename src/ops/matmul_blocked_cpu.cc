#include <algorithm>
#include <array>
#include <utility>

#include "ops/matmul_cpu.h"
#include "ops/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/matmul_blocked_cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "ops/matmul_pack-inl.h"
#include "ops/vector-inl.h"

// How the product is cut. Rows of `a` are packed once, in panels of `tile_rows`, shared by all
// threads. A task takes some columns of out, and for every block of k packs the weights of those
// columns (into a cache of its own thread) and runs over all panels of `a`: a panel of `a` stays in
// the first-level cache while the packed weights stream from the second.

HWY_BEFORE_NAMESPACE();
namespace kinora::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace kinora::HWY_NAMESPACE;

using Tag = hn::ScalableTag<float>;
using Vector = hn::Vec<Tag>;
constexpr int64_t lanes = hn::MaxLanes(Tag());

// The accumulators of a tile fill most of the registers: 24 of 32, or 12 of 16.
constexpr bool many_registers = HWY_TARGET == HWY_NEON || HWY_TARGET <= HWY_AVX3;
constexpr int tile_rows = many_registers ? 8 : 4;
constexpr int tile_vectors = 3;
constexpr int64_t tile_columns = tile_vectors * lanes;

constexpr int64_t block_k = 512;
// Packed weights of one task: about half of a second-level cache of 1 MiB.
constexpr int64_t block_panels = std::max<int64_t>(1, 128 * 1024 / (block_k * tile_columns));
constexpr int64_t chunk_elements = int64_t{4} << 20;  // packed rows of `a`, 16 MiB

// Row `row` of the panel's tile_rows values at `a`, in every lane.
template <int row>
HWY_INLINE Vector broadcast_row(const float* a) {
  const Tag d;
  if constexpr (lanes == 4) {
    // Multiply-add by one lane of a register; the load is shared by four rows.
    return hn::Broadcast<row % 4>(hn::Load(d, a + row / 4 * 4));
  } else {
    return hn::Set(d, a[row]);
  }
}

struct TileOut {
  float* out;
  int64_t stride;
  int64_t columns;    // valid ones, at most vectors × lanes
  const float* bias;  // for these columns, or null
  bool add;           // out += instead of out =
};

// Adds bias and what is already in out, where asked, and writes the tile: sums
// [rows][tile_columns].
HWY_NOINLINE void finish_tile(const float* HWY_RESTRICT sums, int64_t rows, const TileOut& to) {
  const Tag d;
  for (int64_t column = 0; column < to.columns; column += lanes) {
    const int64_t count = std::min<int64_t>(lanes, to.columns - column);
    Vector bias = hn::Zero(d);
    if (to.bias) bias = load_f32_part(d, to.bias + column, count);
    for (int64_t r = 0; r < rows; ++r) {
      float* out = to.out + r * to.stride + column;
      Vector sum = hn::Add(hn::Load(d, sums + r * tile_columns + column), bias);
      if (count == lanes) {
        if (to.add) sum = hn::Add(sum, hn::LoadU(d, out));
        hn::StoreU(sum, d, out);
      } else {
        if (to.add) sum = hn::Add(sum, load_f32_part(d, out, count));
        store_part(d, sum, out, count);
      }
    }
  }
}

// a: [k][tile_rows], w: [k][tile_columns]
template <int rows, int vectors>
HWY_NOINLINE void run_tile(const float* HWY_RESTRICT a, const float* HWY_RESTRICT w, int64_t k,
                           const TileOut& to) {
  const Tag d;
  Vector sums[rows][vectors];
  repeat<rows>([&](auto r) HWY_ATTR {
    hwy::Prefetch(to.out + r * to.stride);
    repeat<vectors>([&](auto v) HWY_ATTR { sums[r][v] = hn::Zero(d); });
  });
  for (int64_t j = 0; j < k; ++j, a += tile_rows, w += tile_columns) {
    Vector columns[vectors];
    repeat<vectors>([&](auto v) HWY_ATTR { columns[v] = hn::Load(d, w + v * lanes); });
    repeat<rows>([&](auto r) HWY_ATTR {
      const Vector value = broadcast_row<r>(a);
      repeat<vectors>([&](auto v)
                          HWY_ATTR { sums[r][v] = hn::MulAdd(columns[v], value, sums[r][v]); });
    });
  }
  HWY_ALIGN float tile[rows * tile_columns];
  repeat<rows>([&](auto r) HWY_ATTR {
    repeat<vectors>(
        [&](auto v) HWY_ATTR { hn::Store(sums[r][v], d, tile + r * tile_columns + v * lanes); });
  });
  finish_tile(tile, rows, to);
}

using RunTile = void (*)(const float*, const float*, int64_t, const TileOut&);

template <int vectors, size_t... row>
constexpr auto tiles_of_width(std::index_sequence<row...>) {
  return std::array<RunTile, sizeof...(row)>{&run_tile<int(row) + 1, vectors>...};
}

// The kernel for a tile of so many rows and vectors, both from 1.
RunTile tile_kernel(int64_t rows, int64_t vectors) {
  static constexpr std::array<std::array<RunTile, tile_rows>, tile_vectors> kernels{
      tiles_of_width<1>(std::make_index_sequence<tile_rows>()),
      tiles_of_width<2>(std::make_index_sequence<tile_rows>()),
      tiles_of_width<3>(std::make_index_sequence<tile_rows>())};
  return kernels[static_cast<size_t>(vectors - 1)][static_cast<size_t>(rows - 1)];
}

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows [row_begin, row_end) of the chunk × columns [column_begin, column_end), all of k.
struct Task {
  int64_t row_begin, row_end;
  int64_t column_begin, column_end;
};

template <typename T>
void run_task(const MatmulWork& work, const float* packed_a, const Task& task, int64_t first_row,
              float* packed_w) {
  const T* weight = static_cast<const T*>(work.weight);
  const int64_t k_blocks = std::max<int64_t>(1, divide_up(work.k, block_k));
  const int64_t k_step = std::max<int64_t>(4, divide_up(divide_up(work.k, k_blocks), 4) * 4);
  for (int64_t k_begin = 0; k_begin == 0 || k_begin < work.k; k_begin += k_step) {
    const int64_t k = std::min(k_step, work.k - k_begin);
    for (int64_t column = task.column_begin; column < task.column_end; column += tile_columns) {
      pack_panel(weight + column * work.weight_stride + k_begin, work.weight_stride,
                 std::min(tile_columns, task.column_end - column), tile_columns, k,
                 packed_w + (column - task.column_begin) * k);
    }
    for (int64_t row = task.row_begin; row < task.row_end; row += tile_rows) {
      const int64_t rows = std::min<int64_t>(tile_rows, task.row_end - row);
      const float* a = packed_a + row * work.k + k_begin * tile_rows;
      for (int64_t column = task.column_begin; column < task.column_end; column += tile_columns) {
        const int64_t columns = std::min(tile_columns, task.column_end - column);
        const TileOut to{work.out + (first_row + row) * work.out_stride + column, work.out_stride,
                         columns, k_begin == 0 && work.bias ? work.bias + column : nullptr,
                         work.accumulate || k_begin > 0};
        tile_kernel(rows, divide_up(columns, lanes))(a, packed_w + (column - task.column_begin) * k,
                                                     k, to);
      }
    }
  }
}

void run_any_task(const MatmulWork& work, const float* packed_a, const Task& task,
                  int64_t first_row, float* packed_w) {
  switch (work.weight_type) {
    case DType::bf16:
      return run_task<bf16>(work, packed_a, task, first_row, packed_w);
    case DType::f16:
      return run_task<f16>(work, packed_a, task, first_row, packed_w);
    default:
      return run_task<float>(work, packed_a, task, first_row, packed_w);
  }
}

// How the rows of a chunk and the columns of out are shared out: at least one task a thread where
// the matrix allows, and tasks of one size.
struct Cut {
  int64_t row_blocks, rows_per_block;       // rows in multiples of a tile
  int64_t column_blocks, panels_per_block;  // columns in panels of a tile
};

Cut cut_tasks(int64_t rows, int64_t columns, int64_t threads) {
  const int64_t panels = divide_up(columns, tile_columns);
  const int64_t row_tiles = divide_up(rows, tile_rows);
  int64_t column_blocks = divide_up(panels, block_panels);
  column_blocks = std::min(panels, divide_up(column_blocks, threads) * threads);
  Cut cut;
  cut.panels_per_block = divide_up(panels, column_blocks);
  cut.column_blocks = divide_up(panels, cut.panels_per_block);
  const int64_t row_blocks = std::min(row_tiles, divide_up(threads, cut.column_blocks));
  cut.rows_per_block = divide_up(row_tiles, row_blocks) * tile_rows;
  cut.row_blocks = divide_up(rows, cut.rows_per_block);
  return cut;
}

void blocked(const Context& context, const MatmulWork& work) {
  const int64_t threads = context.threads->threads();
  const int64_t chunk_limit =
      std::clamp<int64_t>(chunk_elements / std::max<int64_t>(1, work.k), 256, 4096);
  const int64_t chunks = divide_up(work.m, chunk_limit);
  const int64_t chunk_rows = divide_up(divide_up(work.m, chunks), tile_rows) * tile_rows;
  ScratchLease packed(static_cast<size_t>(chunk_rows * work.k) * sizeof(float));
  float* packed_a = packed.as<float>();

  for (int64_t first = 0; first < work.m; first += chunk_rows) {
    const int64_t rows = std::min(chunk_rows, work.m - first);
    const int64_t row_tiles = divide_up(rows, tile_rows);
    context.threads->parallel_for(
        row_tiles, divide_up(row_tiles, 4 * threads), [&](int64_t begin, int64_t end) {
          for (int64_t tile = begin; tile < end; ++tile) {
            const int64_t row = tile * tile_rows;
            pack_panel(work.a + (first + row) * work.a_stride, work.a_stride,
                       std::min<int64_t>(tile_rows, rows - row), tile_rows, work.k,
                       packed_a + row * work.k);
          }
        });
    const Cut cut = cut_tasks(rows, work.n, threads);
    const int64_t tasks = cut.row_blocks * cut.column_blocks;
    context.threads->parallel_for(tasks, 1, [&](int64_t begin, int64_t end) {
      ScratchLease weights(static_cast<size_t>(cut.panels_per_block * tile_columns * block_k) *
                           sizeof(float));
      for (int64_t index = begin; index < end; ++index) {
        const int64_t row = index % cut.row_blocks * cut.rows_per_block;
        const int64_t column = index / cut.row_blocks * cut.panels_per_block * tile_columns;
        const Task task{row, std::min(rows, row + cut.rows_per_block), column,
                        std::min(work.n, column + cut.panels_per_block * tile_columns)};
        run_any_task(work, packed_a, task, first, weights.as<float>());
      }
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kinora::cpu {
HWY_EXPORT(blocked);

void matmul_blocked(const Context& context, const MatmulWork& work) {
  HWY_DYNAMIC_DISPATCH(blocked)(context, work);
}
}  // namespace kinora::cpu
#endif
