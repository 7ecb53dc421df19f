#include "ops/packed_amx_int8.h"

#include "ops/x86_intrinsics.h"
#include "ops/x86_turn.h"

#if defined(__x86_64__) && defined(__linux__)

#include <cstring>
#include <limits>

namespace kinora::cpu {
namespace {

constexpr int64_t panel = bf16_panel;
constexpr int64_t tile_rows = bf16_tile_rows;
constexpr int64_t panel_rows = PackedMatrix::panel_rows;
constexpr int64_t matrix_panels = panel / panel_rows;  // of the matrix in one of ours
constexpr int64_t unit_bytes = 64;                     // see packed_matrix.h

// One span of a row as whole numbers, at most `widest_span` of them and zeros behind them; returns
// their scale, and their sum.
struct Written {
  float scale;
  int32_t sum;
};
template <bool whole_span>
KINORA_TILES_TARGET inline Written write_span(const float* from, int64_t count, int8_t* to) {
  constexpr int vectors = widest_span / 16;
  __m512 values[vectors];
  __m512i largest = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int i = 0; i < vectors; ++i) {
    values[i] = whole_span ? _mm512_loadu_ps(from + i * 16)
                           : _mm512_maskz_loadu_ps(bits_of(0, count - i * 16), from + i * 16);
    const __m512i magnitude =
        _mm512_and_si512(_mm512_castps_si512(values[i]), _mm512_set1_epi32(0x7fffffff));
    largest = _mm512_max_epu32(largest, magnitude);
  }
  const uint32_t bits = _mm512_reduce_max_epu32(largest);
  const bool finite = bits < 0x7f800000u;
  float most = 0;
  std::memcpy(&most, &bits, sizeof(most));
  float scale = most / 127, inverse = 127 / most;
  if (!(inverse < std::numeric_limits<float>::infinity())) scale = inverse = 0;  // nearly 0
  if (!finite) {
    std::memset(to, 0, widest_span);
    return {std::numeric_limits<float>::quiet_NaN(), 0};
  }
  __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int i = 0; i < vectors; ++i) {
    const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(values[i], _mm512_set1_ps(inverse)));
    sum = _mm512_add_epi32(sum, whole);
    _mm_store_si128(reinterpret_cast<__m128i*>(to + i * 16), _mm512_cvtepi32_epi8(whole));
  }
  return {scale, _mm512_reduce_add_epi32(sum)};
}

// Eight columns of eight rows in each register, as signed bytes, less what every zero point of the
// kind has in common; `count` ≤ 8 of them are there.
template <PackedKind kind>
KINORA_TILES_TARGET inline void load_units(const uint8_t* codes, int64_t count,
                                           __m512i (&units)[8]) {
  if constexpr (kind == PackedKind::int4) {
    const __m512i low_half = _mm512_set1_epi8(15), eight = _mm512_set1_epi8(8);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i both =
          2 * i < count ? _mm512_loadu_si512(codes + i * unit_bytes) : _mm512_setzero_si512();
      units[2 * i] = _mm512_sub_epi8(_mm512_and_si512(both, low_half), eight);
      units[2 * i + 1] =
          _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi16(both, 4), low_half), eight);
    }
  } else {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      units[i] = i < count ? _mm512_loadu_si512(codes + i * unit_bytes) : _mm512_setzero_si512();
    }
  }
}

// Up to 64 columns of eight rows into [8 rows][64]; what lies behind the matrix meets zeros.
template <PackedKind kind>
KINORA_TILES_TARGET void turn_units(const uint8_t* codes, int64_t columns, std::byte* to) {
  __m512i units[8], pairs[8], fours[8];
  load_units<kind>(codes, columns / 8, units);
  // Registers of columns become registers of rows, eight bytes at a time.
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    pairs[2 * i] = _mm512_unpacklo_epi64(units[2 * i], units[2 * i + 1]);      // rows 0 2 4 6
    pairs[2 * i + 1] = _mm512_unpackhi_epi64(units[2 * i], units[2 * i + 1]);  // rows 1 3 5 7
  }
#pragma GCC unroll 2
  for (int odd = 0; odd < 2; ++odd) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512i a = pairs[4 * half + odd], b = pairs[4 * half + 2 + odd];
      fours[4 * odd + 2 * half] = _mm512_shuffle_i64x2(a, b, 0x88);      // rows 0 and 4
      fours[4 * odd + 2 * half + 1] = _mm512_shuffle_i64x2(a, b, 0xdd);  // rows 2 and 6
    }
  }
#pragma GCC unroll 2
  for (int odd = 0; odd < 2; ++odd) {
#pragma GCC unroll 2
    for (int two = 0; two < 2; ++two) {
      const __m512i a = fours[4 * odd + two], b = fours[4 * odd + 2 + two];
      const int row = odd + 2 * two;
      _mm512_store_si512(to + row * byte_tile_k, _mm512_shuffle_i64x2(a, b, 0x88));
      _mm512_store_si512(to + (row + 4) * byte_tile_k, _mm512_shuffle_i64x2(a, b, 0xdd));
    }
  }
}

}  // namespace

KINORA_TILES_TARGET void pack_byte_rows(const MatmulWork& work, int64_t row, int64_t count,
                                        Spans spans, std::byte* to, PanelScales scales) {
  const int64_t all = spans.count(work.k);
  for (int64_t span = 0; span < all; ++span, to += spans.bytes()) {
    const int64_t column = span * spans.width, columns = std::min(spans.width, work.k - column);
    for (int64_t first = 0; first < count; first += tile_rows) {
      alignas(64) float fours[widest_span / byte_tile_k][bf16_tile_sums];
      for (int64_t i = 0; i < tile_rows; ++i) {
        alignas(64) int8_t whole[widest_span];
        Written written{0, 0};
        if (first + i < count) {
          const float* from = work.a + (row + first + i) * work.a_stride + column;
          for (int64_t soon = 0; soon < widest_span; soon += 16) {  // the next span of this row
            __builtin_prefetch(from + spans.width + soon);
          }
          written = columns == widest_span ? write_span<true>(from, columns, whole)
                                           : write_span<false>(from, columns, whole);
        } else {
          std::memset(whole, 0, sizeof(whole));
        }
        for (int64_t step = 0; step < spans.steps; ++step) {
          _mm512_store_si512(fours[step] + i * 16, _mm512_load_si512(whole + step * byte_tile_k));
        }
        scales.scales[span * panel + first + i] = written.scale;
        scales.shifts[span * panel + first + i] = written.scale * static_cast<float>(written.sum);
      }
      for (int64_t step = 0; step < spans.steps; ++step) {
        auto* tile = reinterpret_cast<float*>(to + step * byte_panel_step +
                                              first / tile_rows * bf16_tile_bytes);
        for (int chunk = 0; chunk < 4; ++chunk) {
          __m512 columns_of[4];
          turn_four(fours[step], 16, chunk, columns_of);
#pragma GCC unroll 4
          for (int c = 0; c < 4; ++c) _mm512_store_ps(tile + (chunk * 4 + c) * 16, columns_of[c]);
        }
      }
    }
  }
}

KINORA_TILES_TARGET void pack_byte_weights(const PackedMatrix& matrix, int64_t row, Spans spans,
                                           int64_t begin, int64_t end, std::byte* to,
                                           PanelScales scales) {
  const bool four_bits = matrix.kind() == PackedKind::int4;
  const auto turn = four_bits ? turn_units<PackedKind::int4> : turn_units<PackedKind::int8>;
  const int64_t column_bytes = four_bits ? panel_rows / 2 : panel_rows;  // of a panel
  const __m256 common = _mm256_set1_ps(common_zero(matrix.kind()));
  for (int64_t own = 0; own < matrix_panels; ++own) {
    const int64_t index = row / panel_rows + own;
    const bool there = index < matrix.panels();
    const float* zeros = there ? matrix.zeros(index) : nullptr;
    std::byte* tiles = to + own * panel_rows * byte_tile_k;
    float* scale = scales.scales + own * panel_rows;
    float* shift = scales.shifts + own * panel_rows;
    for (int64_t column = begin; column < end; column += spans.width) {
      for (int64_t step = 0; step < spans.steps; ++step, tiles += byte_panel_step) {
        const int64_t first = column + step * byte_tile_k;
        const int64_t width = std::min(spans.width, byte_tile_k);
        const int64_t count = std::min(width, matrix.padded_columns() - first);
        if (there && count > 0) {
          turn(matrix.panel(index) + first * column_bytes, count, tiles);
        } else {
          std::memset(tiles, 0, panel_rows * byte_tile_k);
        }
      }
      __m256 own_scale = _mm256_setzero_ps(), zero = _mm256_setzero_ps();
      if (there) {
        const int64_t at = column / matrix.group() * panel_rows;
        own_scale = _mm256_loadu_ps(matrix.scales(index) + at);
        zero = zeros ? _mm256_loadu_ps(zeros + at) : _mm256_set1_ps(matrix.zero());
      }
      _mm256_storeu_ps(scale, own_scale);
      _mm256_storeu_ps(shift, _mm256_mul_ps(own_scale, _mm256_sub_ps(zero, common)));
      scale += panel;
      shift += panel;
    }
  }
}

}  // namespace kinora::cpu

#endif
