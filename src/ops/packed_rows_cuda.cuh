// Rows in 8 bits (packed_rows.h) as kernels write and read single columns of them. Codes and scales
// are those that packed_rows_cpu.cc makes of the same floats, bit for bit.
#pragma once

#include <cstdint>

#include "base/cuda_support.h"
#include "ops/packed_rows.h"

namespace kinora::cuda {

template <typename T>
constexpr float largest_code = 127;
template <>
constexpr float largest_code<e4m3> = 448;

// The code nearest to a value whose scale is 1.
__device__ __forceinline__ uint8_t code_of(float value, int8_t) {
  return static_cast<uint8_t>(max(-128, min(127, __float2int_rn(value))));
}
// Rounds to three bits of fraction, ties to even; below the smallest normal code to multiples of
// 2^-9. The next power of two is the next code in both cases.
__device__ __forceinline__ uint8_t code_of(float value, e4m3) {
  const float magnitude = fminf(fabsf(value), 448.0f);
  const uint32_t bits = __float_as_uint(magnitude);
  const uint32_t normal = ((bits + (bits >> 20 & 1) + 0x7ffffu) >> 20) - 120 * 8;
  const auto tiny = static_cast<uint32_t>(__float2int_rn(__fmul_rn(magnitude, 0x1p9f)));
  const uint32_t code = magnitude < 0x1p-6f ? tiny : normal;
  return static_cast<uint8_t>(code | (value < 0 ? 0x80u : 0u));
}

__device__ __forceinline__ float code_value(uint8_t code, int8_t) {
  return static_cast<float>(static_cast<int8_t>(code));
}
// Exponent and fraction moved into those of a float give the number times 2^-120.
__device__ __forceinline__ float code_value(uint8_t code, e4m3) {
  const uint32_t bits = (code & 0x80u) << 24 | (code & 0x7fu) << 20;
  return __fmul_rn(__uint_as_float(bits), 0x1p120f);
}

// Scales need not be aligned.
__device__ __forceinline__ float load_scale(const uint8_t* at) {
  return __uint_as_float(static_cast<uint32_t>(at[0]) << 16 | static_cast<uint32_t>(at[1]) << 24);
}

// Column `column` of a head.
template <typename T>
__device__ __forceinline__ float packed_value(const uint8_t* head, int head_size, int column) {
  const float scale = load_scale(head + head_size + column / columns_per_scale * sizeof(bf16));
  return __fmul_rn(code_value(head[column], T()), scale);
}

// A whole warp writes the columns that share a scale: lane i brings column i, lanes from `count` on
// bring none.
template <typename T>
__device__ __forceinline__ void pack_columns(float x, int count, uint8_t* codes, uint8_t* scale) {
  static_assert(columns_per_scale == 32, "a lane has a column");
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane >= count) x = 0;
  const bool finite = __all_sync(0xffffffffu, (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u);
  const float step = __fdiv_rn(warp_max(fabsf(x)), largest_code<T>);
  const uint32_t raw = __float_as_uint(step);
  const uint32_t rounded = finite ? (raw + 0x7fffu + (raw >> 16 & 1)) >> 16 : 0x7fc0u;
  const float factor = __fdiv_rn(1.0f, __uint_as_float(rounded << 16));
  const bool usable = finite && factor < INFINITY;  // a scale of 0, or too small to divide by
  if (lane < count) codes[lane] = usable ? code_of(__fmul_rn(x, factor), T()) : uint8_t{0};
  if (lane == 0) {
    scale[0] = static_cast<uint8_t>(rounded);
    scale[1] = static_cast<uint8_t>(rounded >> 8);
  }
}

// Calls body(T()) with the kind of codes that a packed type names.
template <class Body>
void with_codes(DType type, const Body& body) {
  type == DType::u8 ? body(e4m3()) : body(int8_t());
}

}  // namespace kinora::cuda
