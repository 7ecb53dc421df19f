// What products with packed weights by slices of columns are made of (packed_slices_cuda.cuh):
// their shape, instructions that C++ has no words for, and how sums are scaled and written out.
#pragma once

#include "ops/clusters_cuda.h"
#include "ops/hopper_instructions.cuh"
#include "ops/matmul_parts_cuda.cuh"
#include "ops/packed_codes_cuda.cuh"

namespace kinora::cuda::slices {

constexpr int most_rows = 8;                    // of a, in one product of the tensor cores
constexpr int together = 2;                     // strips
constexpr int depth = 3;                        // units of a warp on their way or in use
constexpr int most_warps = 8;                   // that bring weights
constexpr uint32_t unit_bytes = 1024;           // codes of a warp in a step, of one strip
constexpr int sum_bytes = 32 * sizeof(float4);  // of a strip, for a warp
constexpr uint32_t scale_bytes = 8 * sizeof(float2);
constexpr uint32_t zero_bytes = 8 * sizeof(uint32_t);

// The weights in units, which are 64 columns in 8 bits and 128 in 4.
template <PackedKind kind_>
struct Source : StripCodes {
  static constexpr PackedKind kind = kind_;
  static constexpr int columns = kind == PackedKind::int4 ? 128 : 64;
  static constexpr int row_bytes = columns * 2;  // of a
  // Rows are multiplied as they are, bf16. Numbers of fp8 become f16 with fewer instructions, so
  // rows become f16 too.
  static constexpr bool in_bf16 = kind != PackedKind::fp8;

  explicit Source(const StripCodes& from) : StripCodes(from) {
    pieces /= columns / strip_piece;
    group_pieces /= columns / strip_piece;
  }
};

struct Shape {
  const __nv_bfloat16* a;
  int64_t a_stride;
  // Rows before their RMS norm, in the place of `a`; null: none.
  const float* unnormed;
  const __nv_bfloat16* norm;
  float epsilon;
  int m, n, k;
  const void* bias;
  DType bias_type;
  bool accumulate;
  void* out;
  DType out_type;
  int64_t out_stride;
  int split;  // blocks of a cluster
  // Where parts of shared memory begin, and the size of a warp's ring.
  uint32_t factors, rings, ring_bytes, partial, squares, inbox;
  int most_owned;  // strips that a block of a cluster writes out
  uint32_t row_stride;
  uint32_t affine_bytes;
};

__device__ __forceinline__ void copy_own(uint32_t target, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}
// Weights pass through once: they are the first to make room in the second-level cache, so that the
// rows of the next product stay there.
__device__ __forceinline__ uint64_t passing_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void copy_once(uint32_t target, const void* source, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(target),
               "l"(source), "l"(policy)
               : "memory");
}
__device__ __forceinline__ void load_vector(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void store_four(uint32_t address, const float (&v)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v[0]), "f"(v[1]),
               "f"(v[2]), "f"(v[3])
               : "memory");
}
__device__ __forceinline__ float2 load_two(uint32_t address) {
  float2 two;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(two.x), "=f"(two.y)
               : "r"(address)
               : "memory");
  return two;
}
__device__ __forceinline__ uint32_t load_word(uint32_t address) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}
__device__ __forceinline__ void add_four(float (&sum)[4], uint32_t address) {
  float v[4];
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(address)
               : "memory");
#pragma unroll
  for (int j = 0; j < 4; ++j) sum[j] += v[j];
}
template <bool in_bf16>
__device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  if constexpr (in_bf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// The registers of a product without their scales. In 4 bits what a number lacks for its zero point
// comes off the sums; zeros: 128 + the zero points of the lane's two rows, as bf16.
template <PackedKind kind>
__device__ __forceinline__ void numbers_of(uint32_t (&left)[4], const uint32_t* words,
                                           uint32_t zeros) {
  if constexpr (kind == PackedKind::int4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // as bf16, 0x4300 + code is 128 + code
      left[i] = masked_or(words[0] >> (4 * i), 0x000f000fu, 0x43004300u);
    }
  } else if constexpr (kind == PackedKind::int8) {
    widen_codes<kind>(left, words, zeros);
  } else {
    halves_of<kind>(left, words);
  }
}

// out ← four sums of a lane: rows 2 · (lane % 4) and the next of a, outputs lane / 4 and eight more
// of a strip, which are those of up where strips are paired. This runs seldom, so what counts is
// how few instructions there are to fetch.
__device__ __forceinline__ void write_sums(const Shape& shape, bool paired, int strip, int lane,
                                           const float (&sum)[4]) {
  const int row = lane % 4 * 2;
  const int column = strip * (paired ? 8 : 16) + lane / 4;
  float value[4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool is_there = column + (paired ? 0 : half * 8) < shape.n;
    const float bias =
        shape.bias != nullptr && is_there
            ? number_at(shape.bias, shape.bias_type, column + half * (paired ? shape.n : 8))
            : 0.0f;
    value[half * 2] = sum[half * 2] + bias;
    value[half * 2 + 1] = sum[half * 2 + 1] + bias;
  }
  if (paired) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      value[i] = value[i] / (1.0f + __expf(-value[i])) * value[i + 2];
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int own = column + i / 2 * 8;
    if (row + i % 2 >= shape.m || own >= shape.n || (paired && i >= 2)) continue;
    const int64_t at = (row + i % 2) * shape.out_stride + own;
    const float all =
        value[i] + (shape.accumulate ? number_at(shape.out, shape.out_type, at) : 0.0f);
    if (shape.out_type == DType::bf16) {
      static_cast<__nv_bfloat16*>(shape.out)[at] = from_float<__nv_bfloat16>(all);
    } else {
      static_cast<float*>(shape.out)[at] = all;
    }
  }
}

// The sums of the squares of two rows become what the rows are to be multiplied by.
__device__ __forceinline__ void to_factor(const Shape& shape, float (&squares)[2]) {
#pragma unroll
  for (float& each : squares) {
    each = 1.0f / sqrtf(each / static_cast<float>(shape.k) + shape.epsilon);
  }
}
__device__ __forceinline__ void scale_rows(float (&sum)[4], const float (&factor)[2]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) sum[j] *= factor[j % 2];
}

__device__ __forceinline__ int part_of(int all, int which, int parts) {
  return all * which / parts;
}

}  // namespace kinora::cuda::slices
