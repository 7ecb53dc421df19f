// Turning 16 rows of 16 numbers of 32 bits, for the kernels of x86-64 that work with tiles: a
// tile's right factor stands with its rows side by side, and sums come out turned. Used by
// matmul_bf16_x86_cpu.cc and packed_amx_int8_pack_cpu.cc, which run where the processor was asked.
#pragma once

#if defined(__x86_64__)

#include <algorithm>
#include <cstdint>

#include "ops/matmul_bf16_x86.h"
#include "ops/x86_intrinsics.h"

namespace kinora::cpu {

// Columns 4 × `chunk` and the three after it of 16 rows of 16 values, `stride` values apart.
KINORA_AVX512_TARGET inline void turn_four(const float* from, int64_t stride, int chunk,
                                           __m512 (&columns)[4]) {
  from += chunk * 4;
  __m512 quarter[4];  // of every fourth row
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
    const float* row = from + q * stride;
    __m512 rows = _mm512_castps128_ps512(_mm_loadu_ps(row));
    rows = _mm512_insertf32x4(rows, _mm_loadu_ps(row + 4 * stride), 1);
    rows = _mm512_insertf32x4(rows, _mm_loadu_ps(row + 8 * stride), 2);
    quarter[q] = _mm512_insertf32x4(rows, _mm_loadu_ps(row + 12 * stride), 3);
  }
  const auto low01 = _mm512_castps_pd(_mm512_unpacklo_ps(quarter[0], quarter[1]));
  const auto low23 = _mm512_castps_pd(_mm512_unpacklo_ps(quarter[2], quarter[3]));
  const auto high01 = _mm512_castps_pd(_mm512_unpackhi_ps(quarter[0], quarter[1]));
  const auto high23 = _mm512_castps_pd(_mm512_unpackhi_ps(quarter[2], quarter[3]));
  columns[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(low01, low23));
  columns[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low01, low23));
  columns[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high01, high23));
  columns[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high01, high23));
}

// Bits [begin, end) of a mask, as far as there are 16.
inline __mmask16 bits_of(int64_t begin, int64_t end) {
  const auto below = [](int64_t count) {
    return (uint32_t{1} << std::clamp<int64_t>(count, 0, 16)) - 1;
  };
  return static_cast<__mmask16>(below(end) & ~below(begin));
}

}  // namespace kinora::cpu

#endif
