// Codes of packed weights as a warp reads them, and as the tensor cores take them. Only the kernels
// for products with packed weights include this.
#pragma once

#include <cuda_fp8.h>

#include "ops/matmul_parts_cuda.cuh"
#include "ops/packed_strips.h"

namespace kinora::cuda {

constexpr int strip_piece = static_cast<int>(PackedStrips::piece_columns);
constexpr int piece_steps = strip_piece / 16;  // products of the tensor cores in a piece

template <PackedKind kind>
constexpr int lane_vectors = kind == PackedKind::int4 ? 1 : 2;  // of 16 bytes, in a piece

// PackedStrips for kernels.
struct StripCodes {
  const uint4* codes;     // [strips, pieces, vectors, 32]
  const float2* scales;   // [strips, groups, 8]: of rows r and r + 8
  const uint32_t* zeros;  // the same, two of bf16; null: `zero` everywhere
  uint32_t zero;
  int strips, pieces;
  int group_pieces, groups;  // pieces that share a scale
  bool paired;

  template <PackedKind kind>
  __device__ __forceinline__ const uint4* piece_of(int strip, int at) const {
    return codes + (int64_t{strip} * pieces + at) * (lane_vectors<kind> * 32);
  }
  // Of the scales of the lane's rows in a piece.
  __device__ __forceinline__ int64_t scale_of(int strip, int at, int lane) const {
    return (int64_t{strip} * groups + at / group_pieces) * 8 + lane / 4;
  }
};

inline StripCodes codes_of(const PackedStrips& weight) {
  StripCodes codes{};
  codes.codes = device_data<uint4>(weight.codes());
  codes.scales = device_data<float2>(weight.scales());
  codes.zeros = device_data<uint32_t>(weight.zeros());
  const uint32_t zero = bf16::from_float(128 + weight.zero()).bits;
  codes.zero = zero | zero << 16;
  codes.strips = static_cast<int>(weight.strips());
  codes.pieces = static_cast<int>(weight.pieces());
  // The only group of a row may end within a piece.
  codes.group_pieces = static_cast<int>(
      weight.groups() == 1 ? weight.pieces() : weight.group() / PackedStrips::piece_columns);
  codes.groups = static_cast<int>(weight.stored_groups());
  codes.paired = weight.paired();
  return codes;
}

__device__ __forceinline__ __nv_bfloat162 pair_of(uint32_t raw) {
  __nv_bfloat162 value;
  memcpy(&value, &raw, sizeof(value));
  return value;
}

// (word & mask) | exponent in one instruction: the compiler makes two of constants.
__device__ __forceinline__ uint32_t masked_or(uint32_t word, uint32_t mask, uint32_t exponent) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(exponent));
  return result;
}

// Four registers of one product from the codes of a lane. zero[0] and zero[1] are 128 + the zero
// point of the lane's two rows, each twice.
__device__ __forceinline__ void widen_int4(uint32_t (&left)[4], uint32_t word,
                                           const uint32_t (&zero)[2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // As bf16, 0x4300 + code is 128 + code.
    const uint32_t number = masked_or(word >> (4 * i), 0x000f000fu, 0x43004300u);
    left[i] = raw_of(__hsub2(pair_of(number), pair_of(zero[i % 2])));
  }
}

__device__ __forceinline__ void widen_int8(uint32_t (&left)[4], const uint32_t (&words)[2],
                                           const float (&zero)[2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // As f32, 0x4b000000 + code is 2^23 + code, and 2^23 + 128 + zero point is exact.
    const uint32_t word = words[i / 2];
    const float low = __uint_as_float(__byte_perm(word, 0x4b000000u, i % 2 == 0 ? 0x7440 : 0x7442));
    const float high =
        __uint_as_float(__byte_perm(word, 0x4b000000u, i % 2 == 0 ? 0x7441 : 0x7443));
    left[i] = raw_of(__floats2bfloat162_rn(low - zero[i % 2], high - zero[i % 2]));
  }
}

__device__ __forceinline__ void widen_fp8(uint32_t (&left)[4], const uint32_t (&words)[2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Exponent and fraction of e4m3 moved into those of bf16 give the number times 2^-120.
    const uint32_t spread = __byte_perm(words[i / 2], 0, i % 2 == 0 ? 0x1404 : 0x3424);
    const uint32_t small = (spread & 0x80008000u) | ((spread & 0x7f007f00u) >> 4);
    left[i] = raw_of(__hmul2(pair_of(small), pair_of(0x7b807b80u)));
  }
}

// The registers of a product, without their scales, from two words of codes in 8 bits or one in 4.
// `zeros`: 128 + the zero points of the lane's two rows, as bf16.
template <PackedKind kind>
__device__ __forceinline__ void widen_codes(uint32_t (&left)[4], const uint32_t* words,
                                            uint32_t zeros) {
  if constexpr (kind == PackedKind::int4) {
    const uint32_t zero[2] = {__byte_perm(zeros, 0, 0x1010), __byte_perm(zeros, 0, 0x3232)};
    widen_int4(left, words[0], zero);
  } else {
    const uint32_t own[2] = {words[0], words[1]};
    if constexpr (kind == PackedKind::int8) {
      const float zero[2] = {8388608.0f + __uint_as_float(zeros << 16),
                             8388608.0f + __uint_as_float(zeros & 0xffff0000u)};
      widen_int8(left, own, zero);
    } else {
      widen_fp8(left, own);
    }
  }
}

// What turns a product with halves_of into one with the numbers that the codes stand for, for the
// lane's two rows: scale · (product − offset · sum of the other factor).
struct Affine {
  float scale[2], offset[2];
};

template <PackedKind kind>
__device__ __forceinline__ Affine affine_of(const float2& scale, uint32_t zeros) {
  const float low = __uint_as_float(zeros << 16), high = __uint_as_float(zeros & 0xffff0000u);
  if constexpr (kind == PackedKind::int4) {
    // 1024 + zero point, and 16 times the second row's
    return {{scale.x, scale.y * 0.0625f}, {low + (1024.0f - 128), fmaf(high, 16, 1024 - 16 * 128)}};
  } else if constexpr (kind == PackedKind::int8) {
    return {{scale.x, scale.y}, {low + 1024.0f, high + 1024.0f}};
  } else {
    return {{scale.x, scale.y}, {}};
  }
}

// The registers of a product in f16, as few instructions as can be: codes come with an offset, and
// in 4 bits those of the second row 16 times as large (Affine). As f16, 0x6400 + code is
// 1024 + code.
template <PackedKind kind>
__device__ __forceinline__ void halves_of(uint32_t (&left)[4], const uint32_t* words) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kind == PackedKind::int4) {
      const uint32_t word = i < 2 ? words[0] : words[0] >> 8;
      left[i] = masked_or(word, i % 2 == 0 ? 0x000f000fu : 0x00f000f0u, 0x64006400u);
    } else if constexpr (kind == PackedKind::int8) {
      left[i] = __byte_perm(words[i / 2], 0x64646464u, i % 2 == 0 ? 0x4140 : 0x4342);
    } else {
      const auto both = static_cast<__nv_fp8x2_storage_t>(words[i / 2] >> (16 * (i % 2)));
      const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(both, __NV_E4M3);
      left[i] = halves.x | static_cast<uint32_t>(halves.y) << 16;
    }
  }
}

// What a lane has of a piece; `from` is its first vector.
template <PackedKind kind>
__device__ __forceinline__ void read_piece(uint32_t (&words)[4 * lane_vectors<kind>],
                                           const uint4* from) {
#pragma unroll
  for (int v = 0; v < lane_vectors<kind>; ++v) {
    const uint4 four = __ldg(from + v * 32);
    memcpy(words + 4 * v, &four, sizeof(four));
  }
}

// Calls body.operator()<kind>().
template <class Body>
void with_packed_kind(PackedKind kind, const Body& body) {
  switch (kind) {
    case PackedKind::int4:
      return body.template operator()<PackedKind::int4>();
    case PackedKind::int8:
      return body.template operator()<PackedKind::int8>();
    case PackedKind::fp8:
      return body.template operator()<PackedKind::fp8>();
  }
}

}  // namespace kinora::cuda
