// What the decode kernels (decode_cuda.h) share: their arguments, which part of the rows a block
// reads, and how the parts of a (token, head) pair are joined.
#pragma once

#include "attention/cuda/decode_cuda.h"
#include "attention/cuda/mma_cuda.cuh"
#include "base/cuda_support.h"

namespace kinora::cuda_attention {

struct DecodeArguments {
  const void* queries = nullptr;
  int64_t query_stride = 0;  // in elements
  int64_t query_head_stride = 0;
  const void* unturned = nullptr;  // queries, keys and values of the new tokens; null: `queries`
  int64_t unturned_stride = 0;
  const float* cos = nullptr;  // [tokens, d / 2]
  const float* sin = nullptr;
  const LayerRows* layer = nullptr;
  void* out = nullptr;
  int64_t out_stride = 0;
  int64_t out_head_stride = 0;
  const uint64_t* tree_mask = nullptr;
  float* part_out = nullptr;  // [splits, tokens × heads, d]
  float* part_max = nullptr;  // [splits, tokens × heads]; of scores × scale × log2 e
  float* part_sum = nullptr;
  unsigned int* arrived = nullptr;  // [kv heads × row tiles]; zero between calls
  float factor = 1;                 // scale × log2 e
  int32_t tokens = 1;
  int32_t heads = 1;
  int32_t kv_heads = 1;
  bool queries_f32 = false;
  bool out_f32 = false;
};

constexpr int decode_warps = 8;
constexpr int decode_tile = 128;  // rows of a stage
constexpr int decode_share = 32;  // rows that parts are made of: finer than tiles, to be even

// The rows that part `part` of `parts` reads.
__device__ inline void decode_range(int64_t rows, int part, int parts, int64_t& begin,
                                    int64_t& end) {
  const int64_t shares = (rows + decode_share - 1) / decode_share;
  begin = shares * part / parts * decode_share;
  end = min(rows, shares * (part + 1) / parts * decode_share);
}

__device__ inline void store_value(void* out, bool f32, int64_t at, float value) {
  if (f32) {
    static_cast<float*>(out)[at] = value;
  } else {
    static_cast<__nv_bfloat16*>(out)[at] = __float2bfloat16_rn(value);
  }
}

// Joins what the warps of a block hold of pairs [first, first + count) of a kv head: [warps, rows,
// pitch] outputs and [warps, rows] maxima and sums in shared memory. The result is that of part
// `part`, or the output where there is only one.
template <int Warps, int Rows, int HeadSize, int Pitch>
__device__ inline void join_warps(const DecodeArguments& a, int kv_head, int first, int count,
                                  int part, int parts, const float* warp_out, const float* warp_max,
                                  const float* warp_sum) {
  const int group = a.heads / a.kv_heads;
  const int64_t pairs = int64_t{a.tokens} * a.heads;
  const int threads = static_cast<int>(blockDim.x);
  for (int i = static_cast<int>(threadIdx.x); i < count * HeadSize; i += threads) {
    const int row = i / HeadSize, column = i % HeadSize;
    const int token = (first + row) / group, head = kv_head * group + (first + row) % group;
    float high = -INFINITY;
#pragma unroll
    for (int w = 0; w < Warps; ++w) high = fmaxf(high, warp_max[w * Rows + row]);
    float total = 0, all = 0;
#pragma unroll
    for (int w = 0; w < Warps; ++w) {
      const int slot = w * Rows + row;
      const float weight = warp_sum[slot] > 0 ? exp2_fast(warp_max[slot] - high) : 0;
      total += weight * warp_out[slot * Pitch + column];
      all += weight * warp_sum[slot];
    }
    if (parts == 1) {
      store_value(a.out, a.out_f32, token * a.out_stride + head * a.out_head_stride + column,
                  all > 0 ? total / all : 0);
      continue;
    }
    const int64_t at = part * pairs + int64_t{token} * a.heads + head;
    a.part_out[at * HeadSize + column] = total;
    if (column == 0) {
      a.part_max[at] = high;
      a.part_sum[at] = all;
    }
  }
}

// Bytes of shared memory that joining `pairs` pairs takes.
__host__ __device__ constexpr size_t join_shared_bytes(int pairs, int parts) {
  return static_cast<size_t>(pairs) * static_cast<size_t>(parts) * 2 * sizeof(float);
}

// Joins the parts of pairs [first, first + count) of a kv head; all threads of a block. Pair p of a
// kv head is token p / group, head kv_head · group + p % group.
__device__ inline void join_parts(const DecodeArguments& a, int kv_head, int first, int count,
                                  int parts, int head_size, float* scratch) {
  const int group = a.heads / a.kv_heads;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int lane = thread % 32;
  const int64_t pairs = int64_t{a.tokens} * a.heads;
  const auto place = [&](int p) {
    return int64_t{(first + p) / group} * a.heads + kv_head * group + (first + p) % group;
  };
  float* max = scratch;  // [count, parts], then the share of a part in its pair
  float* sum = scratch + count * parts;
  const int64_t step = pairs * head_size;
  const int quads = head_size / 4;
  // The first four columns of a thread are on their way while the shares are worked out.
  constexpr int ahead = 33;
  const bool prefetch = head_size % 4 == 0 && parts <= ahead && thread < count * quads;
  float4 fetched[ahead];
  if (prefetch) {
    const float* from = a.part_out + place(thread / quads) * head_size + thread % quads * 4;
#pragma unroll
    for (int part = 0; part < ahead; ++part) {
      if (part < parts) fetched[part] = __ldcg(reinterpret_cast<const float4*>(from + part * step));
    }
  }
  for (int i = thread; i < count * parts; i += threads) {
    const int64_t at = int64_t{i % parts} * pairs + place(i / parts);
    max[i] = __ldcg(a.part_max + at);
    sum[i] = __ldcg(a.part_sum + at);
  }
  __syncthreads();
  for (int p = thread / 32; p < count; p += threads / 32) {
    float high = -INFINITY;
    for (int i = lane; i < parts; i += 32) high = fmaxf(high, max[p * parts + i]);
    for (int step = 16; step > 0; step /= 2) {
      high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, step));
    }
    float total = 0;
    for (int i = lane; i < parts; i += 32) {  // a part that read nothing has sum 0
      const float weight = sum[p * parts + i] > 0 ? exp2f(max[p * parts + i] - high) : 0;
      max[p * parts + i] = weight;
      total += weight * sum[p * parts + i];
    }
    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffff, total, step);
    for (int i = lane; i < parts; i += 32) {
      max[p * parts + i] = total > 0 ? max[p * parts + i] / total : 0;
    }
  }
  __syncthreads();
  const auto put = [&](int p, int column, float value) {
    const int token = (first + p) / group;
    store_value(
        a.out, a.out_f32,
        token * a.out_stride + (kv_head * group + (first + p) % group) * a.out_head_stride + column,
        value);
  };
  if (head_size % 4 != 0) {
    for (int i = thread; i < count * head_size; i += threads) {
      const int p = i / head_size, column = i % head_size;
      const float* from = a.part_out + place(p) * head_size + column;
      float value = 0;
      for (int part = 0; part < parts; ++part) {
        value = fmaf(max[p * parts + part], __ldcg(from + part * step), value);
      }
      put(p, column, value);
    }
    return;
  }
  for (int i = thread; i < count * quads; i += threads) {
    const int p = i / quads, column = i % quads * 4;
    const float* from = a.part_out + place(p) * head_size + column;
    float value[4] = {};
    const auto add = [&](int part, const float4& x) {
      const float weight = max[p * parts + part];
      value[0] = fmaf(weight, x.x, value[0]);
      value[1] = fmaf(weight, x.y, value[1]);
      value[2] = fmaf(weight, x.z, value[2]);
      value[3] = fmaf(weight, x.w, value[3]);
    };
    if (prefetch && i == thread) {
#pragma unroll
      for (int part = 0; part < ahead; ++part) {
        if (part < parts) add(part, fetched[part]);
      }
    } else {
#pragma unroll 12
      for (int part = 0; part < parts; ++part) {
        add(part, __ldcg(reinterpret_cast<const float4*>(from + part * step)));
      }
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) put(p, column + c, value[c]);
  }
}

// A pair a block, where there are too many for the block that comes last.  grid: (pairs, kv heads)
template <int = 0>
__global__ void join_pairs(const __grid_constant__ DecodeArguments a, int32_t parts,
                           int32_t head_size) {
  extern __shared__ float scratch[];
  cuda::let_next_start();
  cuda::wait_for_previous();
  join_parts(a, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x), 1, parts, head_size,
             scratch);
}

// Announces a finished part; true in all threads of the block that was the last one.
__device__ inline bool last_to_arrive(unsigned int* arrived, int parts) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned int before = atomicAdd(arrived, 1);
    last = before == static_cast<unsigned int>(parts) - 1;
    if (last) *arrived = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

}  // namespace kinora::cuda_attention
