#include "ops/matmul_bf16_x86.h"
#include "ops/packed_cpu.h"
#include "ops/packed_matmul.h"
#include "ops/x86_intrinsics.h"

// Whole-number weights times rows as exact as f32 by AMX's products of bf16, which holds every code
// less its zero exactly, and a third of a row's bits: sums of one group are multiplied by its
// scales and added up in f32. Nothing here may run before packed_amx_available() has said yes.

#if defined(__x86_64__) && defined(__linux__)

#include <algorithm>

namespace kinora::cpu {
namespace {

constexpr int64_t panel = bf16_panel;
constexpr int64_t panel_rows = PackedMatrix::panel_rows;
constexpr int64_t matrix_panels = panel / panel_rows;  // of the matrix in one of ours
constexpr int64_t unit_bytes = 64;                     // see packed_matrix.h
constexpr int parts = 3;                               // of bf16 in a row

// Eight columns of eight rows each: 32 columns of a panel of the matrix.
struct Units {
  __m512i eight[4];
};

template <PackedKind kind>
KINORA_AVX512_TARGET inline Units load_units(const uint8_t* codes) {
  Units units;
  if constexpr (kind == PackedKind::int4) {
    const __m512i low_half = _mm512_set1_epi8(15);
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m512i both = _mm512_loadu_si512(codes + i * unit_bytes);
      units.eight[2 * i] = _mm512_and_si512(both, low_half);
      units.eight[2 * i + 1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low_half);
    }
  } else {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) units.eight[i] = _mm512_loadu_si512(codes + i * unit_bytes);
  }
  return units;
}

// 16 bytes as f32, less a zero.
KINORA_AVX512_TARGET inline __m512 widen(__m128i bytes, __m512 zero) {
  return _mm512_sub_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), zero);
}

// Two neighbouring rows of 32 columns, from the 128 bits of each register that hold them.
KINORA_AVX512_TARGET inline void widen_two_rows(__m128i a, __m128i b, __m128i c, __m128i d,
                                                const float* zeros, std::byte* to) {
  const __m512 zero0 = _mm512_set1_ps(zeros[0]), zero1 = _mm512_set1_ps(zeros[1]);
  const __m512 low0 = widen(_mm_unpacklo_epi64(a, b), zero0);
  const __m512 high0 = widen(_mm_unpacklo_epi64(c, d), zero0);
  const __m512 low1 = widen(_mm_unpackhi_epi64(a, b), zero1);
  const __m512 high1 = widen(_mm_unpackhi_epi64(c, d), zero1);
  _mm512_store_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high0, low0));
  _mm512_store_si512(to + 64, (__m512i)_mm512_cvtne2ps_pbh(high1, low1));
}

// Columns [first, first + count) of eight rows into [count / 32][32 rows][32 values]; `first` is a
// multiple of 32, and all lie in one group with these zeros.
template <PackedKind kind>
KINORA_AVX512_TARGET void widen_panel(const uint8_t* codes, int64_t first, int64_t count,
                                      const float* zeros, std::byte* to) {
  constexpr int64_t step_bytes = (kind == PackedKind::int4 ? 2 : 4) * unit_bytes;
  codes += first / bf16_tile_k * step_bytes;
  for (int64_t j = 0; j < count; j += bf16_tile_k, codes += step_bytes, to += bf16_panel_step) {
    const Units units = load_units<kind>(codes);
    const __m512i* u = units.eight;
    widen_two_rows(_mm512_extracti32x4_epi32(u[0], 0), _mm512_extracti32x4_epi32(u[1], 0),
                   _mm512_extracti32x4_epi32(u[2], 0), _mm512_extracti32x4_epi32(u[3], 0), zeros,
                   to);
    widen_two_rows(_mm512_extracti32x4_epi32(u[0], 1), _mm512_extracti32x4_epi32(u[1], 1),
                   _mm512_extracti32x4_epi32(u[2], 1), _mm512_extracti32x4_epi32(u[3], 1),
                   zeros + 2, to + 128);
    widen_two_rows(_mm512_extracti32x4_epi32(u[0], 2), _mm512_extracti32x4_epi32(u[1], 2),
                   _mm512_extracti32x4_epi32(u[2], 2), _mm512_extracti32x4_epi32(u[3], 2),
                   zeros + 4, to + 256);
    widen_two_rows(_mm512_extracti32x4_epi32(u[0], 3), _mm512_extracti32x4_epi32(u[1], 3),
                   _mm512_extracti32x4_epi32(u[2], 3), _mm512_extracti32x4_epi32(u[3], 3),
                   zeros + 6, to + 384);
  }
}

// The part of a block of k that lies in one group, from its first column on.
struct Span {
  int64_t first, count, group;
};

Span span_at(const PackedMatrix& matrix, int64_t first, int64_t block_end) {
  const int64_t group = first / matrix.group();
  return {first, std::min(block_end, (group + 1) * matrix.group()) - first, group};
}

// Columns of `span` of 32 rows of the matrix from `row` on; rows that do not exist are left alone.
void widen_span(const PackedMatrix& matrix, int64_t row, const Span& span, std::byte* to) {
  const int64_t first = row / panel_rows, last = std::min(matrix.panels(), first + matrix_panels);
  for (int64_t index = first; index < last; ++index, to += panel_rows * 64) {
    float zeros[panel_rows];
    for (int64_t i = 0; i < panel_rows; ++i) {
      const float* own = matrix.zeros(index);
      zeros[i] = own ? own[span.group * panel_rows + i] : matrix.zero();
    }
    (matrix.kind() == PackedKind::int4
         ? widen_panel<PackedKind::int4>
         : widen_panel<PackedKind::int8>)(matrix.panel(index), span.first, span.count, zeros, to);
  }
}

// totals = or += sums × the scales of their rows, of 32 rows of the matrix from `row` on.
KINORA_AVX512_TARGET void add_scaled(const PackedMatrix& matrix, int64_t row, int64_t group,
                                     int64_t tiles, const float* sums, bool first, float* totals) {
  for (int64_t i = 0; i < panel; ++i) {
    const int64_t index = (row + i) / panel_rows;
    if (index == matrix.panels()) return;
    const __m512 scale = _mm512_set1_ps(matrix.scales(index)[group * panel_rows + i % panel_rows]);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t at = (i / bf16_tile_rows * tiles + tile) * bf16_tile_sums +
                         i % bf16_tile_rows * bf16_tile_rows;
      const __m512 before = first ? _mm512_setzero_ps() : _mm512_load_ps(totals + at);
      _mm512_store_ps(totals + at, _mm512_fmadd_ps(_mm512_load_ps(sums + at), scale, before));
    }
  }
}

void run_task(const PackedWork& product, const Bf16Kernel& kernel, const BlockTask& task,
              const std::byte* packed_a, std::byte* packed_w) {
  constexpr auto value_bytes = static_cast<int64_t>(sizeof(bf16));
  const MatmulWork& work = product.work;
  const PackedMatrix& matrix = *product.matrix;
  const int64_t packed_k = round_up(work.k, bf16_tile_k);
  const int64_t step = block_step(bf16_blocks, work.k);
  kernel.begin();
  for (int64_t k_begin = 0; k_begin < work.k; k_begin += step) {
    const int64_t k_end = std::min(packed_k, k_begin + step);
    for (int64_t row = task.row_begin; row < task.row_end; row += panel) {
      Bf16Sums totals;
      totals.row = task.first_row + row;
      totals.rows = std::min(panel, task.row_end - row);
      totals.end = task.column_end;
      totals.first = k_begin == 0;
      const Bf16Multiply multiply = kernel.multiply(totals.rows, parts);
      const int64_t tiles = divide_up(totals.rows, bf16_tile_rows);
      for (int64_t column = task.column_begin; column < task.column_end; column += panel) {
        std::byte* packed =
            packed_w + (column - task.column_begin) * (k_end - k_begin) * value_bytes;
        // Sums of one span are scaled while the next one is multiplied.
        alignas(64) float sums[2][4 * bf16_tile_sums];
        int64_t waiting = -1;
        int turn = 0;
        for (int64_t at = k_begin; at < k_end;) {
          const Span span = span_at(matrix, at, k_end);
          Bf16Weights weights;
          std::byte* own = packed + (at - k_begin) * panel * value_bytes;
          if (row == task.row_begin) widen_span(matrix, column, span, own);
          weights.at = own;
          weights.stride = bf16_tile_k * value_bytes;
          weights.step = bf16_panel_step;
          weights.steps = span.count / bf16_tile_k;
          multiply(weights, packed_a + (row * packed_k + at * panel) * parts * value_bytes,
                   sums[turn]);
          if (waiting >= 0) {
            add_scaled(matrix, column, waiting, tiles, sums[1 - turn],
                       waiting == k_begin / matrix.group(), totals.values);
          }
          waiting = span.group;
          turn = 1 - turn;
          at += span.count;
        }
        add_scaled(matrix, column, waiting, tiles, sums[1 - turn],
                   waiting == k_begin / matrix.group(), totals.values);
        totals.column = totals.begin = column;
        write_bf16_sums(work, totals);
      }
    }
  }
  kernel.end();
}

}  // namespace

bool packed_amx_available() { return amx_bf16_kernel() != nullptr; }

void packed_amx(const Context& context, const PackedWork& product) {
  const MatmulWork& work = product.work;
  run_blocks<Bf16Parts<parts>>(
      context, work, bf16_blocks,
      [&](int64_t row, int64_t count, Bf16Parts<parts>* to) {
        pack_bf16_rows(work.a + row * work.a_stride, work.a_stride, count, work.k, parts,
                       reinterpret_cast<std::byte*>(to));
      },
      [&](const BlockTask& task, const Bf16Parts<parts>* packed_a, Bf16Parts<parts>* scratch) {
        run_task(product, *amx_bf16_kernel(), task, reinterpret_cast<const std::byte*>(packed_a),
                 reinterpret_cast<std::byte*>(scratch));
      });
}

}  // namespace kinora::cpu

#else

namespace kinora::cpu {

bool packed_amx_available() { return false; }
void packed_amx(const Context&, const PackedWork&) {}

}  // namespace kinora::cpu

#endif
