#include <algorithm>
#include <cstring>

#include "ops/matmul_blocks.h"
#include "ops/matmul_cpu.h"

// Arm's BFMMLA. Nothing here may run before the processor has been asked.

#if defined(__aarch64__) && defined(__linux__)

#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

#define KINORA_BF16_TARGET __attribute__((target("arch=armv8.2-a+bf16")))

namespace kinora::cpu {
namespace {

constexpr int64_t tile_rows = 8;
constexpr int64_t tile_columns = 12;
constexpr int64_t unit = 4;  // BFMMLA multiplies 2 × 4 by 4 × 2
constexpr int64_t block_k = 1024;
constexpr BlockShape shape{tile_rows, tile_columns, unit, block_k, 20};

// Four values of one row: what is missing at the end of k, and rows that do not exist, are zero.
uint16x4_t four(const bf16* row, int64_t k) {
  uint16_t values[unit] = {};
  std::memcpy(values, row, static_cast<size_t>(std::min(k, unit)) * sizeof(bf16));
  return vld1_u16(values);
}

KINORA_BF16_TARGET uint16x4_t four(const float* row, int64_t k) {
  float values[unit] = {};
  std::memcpy(values, row, static_cast<size_t>(std::min(k, unit)) * sizeof(float));
  return vreinterpret_u16_bf16(vcvt_bf16_f32(vld1q_f32(values)));
}

// panel[k / 4][width / 2][2 rows][4 values], k padded to a multiple of 4.
template <typename T>
KINORA_BF16_TARGET void pack_pairs(const T* rows, int64_t stride, int64_t count, int64_t width,
                                   int64_t k, uint16_t* panel) {
  for (int64_t i = 0; i < width; ++i) {
    uint16_t* to = panel + i * unit;
    for (int64_t j = 0; j < k; j += unit, to += width * unit) {
      vst1_u16(to, i < count ? four(rows + i * stride + j, k - j) : vdup_n_u16(0));
    }
  }
}

KINORA_BF16_TARGET bfloat16x8_t load_pair(const uint16_t* from) {
  return vreinterpretq_bf16_u16(vld1q_u16(from));
}

// sums[tile_rows][tile_columns] of one tile: 24 accumulators, 4 pairs of rows, 1 pair of columns in
// registers.
KINORA_BF16_TARGET void run_tile(const uint16_t* __restrict a, const uint16_t* __restrict w,
                                 int64_t k, float* __restrict sums) {
  float32x4_t tile[tile_rows / 2][tile_columns / 2];
#pragma GCC unroll 4
  for (int p = 0; p < tile_rows / 2; ++p) {
#pragma GCC unroll 6
    for (int q = 0; q < tile_columns / 2; ++q) tile[p][q] = vdupq_n_f32(0);
  }
  for (int64_t j = 0; j < k; j += unit, a += tile_rows * unit, w += tile_columns * unit) {
    bfloat16x8_t rows[tile_rows / 2];
#pragma GCC unroll 4
    for (int p = 0; p < tile_rows / 2; ++p) rows[p] = load_pair(a + p * 2 * unit);
#pragma GCC unroll 6
    for (int q = 0; q < tile_columns / 2; ++q) {
      const bfloat16x8_t columns = load_pair(w + q * 2 * unit);
#pragma GCC unroll 4
      for (int p = 0; p < tile_rows / 2; ++p) {
        tile[p][q] = vbfmmlaq_f32(tile[p][q], rows[p], columns);
      }
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < tile_rows / 2; ++p) {
#pragma GCC unroll 6
    for (int q = 0; q < tile_columns / 2; ++q) {
      vst1_f32(sums + 2 * p * tile_columns + 2 * q, vget_low_f32(tile[p][q]));
      vst1_f32(sums + (2 * p + 1) * tile_columns + 2 * q, vget_high_f32(tile[p][q]));
    }
  }
}

void write_tile(const MatmulWork& work, const float* sums, int64_t row, int64_t rows,
                int64_t column, int64_t columns, bool first_block) {
  for (int64_t r = 0; r < rows; ++r) {
    float* out = work.out + (row + r) * work.out_stride + column;
    for (int64_t c = 0; c < columns; ++c) {
      float value = sums[r * tile_columns + c];
      if (first_block && work.bias) value += work.bias[column + c];
      out[c] = work.accumulate || !first_block ? out[c] + value : value;
    }
  }
}

void run_task(const MatmulWork& work, const BlockTask& task, const uint16_t* packed_a,
              uint16_t* packed_w) {
  const bf16* weight = static_cast<const bf16*>(work.weight);
  const int64_t packed_k = std::max(unit, round_up(work.k, unit));
  const int64_t step = block_step(shape, work.k);
  for (int64_t k_begin = 0; k_begin == 0 || k_begin < work.k; k_begin += step) {
    const int64_t k = std::min(step, work.k - k_begin);
    const int64_t panel_k = round_up(k, unit);
    for (int64_t column = task.column_begin; column < task.column_end; column += tile_columns) {
      pack_pairs(weight + column * work.weight_stride + k_begin, work.weight_stride,
                 std::min(tile_columns, task.column_end - column), tile_columns, k,
                 packed_w + (column - task.column_begin) * panel_k);
    }
    for (int64_t row = task.row_begin; row < task.row_end; row += tile_rows) {
      const uint16_t* a = packed_a + row * packed_k + k_begin * tile_rows;
      for (int64_t column = task.column_begin; column < task.column_end; column += tile_columns) {
        alignas(64) float sums[tile_rows * tile_columns];
        run_tile(a, packed_w + (column - task.column_begin) * panel_k, k, sums);
        write_tile(work, sums, task.first_row + row, std::min(tile_rows, task.row_end - row),
                   column, std::min(tile_columns, task.column_end - column), k_begin == 0);
      }
    }
  }
}

void run_one(const Context& context, const MatmulWork& work, bool exact) {
  if (exact) return matmul_blocked(context, work);  // as fast as three products
  run_blocks<uint16_t>(
      context, work, shape,
      [&](int64_t row, int64_t count, uint16_t* panel) {
        pack_pairs(work.a + row * work.a_stride, work.a_stride, count, tile_rows, work.k, panel);
      },
      [&](const BlockTask& task, const uint16_t* packed_a, uint16_t* scratch) {
        run_task(work, task, packed_a, scratch);
      });
}

void run(const Context& context, std::span<const MatmulWork> products, bool exact) {
  for (const MatmulWork& work : products) run_one(context, work, exact);
}

}  // namespace

const Bf16Product* arm_bf16_product() {
  static constexpr Bf16Product product{"BFMMLA", true, 0, run};
  static const bool there = (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
  return there ? &product : nullptr;
}

}  // namespace kinora::cpu

#else

namespace kinora::cpu {

const Bf16Product* arm_bf16_product() { return nullptr; }

}  // namespace kinora::cpu

#endif
