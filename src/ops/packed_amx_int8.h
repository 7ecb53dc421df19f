// Rows and weights as AMX's products of bytes read them: how columns are cut into spans, and what
// is packed. Used only by packed_amx_int8*_cpu.cc. Which factor is which, and how tiles lie, is as
// in matmul_bf16_x86.h, with four bytes where two bf16 stand.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/matmul_bf16_x86.h"
#include "ops/packed_matrix.h"

#define KINORA_TILES_TARGET \
  __attribute__((           \
      target("amx-tile,amx-int8,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")))

namespace kinora::cpu {

constexpr int64_t byte_tile_k = 64;                            // values of k in a tile
constexpr int64_t byte_panel_step = bf16_panel * byte_tile_k;  // bytes of a panel's tiles
constexpr int64_t widest_span = 128;

// How columns are cut: `width` of them share a scale of the rows, and take `bytes` in a panel.
struct Spans {
  int64_t width, steps;  // steps: tiles that it takes

  // A span must not reach into the next group.
  static Spans of(const PackedMatrix& matrix) {
    const bool one = matrix.groups() == 1;
    const int64_t group = matrix.group();
    const int64_t width = one || group % widest_span == 0 ? widest_span
                          : group % byte_tile_k == 0      ? byte_tile_k
                                                          : PackedMatrix::block;
    return {width, std::max<int64_t>(1, width / byte_tile_k)};
  }
  int64_t bytes() const { return steps * byte_panel_step; }
  int64_t count(int64_t k) const { return divide_up(k, width); }
};

// What a row's or a weight's sums of every span are multiplied with, and what their zero points
// take away: [spans][32] each, one after the other.
struct PanelScales {
  float* scales = nullptr;
  float* shifts = nullptr;
};
inline PanelScales scales_at(float* all, int64_t index, int64_t spans) {
  float* own = all + index * spans * 2 * bf16_panel;
  return {own, own + spans * bf16_panel};
}

// `count` rows from `row` on into [spans][steps][2][16 fours of values][16 rows][4]; of the second
// tile nothing is written where the first takes all rows. Rows that are missing are 0.
void pack_byte_rows(const MatmulWork& work, int64_t row, int64_t count, Spans spans, std::byte* to,
                    PanelScales scales);

// What every zero point of a kind has in common, and packed weights are less by.
constexpr float common_zero(PackedKind kind) { return kind == PackedKind::int4 ? 8.0f : 0.0f; }

// Columns [begin, end) of 32 rows of the matrix from `row` on, span after span: [steps][32
// rows][64], and what their sums are multiplied with. Rows that do not exist are 0.
void pack_byte_weights(const PackedMatrix& matrix, int64_t row, Spans spans, int64_t begin,
                       int64_t end, std::byte* to, PanelScales scales);

}  // namespace kinora::cpu
