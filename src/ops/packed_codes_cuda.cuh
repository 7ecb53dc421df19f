// Codes of packed weights as a warp reads them, and as the tensor cores take them. Only the kernels
// for products with packed weights include this.
#pragma once

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
  int strips, pieces, group, groups;
  bool paired;

  template <PackedKind kind>
  __device__ __forceinline__ const uint4* piece_of(int strip, int at) const {
    return codes + (int64_t{strip} * pieces + at) * (lane_vectors<kind> * 32);
  }
  // Of the scales of the lane's rows in a piece.
  __device__ __forceinline__ int64_t scale_of(int strip, int at, int lane) const {
    return (int64_t{strip} * groups + at * strip_piece / group) * 8 + lane / 4;
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
  codes.group =
      static_cast<int>(weight.groups() == 1 ? weight.pieces() * strip_piece : weight.group());
  codes.groups = static_cast<int>(weight.groups());
  codes.paired = weight.paired();
  return codes;
}

__device__ __forceinline__ __nv_bfloat162 pair_of(uint32_t raw) {
  __nv_bfloat162 value;
  memcpy(&value, &raw, sizeof(value));
  return value;
}

// Four registers of one product from the codes of a lane. zero[0] and zero[1] are 128 + the zero
// point of the lane's two rows, each twice.
__device__ __forceinline__ void widen_int4(uint32_t (&left)[4], uint32_t word,
                                           const uint32_t (&zero)[2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // As bf16, 0x4300 + code is 128 + code.
    const uint32_t number = (word >> (4 * i) & 0x000f000fu) | 0x43004300u;
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

// What a lane has of a piece.
template <PackedKind kind>
struct LanePiece {
  uint32_t words[4 * lane_vectors<kind>];

  __device__ __forceinline__ void put(int vector, const uint4& four) {
    words[4 * vector] = four.x;
    words[4 * vector + 1] = four.y;
    words[4 * vector + 2] = four.z;
    words[4 * vector + 3] = four.w;
  }
  // The registers of product `step`, without their scales.
  __device__ __forceinline__ void widen(uint32_t (&left)[4], int step, uint32_t zeros) const {
    if constexpr (kind == PackedKind::int4) {
      const uint32_t zero[2] = {__byte_perm(zeros, 0, 0x1010), __byte_perm(zeros, 0, 0x3232)};
      widen_int4(left, words[step], zero);
    } else {
      const uint32_t own[2] = {words[2 * step], words[2 * step + 1]};
      if constexpr (kind == PackedKind::int8) {
        const float zero[2] = {8388608.0f + __uint_as_float(zeros << 16),
                               8388608.0f + __uint_as_float(zeros & 0xffff0000u)};
        widen_int8(left, own, zero);
      } else {
        widen_fp8(left, own);
      }
    }
  }
};

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
