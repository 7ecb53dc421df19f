#include <algorithm>
#include <array>
#include <utility>

#include "ops/matmul_blocks.h"
#include "ops/matmul_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/matmul_blocked_cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "ops/matmul_pack-inl.h"
#include "ops/vector-inl.h"

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
constexpr BlockShape shape{tile_rows, tile_columns, 4, block_k,
                           std::max<int64_t>(1, 128 * 1024 / (block_k * tile_columns))};

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

// The kernel for a tile of this many rows and vectors, both at least 1.
RunTile tile_kernel(int64_t rows, int64_t vectors) {
  static constexpr std::array<std::array<RunTile, tile_rows>, tile_vectors> kernels{
      tiles_of_width<1>(std::make_index_sequence<tile_rows>()),
      tiles_of_width<2>(std::make_index_sequence<tile_rows>()),
      tiles_of_width<3>(std::make_index_sequence<tile_rows>())};
  return kernels[static_cast<size_t>(vectors - 1)][static_cast<size_t>(rows - 1)];
}

template <typename T>
void run_task(const MatmulWork& work, const BlockTask& task, const float* packed_a,
              float* packed_w) {
  const T* weight = static_cast<const T*>(work.weight);
  const int64_t packed_k = std::max<int64_t>(4, round_up(work.k, 4));
  const int64_t step = block_step(shape, work.k);
  for (int64_t k_begin = 0; k_begin == 0 || k_begin < work.k; k_begin += step) {
    const int64_t k = std::min(step, work.k - k_begin);
    for (int64_t column = task.column_begin; column < task.column_end; column += tile_columns) {
      pack_panel(weight + column * work.weight_stride + k_begin, work.weight_stride,
                 std::min(tile_columns, task.column_end - column), tile_columns, k,
                 packed_w + (column - task.column_begin) * k);
    }
    for (int64_t row = task.row_begin; row < task.row_end; row += tile_rows) {
      const int64_t rows = std::min<int64_t>(tile_rows, task.row_end - row);
      const float* a = packed_a + row * packed_k + k_begin * tile_rows;
      for (int64_t column = task.column_begin; column < task.column_end; column += tile_columns) {
        const int64_t columns = std::min(tile_columns, task.column_end - column);
        const TileOut to{work.out + (task.first_row + row) * work.out_stride + column,
                         work.out_stride, columns,
                         k_begin == 0 && work.bias ? work.bias + column : nullptr,
                         work.accumulate || k_begin > 0};
        tile_kernel(rows, divide_up(columns, lanes))(a, packed_w + (column - task.column_begin) * k,
                                                     k, to);
      }
    }
  }
}

void blocked(const Context& context, const MatmulWork& work) {
  run_blocks<float>(
      context, work, shape,
      [&](int64_t row, int64_t count, float* panel) {
        pack_panel(work.a + row * work.a_stride, work.a_stride, count, tile_rows, work.k, panel);
      },
      [&](const BlockTask& task, const float* packed_a, float* scratch) {
        switch (work.weight_type) {
          case DType::bf16:
            return run_task<bf16>(work, task, packed_a, scratch);
          case DType::f16:
            return run_task<f16>(work, task, packed_a, scratch);
          default:
            return run_task<float>(work, task, packed_a, scratch);
        }
      });
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
