// How a warp brings its slice of the columns of all rows into shared memory, as they are or before
// their norm, in bf16 or f16. Used by packed_slices_cuda.cuh.
#pragma once

#include "ops/packed_slices_parts_cuda.cuh"

namespace kinora::cuda::slices {

__device__ __forceinline__ float half_of(const uint4& eight, int j) {
  const uint32_t pair = j < 2 ? eight.x : j < 4 ? eight.y : j < 6 ? eight.z : eight.w;
  return __uint_as_float(j % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
}

// Eight columns of a row as they are in memory.
struct PlainColumns {
  static constexpr int at_once = 4;
  static constexpr bool normed = false;
  uint4 eight;

  __device__ __forceinline__ void clear() { eight = make_uint4(0, 0, 0, 0); }
  __device__ __forceinline__ void load(const Shape& shape, int row, int column) {
    eight = __ldcg(reinterpret_cast<const uint4*>(shape.a + row * shape.a_stride + column));
  }
  __device__ __forceinline__ float value(int j) const { return half_of(eight, j); }
  __device__ __forceinline__ float squares() const { return 0; }
};

// The same before their norm; what a whole row is divided by comes at the end.
struct UnnormedColumns {
  static constexpr int at_once = 2;
  static constexpr bool normed = true;
  float own[8];
  uint4 norm;

  __device__ __forceinline__ void clear() {
    for (float& value : own) value = 0;
    norm = make_uint4(0, 0, 0, 0);
  }
  __device__ __forceinline__ void load(const Shape& shape, int row, int column) {
    const auto* from =
        reinterpret_cast<const float4*>(shape.unnormed + row * shape.a_stride + column);
    const float4 low = __ldcg(from), high = __ldcg(from + 1);
    memcpy(own, &low, sizeof(low));
    memcpy(own + 4, &high, sizeof(high));
    norm = __ldg(reinterpret_cast<const uint4*>(shape.norm + column));
  }
  __device__ __forceinline__ float value(int j) const { return own[j] * half_of(norm, j); }
  __device__ __forceinline__ float squares() const {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) sum = fmaf(own[j], own[j], sum);
    return sum;
  }
};

__device__ __forceinline__ void store_vector(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

__device__ __forceinline__ void put_in_bf16(const float (&x)[8], uint32_t target) {
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = raw_of(__floats2bfloat162_rn(x[2 * i], x[2 * i + 1]));
  store_vector(target, pairs);
}

// Eight columns of a row as f16, times the power of two that brings the largest of a unit close to
// the largest number, so that f16 holds them as exactly as bf16 does; returns what that is undone
// with. `chunks` neighbouring lanes have the columns of a unit.
template <int chunks>
__device__ __forceinline__ float put_in_f16(const float (&x)[8], uint32_t target) {
  const unsigned int lanes = ((1u << chunks) - 1) << (threadIdx.x & (32 - chunks));
  float largest = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) largest = fmaxf(largest, fabsf(x[j]));
#pragma unroll
  for (int step = 1; step < chunks; step *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(lanes, largest, step));
  }
  // The largest comes to lie between 2^14 and 2^15.
  const int exponent =
      min(max(2 * 127 + 14 - static_cast<int>(__float_as_uint(largest) >> 23), 1), 253);
  const float larger = __uint_as_float(static_cast<uint32_t>(exponent) << 23);
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __half2 both = __floats2half2_rn(x[2 * i] * larger, x[2 * i + 1] * larger);
    memcpy(&pairs[i], &both, sizeof(both));
  }
  store_vector(target, pairs);
  return __uint_as_float(static_cast<uint32_t>(254 - exponent) << 23);
}

__device__ __forceinline__ void store_one(uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

// A warp brings its columns of all rows: `chunks` of eight, in shared memory from chunk `first` of
// a row on.
struct Slice {
  int column;  // the first
  int chunks, first;
  uint32_t rows, factors, squares;  // where they lie; the last two those of the slice

  // Eight rows of one chunk meet different banks.
  __device__ __forceinline__ uint32_t at(const Shape& shape, int row, int chunk) const {
    return rows + static_cast<uint32_t>(row) * shape.row_stride +
           (static_cast<uint32_t>((first + chunk) ^ (row & 7)) << 4);
  }
};

// Rows as they are.
__device__ __forceinline__ void copy_rows(const Shape& shape, const Slice& slice, int lane) {
  const int inside = (shape.k - slice.column) / 8;
#pragma unroll 1
  for (int row = 0; row < shape.m; ++row) {
    const __nv_bfloat16* source = shape.a + row * shape.a_stride + slice.column;
#pragma unroll 1
    for (int chunk = lane; chunk < slice.chunks; chunk += 32) {
      const bool is_there = chunk < inside;  // zeros beyond the last column
      asm volatile(
          "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(slice.at(shape, row, chunk)),
          "l"(is_there ? source + chunk * 8 : shape.a), "r"(is_there ? 16 : 0)
          : "memory");
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
}
template <class Columns, bool in_bf16, int unit_chunks>
__device__ __forceinline__ void bring_rows(const Shape& shape, const Slice& slice, int lane) {
  int row = 0, chunk = lane;
  const auto step = [&](int& at_row, int& at_chunk) {
    at_chunk += 32;
    while (at_chunk >= slice.chunks && at_row < shape.m) {
      at_chunk -= slice.chunks;
      ++at_row;
    }
  };
  chunk -= 32;
  step(row, chunk);
#pragma unroll 1
  while (row < shape.m) {
    Columns columns[Columns::at_once];
    int next_row = row, next_chunk = chunk;
#pragma unroll
    for (int n = 0; n < Columns::at_once; ++n) {
      columns[n].clear();
      const int column = slice.column + next_chunk * 8;
      if (next_row < shape.m && column < shape.k) columns[n].load(shape, next_row, column);
      step(next_row, next_chunk);
    }
#pragma unroll
    for (int n = 0; n < Columns::at_once; ++n) {
      if (row >= shape.m) break;
      float x[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) x[j] = columns[n].value(j);
      const uint32_t target = slice.at(shape, row, chunk);
      const int at = chunk / unit_chunks * most_rows + row;
      if constexpr (in_bf16) {
        put_in_bf16(x, target);
      } else {
        const float undone = put_in_f16<unit_chunks>(x, target);
        if (lane % unit_chunks == 0) {
          store_one(slice.factors + static_cast<uint32_t>(at * 4), undone);
        }
      }
      if constexpr (Columns::normed) {
        const unsigned int lanes = ((1u << unit_chunks) - 1) << (lane & (32 - unit_chunks));
        float squares = columns[n].squares();
#pragma unroll
        for (int distance = 1; distance < unit_chunks; distance *= 2) {
          squares += __shfl_xor_sync(lanes, squares, distance);
        }
        if (lane % unit_chunks == 0)
          store_one(slice.squares + static_cast<uint32_t>(at * 4), squares);
      }
      step(row, chunk);
    }
  }
}

}  // namespace kinora::cuda::slices
