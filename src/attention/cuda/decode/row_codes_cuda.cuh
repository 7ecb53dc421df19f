// Rows in 8 bits (ops/packed_rows.h) as the decode kernels' tensor cores take them: codes become
// bf16, which holds all of them exactly, and scales stay apart.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <cstring>

#include "ops/packed_rows.h"

namespace kinora::cuda_attention {

template <int HeadSize>
constexpr int scale_blocks = HeadSize / static_cast<int>(columns_per_scale);
template <int HeadSize>
constexpr int packed_head_bytes = HeadSize + scale_blocks<HeadSize> * 2;

__device__ inline __nv_bfloat162 as_pair(uint32_t raw) {
  __nv_bfloat162 pair;
  memcpy(&pair, &raw, sizeof(pair));
  return pair;
}
__device__ inline uint32_t as_word(__nv_bfloat162 pair) {
  uint32_t raw;
  memcpy(&raw, &pair, sizeof(raw));
  return raw;
}

// Two codes as bf16; each stands in both bytes of a half of the word.
__device__ inline uint32_t widen_codes(uint32_t twice, int8_t) {
  // As bf16, 0x4300 + seven bits is 128 + them; 0x4300 + the sign's bit is 128, or 256 below zero.
  const uint32_t number = (twice & 0x007f007fu) | 0x43004300u;
  const uint32_t base = (twice & 0x00800080u) | 0x43004300u;
  return as_word(__hsub2(as_pair(number), as_pair(base)));
}
__device__ inline uint32_t widen_codes(uint32_t twice, e4m3) {
  // Exponent and fraction moved into those of bf16 give the number times 2^-120.
  const uint32_t small = (twice & 0x80008000u) | (twice >> 4 & 0x07f007f0u);
  return as_word(__hmul2(as_pair(small), as_pair(0x7b807b80u)));
}

// Codes 2 · Pair and the next of a word.
template <int Pair, typename T>
__device__ inline uint32_t widen_pair(uint32_t word) {
  return widen_codes(__byte_perm(word, 0, Pair == 0 ? 0x1100 : 0x3322), T());
}
// Code `Place` of each of two words.
template <int Place, typename T>
__device__ inline uint32_t widen_across(uint32_t first, uint32_t second) {
  return widen_codes(__byte_perm(first, second, 0x4400 + 0x1111 * Place), T());
}

// The scales of a head, two in a word.
template <int HeadSize>
struct HeadScales {
  static_assert(HeadSize == 64 || HeadSize == 128);
  uint32_t words[HeadSize / 64];

  __device__ void load(const uint32_t* from) {
    if constexpr (HeadSize == 128) {  // aligned to 8 bytes
      const uint2 both = *reinterpret_cast<const uint2*>(from);
      words[0] = both.x;
      words[1] = both.y;
    } else {
      words[0] = *from;
    }
  }
  __device__ float of(int block) const {
    const uint32_t word = words[block / 2];
    return __uint_as_float(block % 2 == 0 ? word << 16 : word & 0xffff0000u);
  }
};

}  // namespace kinora::cuda_attention
