// The rows of a product with packed weights (packed_few_cuda.cuh) as a block holds them: f16 in
// shared memory, normed on the way where a norm is given. f16 holds them as exactly as bf16 does:
// the columns of a piece are multiplied by the power of two that brings the largest of them close
// to the largest number.
#pragma once

#include "ops/cuda_kernels.h"
#include "ops/matmul_parts_cuda.cuh"

namespace kinora::cuda::few {

constexpr int warps = 12;
constexpr int threads = 32 * warps;
constexpr int pass_rows = 16;  // rows of a in one pass over the weights, at most
constexpr int tile_rows = 8;   // rows of a in one product of the tensor cores

// How shared memory is divided; all sizes in bytes.
struct Division {
  int columns;     // of a block, whole pieces
  size_t rows;     // [m, columns] f16
  size_t factors;  // [pieces of a block, tiles × tile_rows] of two f32: the sum of the row in the
                   // piece as it is multiplied, and what its products are too small by
  size_t slots;    // [ring, vectors, threads] of codes
  size_t affine;   // [ring, warps] of scales and zero points
  size_t later;    // [warps, tiles, 32] of four sums
  size_t sums;     // [strips of a block, tiles, 32] of four sums

  size_t all() const { return rows + factors + slots + affine + later + sums; }
};

// All of a product but its weights.
struct Rows {
  int split;  // blocks that share the columns of a strip
  const __nv_bfloat16* a;
  int64_t a_stride;
  bool whole_vectors;  // rows of a can be read sixteen bytes at a time
  // Rows before their RMS norm, in the place of `a`; null: none.
  const float* unnormed;
  const __nv_bfloat16* norm;
  float epsilon;
  int m, n, k;  // n: columns of out
  const void* bias;
  DType bias_type;
  bool accumulate;
  void* out;
  DType out_type;
  int64_t out_stride;
  Division division;
};

__device__ __forceinline__ float unpack(const uint4& eight, int j) {
  const uint32_t pair = j < 2 ? eight.x : j < 4 ? eight.y : j < 6 ? eight.z : eight.w;
  return __uint_as_float(j % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
}

// Eight columns of a row as they are in memory.
struct PlainColumns {
  uint4 eight;

  __device__ __forceinline__ void load(const Rows& shape, int row, int column) {
    const __nv_bfloat16* from = shape.a + row * shape.a_stride + column;
    eight = make_uint4(0, 0, 0, 0);
    if (shape.whole_vectors) {
      if (column < shape.k) eight = __ldcg(reinterpret_cast<const uint4*>(from));
      return;
    }
    __nv_bfloat16 values[8];
    for (int j = 0; j < 8; ++j) {
      values[j] = column + j < shape.k ? from[j] : __float2bfloat16_rn(0.0f);
    }
    memcpy(&eight, values, sizeof(eight));
  }
  __device__ __forceinline__ float value(int j, float) const { return unpack(eight, j); }
};

// The same before their norm.
struct UnnormedColumns {
  float4 low, high;
  uint4 norm;

  __device__ __forceinline__ void load(const Rows& shape, int row, int column) {
    low = high = make_float4(0, 0, 0, 0);
    norm = make_uint4(0, 0, 0, 0);
    if (column >= shape.k) return;  // k is a multiple of eight here
    const auto* from =
        reinterpret_cast<const float4*>(shape.unnormed + row * shape.a_stride + column);
    low = __ldcg(from);
    high = __ldcg(from + 1);
    norm = __ldg(reinterpret_cast<const uint4*>(shape.norm + column));
  }
  __device__ __forceinline__ float value(int j, float factor) const {
    const float own[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    return __bfloat162float(__float2bfloat16_rn(own[j] * factor * unpack(norm, j)));
  }
};

// Puts eight columns of a row, vector `vector` of it, to the others in `target`; neighbouring lanes
// have those of a piece.
template <int tiles, int piece_vectors>
__device__ __forceinline__ void put_columns(const float (&x)[8], int row, int vector, char* target,
                                            float2* factors) {
  const unsigned int lanes = ((1u << piece_vectors) - 1) << (threadIdx.x & (32 - piece_vectors));
  float largest = 0, sum = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    largest = fmaxf(largest, fabsf(x[j]));
    sum += x[j];
  }
#pragma unroll
  for (int step = 1; step < piece_vectors; step *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(lanes, largest, step));
    sum += __shfl_xor_sync(lanes, sum, step);
  }
  // The largest comes to lie between 2^14 and 2^15.
  const int exponent =
      min(max(2 * 127 + 14 - static_cast<int>(__float_as_uint(largest) >> 23), 1), 253);
  const float larger = __uint_as_float(static_cast<uint32_t>(exponent) << 23);
  const auto pair = [&](int j) {
    const __half2 both = __floats2half2_rn(x[j] * larger, x[j + 1] * larger);
    uint32_t raw;
    memcpy(&raw, &both, sizeof(raw));
    return raw;
  };
  // Eight rows of one column meet different banks.
  *reinterpret_cast<uint4*>(target + ((vector ^ (row & 7)) << 4)) =
      make_uint4(pair(0), pair(2), pair(4), pair(6));
  if (vector % piece_vectors == 0) {
    factors[vector / piece_vectors * (tiles * tile_rows) + row] =
        make_float2(sum * larger, __uint_as_float(static_cast<uint32_t>(254 - exponent) << 23));
  }
}

// rows and factors ← the columns of `pieces` pieces from `first` on, zeros beyond the last column.
// `at_once` vectors of a thread are on their way together.
template <class Weights, int tiles, class Columns, int at_once>
__device__ __forceinline__ void bring_rows(const Rows& shape, const float* norm_factors, char* rows,
                                           float2* factors, int first, int pieces) {
  constexpr int piece_vectors = Weights::columns / 8;
  const int vectors = pieces * piece_vectors, all = shape.m * vectors;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < all; i += at_once * threads) {
    Columns columns[at_once];
#pragma unroll
    for (int n = 0; n < at_once; ++n) {
      const int own = i + n * threads, row = own / vectors;
      if (own < all) columns[n].load(shape, row, first + (own - row * vectors) * 8);
    }
#pragma unroll
    for (int n = 0; n < at_once; ++n) {
      const int own = i + n * threads, row = own / vectors;
      if (own >= all) break;
      float x[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) x[j] = columns[n].value(j, norm_factors[row]);
      put_columns<tiles, piece_vectors>(x, row, own - row * vectors,
                                        rows + row * shape.division.columns * 2, factors);
    }
  }
}

// factors[row] ← 1 / the root mean square of a row; a warp takes a row, or all take the only one.
__device__ __forceinline__ void find_norm_factors(const Rows& shape, float* factors,
                                                  float* scratch) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  const bool alone = shape.m == 1;
  for (int row = alone ? 0 : warp; row < shape.m; row += alone ? 1 : warps) {
    const auto* from = reinterpret_cast<const float4*>(shape.unnormed + row * shape.a_stride);
    float squares = 0;
#pragma unroll 4
    for (int i = alone ? thread : thread % 32; i < shape.k / 4; i += alone ? threads : 32) {
      const float4 four = __ldcg(from + i);
      squares += four.x * four.x + four.y * four.y + four.z * four.z + four.w * four.w;
    }
    squares = alone ? block_sum(squares, scratch) : warp_sum(squares);
    factors[row] = 1.0f / sqrtf(squares / static_cast<float>(shape.k) + shape.epsilon);
  }
}

}  // namespace kinora::cuda::few
