#include "ops/matmul_bf16_x86.h"
#include "ops/x86_intrinsics.h"

// VDPBF16PS adds products of 16 pairs to 16 sums: here a pair of weights, in every lane, meets
// pairs of 16 rows. Nothing here may run before the processor has been asked.

#if defined(__x86_64__) && defined(__linux__)

namespace kinora::cpu {
namespace {

constexpr int64_t tile_sums = bf16_tile_sums;
constexpr int pairs = 16;  // in a step

// Sums of `count` weights × `tiles` tiles of rows, in registers.
template <int tiles, int count>
struct Registers {
  __m512 sums[count][tiles];
};

template <int tiles, int count>
KINORA_AVX512_TARGET inline void multiply_step(const std::byte* weights, int64_t stride,
                                               const std::byte* rows,
                                               Registers<tiles, count>& registers) {
  for (int p = 0; p < pairs; ++p, weights += 4, rows += 64) {
    __m512bh values[tiles];
#pragma GCC unroll 2
    for (int t = 0; t < tiles; ++t) {
      values[t] = (__m512bh)_mm512_load_si512(rows + t * bf16_tile_bytes);
    }
#pragma GCC unroll 16
    for (int c = 0; c < count; ++c) {
      int pair;
      __builtin_memcpy(&pair, weights + c * stride, sizeof(pair));
      const __m512bh weight = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 2
      for (int t = 0; t < tiles; ++t) {
        registers.sums[c][t] = _mm512_dpbf16_ps(registers.sums[c][t], weight, values[t]);
      }
    }
  }
}

// `count` weights, which divide 16, at a time.
template <int tiles, int count>
KINORA_AVX512_TARGET void multiply(const Bf16Weights& weights, const std::byte* rows, float* sums) {
  constexpr int64_t step = 2 * bf16_tile_bytes;  // of rows
  for (int64_t first = 0; first < 2 * bf16_tile_rows; first += count) {
    Registers<tiles, count> registers;
#pragma GCC unroll 16
    for (int c = 0; c < count; ++c) {
#pragma GCC unroll 2
      for (int t = 0; t < tiles; ++t) registers.sums[c][t] = _mm512_setzero_ps();
    }
    const std::byte* at = weights.at + first * weights.stride;
    const std::byte* fetch = weights.fetch;  // every part of the weights fetches its share
    if (fetch != nullptr) fetch += first * weights.fetch_stride;
    for (int64_t i = 0; i < weights.steps; ++i, at += weights.step) {
      if (fetch != nullptr) {
        for (int line = 0; line < count; ++line) {
          __builtin_prefetch(fetch + line * weights.fetch_stride, 0, 2);  // 2: second-level cache
        }
        fetch += weights.fetch_step;
      }
      multiply_step(at, weights.stride, rows + i * step, registers);
    }
    if (weights.last != nullptr) {
      multiply_step(weights.last + first * 64, 64, rows + weights.steps * step, registers);
    }
    const int64_t tile = first / bf16_tile_rows, at_row = first % bf16_tile_rows;
#pragma GCC unroll 16
    for (int c = 0; c < count; ++c) {
#pragma GCC unroll 2
      for (int t = 0; t < tiles; ++t) {
        _mm512_store_ps(sums + (tile * tiles + t) * tile_sums + (at_row + c) * bf16_tile_rows,
                        registers.sums[c][t]);
      }
    }
  }
}

void nothing() {}

constexpr Bf16Kernel kernel{multiply<1, 16>, multiply<2, 8>, nullptr, nullptr, nothing, nothing};

void run(const Context& context, std::span<const MatmulWork> products, bool exact) {
  if (!exact) return multiply_bf16_x86(context, products, kernel, false);
  // Faster than three products.
  for (const MatmulWork& work : products) matmul_blocked(context, work);
}

}  // namespace

const Bf16Product* avx512_bf16_product() {
  // AMD's cores begin one a cycle and so double what f32 gives; Intel's begin one in two, which is
  // half of it.
  static const Bf16Product product{"AVX512_BF16", __builtin_cpu_is("amd") != 0, 0, run};
  static const bool there = __builtin_cpu_supports("avx512bf16") != 0 &&
                            __builtin_cpu_supports("avx512bw") != 0 &&
                            __builtin_cpu_supports("avx512dq") != 0;
  return there ? &product : nullptr;
}

}  // namespace kinora::cpu

#else

namespace kinora::cpu {

const Bf16Product* avx512_bf16_product() { return nullptr; }

}  // namespace kinora::cpu

#endif
