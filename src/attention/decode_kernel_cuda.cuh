// The decode kernel (decode_cuda.h) for bf16 rows: a block reads one part of the rows of one kv
// head once, through tiles of 128 rows in shared memory, for up to 16 · RowWarps (token, head)
// pairs. Its eight warps share out pairs and rows. With few pairs the block that finishes last for
// a kv head joins the parts, otherwise a second kernel does.
#pragma once

#include "attention/decode_cuda.h"
#include "attention/mma_cuda.cuh"

namespace kinora::cuda_attention {

struct DecodeArguments {
  const void* queries = nullptr;
  int64_t query_stride = 0;  // in elements
  int64_t query_head_stride = 0;
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
constexpr int decode_stages = 3;

template <int HeadSize>
constexpr size_t decode_shared_bytes = size_t{decode_stages} * decode_tile* HeadSize * 2 * 2;

// The rows that part `part` of `parts` reads: whole tiles.
__device__ inline void decode_range(int64_t rows, int part, int parts, int64_t& begin,
                                    int64_t& end) {
  const int64_t tiles = (rows + decode_tile - 1) / decode_tile;
  begin = tiles * part / parts * decode_tile;
  end = min(rows, tiles * (part + 1) / parts * decode_tile);
}

__device__ inline void store_value(void* out, bool f32, int64_t at, float value) {
  if (f32) {
    static_cast<float*>(out)[at] = value;
  } else {
    static_cast<__nv_bfloat16*>(out)[at] = __float2bfloat16_rn(value);
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
  const int64_t step = pairs * head_size;
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
  const int quads = head_size / 4;
  for (int i = thread; i < count * quads; i += threads) {
    const int p = i / quads, column = i % quads * 4;
    const float* from = a.part_out + place(p) * head_size + column;
    float value[4] = {};
#pragma unroll 12
    for (int part = 0; part < parts; ++part) {
      const float4 x = __ldcg(reinterpret_cast<const float4*>(from + part * step));
      const float weight = max[p * parts + part];
      value[0] = fmaf(weight, x.x, value[0]);
      value[1] = fmaf(weight, x.y, value[1]);
      value[2] = fmaf(weight, x.z, value[2]);
      value[3] = fmaf(weight, x.w, value[3]);
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

// Any head size up to 256, f32 or bf16 rows, in f32 arithmetic.  grid: (splits, heads, tokens)
template <int = 0>
__global__ void __launch_bounds__(decode_warps * 32)
    decode_simple(const __grid_constant__ DecodeArguments a, int32_t head_size, bool rows_f32) {
  extern __shared__ float scratch[];
  __shared__ float query[256];
  __shared__ float warp_out[decode_warps][256];
  __shared__ float warp_max[decode_warps], warp_sum[decode_warps];
  const int part = static_cast<int>(blockIdx.x), parts = static_cast<int>(gridDim.x);
  const int head = static_cast<int>(blockIdx.y), token = static_cast<int>(blockIdx.z);
  const int group = a.heads / a.kv_heads;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto load = [](const void* data, bool f32, int64_t at) {
    return f32 ? static_cast<const float*>(data)[at]
               : __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
  };
  const int64_t from = token * a.query_stride + head * a.query_head_stride;
  for (int c = static_cast<int>(threadIdx.x); c < head_size; c += decode_warps * 32) {
    query[c] = load(a.queries, a.queries_f32, from + c) * a.factor;
  }
  __syncthreads();
  const LayerRows layer = *a.layer;
  int64_t begin, end;
  decode_range(layer.rows, part, parts, begin, end);
  const int64_t old_rows = layer.rows - a.tokens;
  const uint64_t mask = a.tree_mask != nullptr ? a.tree_mask[token] : ~uint64_t{0} >> (63 - token);
  float out[8] = {};
  float max = -INFINITY, sum = 0;
  for (int64_t first = begin + warp * 32; first < end; first += decode_warps * 32) {
    const int64_t row = first + lane;
    const int64_t fresh = row - old_rows;
    const bool seen = row < end && (fresh < 0 || (mask >> fresh & 1));
    const int64_t place = (row * a.kv_heads + head / group) * head_size;
    float score = -INFINITY;
    if (seen) {
      score = 0;
      for (int c = 0; c < head_size; ++c) {
        score = fmaf(query[c], load(layer.keys, rows_f32, place + c), score);
      }
    }
    float high = fmaxf(max, score);
    for (int step = 16; step > 0; step /= 2) {
      high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, step));
    }
    if (high == -INFINITY) continue;
    const float correction = exp2f(max - high);
    const float weight = seen ? exp2f(score - high) : 0;
    max = high;
    float more = weight;
    for (int step = 16; step > 0; step /= 2) more += __shfl_xor_sync(0xffffffff, more, step);
    sum = sum * correction + more;
    for (int c = 0; c < 8; ++c) out[c] *= correction;
    for (int i = 0; i < 32 && first + i < end; ++i) {
      const float w = __shfl_sync(0xffffffff, weight, i);
      const int64_t at = __shfl_sync(0xffffffff, place, i) + lane;
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        if (lane + 32 * c < head_size) {
          out[c] = fmaf(w, load(layer.values, rows_f32, at + 32 * c), out[c]);
        }
      }
    }
  }
#pragma unroll
  for (int c = 0; c < 8; ++c) warp_out[warp][lane + 32 * c] = out[c];
  if (lane == 0) {
    warp_max[warp] = max;
    warp_sum[warp] = sum;
  }
  __syncthreads();
  const int64_t pairs = int64_t{a.tokens} * a.heads;
  const int64_t slot = part * pairs + int64_t{token} * a.heads + head;
  float high = -INFINITY, all = 0;
  for (int w = 0; w < decode_warps; ++w) high = fmaxf(high, warp_max[w]);
  for (int w = 0; w < decode_warps; ++w) {
    all += warp_sum[w] > 0 ? warp_sum[w] * exp2f(warp_max[w] - high) : 0;
  }
  for (int c = static_cast<int>(threadIdx.x); c < head_size; c += decode_warps * 32) {
    float total = 0;
    for (int w = 0; w < decode_warps; ++w) {
      if (warp_sum[w] > 0) total += warp_out[w][c] * exp2f(warp_max[w] - high);
    }
    a.part_out[slot * head_size + c] = total;
  }
  if (threadIdx.x == 0) {
    a.part_max[slot] = high;
    a.part_sum[slot] = all;
  }
  if (last_to_arrive(a.arrived + token * a.heads + head, parts)) {
    join_parts(a, head / group, token * group + head % group, 1, parts, head_size, scratch);
  }
}

// grid: (splits, kv heads, row tiles)
template <int HeadSize, int RowWarps>
__global__ void __launch_bounds__(decode_warps * 32, 1)
    decode_rows(const __grid_constant__ DecodeArguments a) {
  constexpr int pieces = HeadSize / 8;
  constexpr int steps = HeadSize / 16;
  constexpr int key_warps = decode_warps / RowWarps;
  constexpr int warp_keys = decode_tile / key_warps;  // of a tile
  constexpr int chunk = warp_keys < 32 ? warp_keys : 32;
  constexpr int tile_rows = 16 * RowWarps;
  constexpr uint32_t tile_bytes = decode_tile * HeadSize * 2;
  extern __shared__ __align__(128) char memory[];
  const uint32_t shared = address_of(memory);

  const int part = static_cast<int>(blockIdx.x), parts = static_cast<int>(gridDim.x);
  const int kv_head = static_cast<int>(blockIdx.y);
  const int group = a.heads / a.kv_heads;
  const int first_pair = static_cast<int>(blockIdx.z) * tile_rows;
  const int pair_count = min(tile_rows, a.tokens * group - first_pair);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int row_warp = (thread >> 5) % RowWarps;
  const int key_warp = (thread >> 5) / RowWarps;

  const LayerRows layer = *a.layer;
  int64_t begin, end;
  decode_range(layer.rows, part, parts, begin, end);
  const int64_t old_rows = layer.rows - a.tokens;
  const int64_t row_stride = int64_t{a.kv_heads} * HeadSize;
  const auto* keys = static_cast<const __nv_bfloat16*>(layer.keys) + kv_head * HeadSize;
  const auto* values = static_cast<const __nv_bfloat16*>(layer.values) + kv_head * HeadSize;

  const auto load = [&](int64_t tile_begin, int stage) {
    const uint32_t key_tile = shared + static_cast<uint32_t>(stage) * 2 * tile_bytes;
    if (tile_begin < end) {
#pragma unroll
      for (int i = thread; i < decode_tile * pieces; i += decode_warps * 32) {
        const int row = i / pieces, piece = i % pieces;
        const bool inside = tile_begin + row < end;
        const int64_t offset = (inside ? tile_begin + row : begin) * row_stride + piece * 8;
        const uint32_t at = piece_offset<pieces>(row, piece);
        copy_piece(key_tile + at, keys + offset, inside ? 16 : 0);
        copy_piece(key_tile + tile_bytes + at, values + offset, inside ? 16 : 0);
      }
    }
    commit_copies();
  };
#pragma unroll
  for (int i = 0; i < decode_stages - 1; ++i) load(begin + i * decode_tile, i);

  // This warp's 16 pairs: a lane sees rows lane / 4 and lane / 4 + 8.
  uint32_t q[steps][4];
  uint64_t mask[2];  // of new tokens
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int pair = first_pair + row_warp * 16 + (lane >> 2) + 8 * r;
    const bool inside = pair < first_pair + pair_count;
    const int token = inside ? pair / group : 0;
    const int64_t at = token * a.query_stride +
                       (kv_head * group + (inside ? pair % group : 0)) * a.query_head_stride;
    mask[r] = a.tree_mask != nullptr ? a.tree_mask[token] : ~uint64_t{0} >> (63 - min(token, 63));
#pragma unroll
    for (int s = 0; s < steps; ++s) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t from = at + s * 16 + half * 8 + (lane & 3) * 2;
        uint32_t value = 0;
        if (inside) {
          if (a.queries_f32) {
            const float2 x =
                *reinterpret_cast<const float2*>(static_cast<const float*>(a.queries) + from);
            value = pack_bf16(x.x, x.y);
          } else {
            value = *reinterpret_cast<const uint32_t*>(
                static_cast<const __nv_bfloat16*>(a.queries) + from);
          }
        }
        q[s][half * 2 + r] = value;
      }
    }
  }

  float out[2 * steps][4] = {};
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};
  int stage = 0;
  for (int64_t tile_begin = begin; tile_begin < end; tile_begin += decode_tile) {
    wait_copies<decode_stages - 2>();
    __syncthreads();
    load(tile_begin + (decode_stages - 1) * decode_tile,
         (stage + decode_stages - 1) % decode_stages);
    const uint32_t key_tile = shared + static_cast<uint32_t>(stage) * 2 * tile_bytes;
    const uint32_t value_tile = key_tile + tile_bytes;
    stage = (stage + 1) % decode_stages;
#pragma unroll 1
    for (int at = 0; at < warp_keys; at += chunk) {
      const int first_key = key_warp * warp_keys + at;
      if (tile_begin + first_key >= end) break;
      float s[chunk / 8][4] = {};
#pragma unroll
      for (int c = 0; c < chunk / 16; ++c) {
#pragma unroll
        for (int k = 0; k < steps; ++k) {
          multiply_keys16<pieces>(s[2 * c], s[2 * c + 1], q[k], key_tile, first_key + c * 16, k,
                                  lane);
        }
      }
      const int64_t first_row = tile_begin + first_key;
      if (first_row + chunk > old_rows) {  // new tokens, or beyond the last row
#pragma unroll
        for (int i = 0; i < chunk / 8; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const int64_t fresh = first_row + i * 8 + (lane & 3) * 2 + (j & 1) - old_rows;
            const bool seen = fresh < 0 || (fresh < a.tokens && (mask[j >> 1] >> fresh & 1));
            if (!seen) s[i][j] = -INFINITY;
          }
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float high = max[r];
#pragma unroll
        for (int i = 0; i < chunk / 8; ++i) {
          s[i][2 * r] *= a.factor;
          s[i][2 * r + 1] *= a.factor;
          high = fmaxf(high, fmaxf(s[i][2 * r], s[i][2 * r + 1]));
        }
        high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 1));
        high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 2));
        const float base = high == -INFINITY ? 0 : high;
        const float correction = exp2_fast(max[r] - base);
        max[r] = high;
        float part_sum = 0;
#pragma unroll
        for (int i = 0; i < chunk / 8; ++i) {
          s[i][2 * r] = exp2_fast(s[i][2 * r] - base);
          s[i][2 * r + 1] = exp2_fast(s[i][2 * r + 1] - base);
          part_sum += s[i][2 * r] + s[i][2 * r + 1];
        }
        sum[r] = sum[r] * correction + part_sum;
        if (correction != 1) {
#pragma unroll
          for (int i = 0; i < 2 * steps; ++i) {
            out[i][2 * r] *= correction;
            out[i][2 * r + 1] *= correction;
          }
        }
      }
      __syncwarp();
#pragma unroll
      for (int c = 0; c < chunk / 16; ++c) {
        const uint32_t p[4] = {pack_bf16(s[2 * c][0], s[2 * c][1]),
                               pack_bf16(s[2 * c][2], s[2 * c][3]),
                               pack_bf16(s[2 * c + 1][0], s[2 * c + 1][1]),
                               pack_bf16(s[2 * c + 1][2], s[2 * c + 1][3])};
#pragma unroll
        for (int n = 0; n < steps; ++n) {
          multiply_values16<pieces>(out[2 * n], out[2 * n + 1], p, value_tile, first_key + c * 16,
                                    n, lane);
        }
      }
    }
  }
  wait_copies<0>();
  __syncthreads();

  // Warps that shared the keys of a pair join their results through shared memory.
  auto* warp_out = reinterpret_cast<float*>(memory);  // [key warps, tile rows, HeadSize]
  float* warp_max = warp_out + key_warps * tile_rows * HeadSize;
  float* warp_sum = warp_max + key_warps * tile_rows;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 1);
    sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 2);
    const int row = row_warp * 16 + (lane >> 2) + 8 * r;
    const int slot = key_warp * tile_rows + row;
    if (row < pair_count) {
#pragma unroll
      for (int i = 0; i < 2 * steps; ++i) {
        *reinterpret_cast<float2*>(warp_out + slot * HeadSize + i * 8 + (lane & 3) * 2) =
            float2{out[i][2 * r], out[i][2 * r + 1]};
      }
      if ((lane & 3) == 0) {
        warp_max[slot] = max[r];
        warp_sum[slot] = sum[r];
      }
    }
  }
  __syncthreads();
  const int64_t pairs = int64_t{a.tokens} * a.heads;
  for (int i = thread; i < pair_count * HeadSize; i += decode_warps * 32) {
    const int row = i / HeadSize, column = i % HeadSize;
    const int token = (first_pair + row) / group;
    const int64_t pair = int64_t{token} * a.heads + kv_head * group + (first_pair + row) % group;
    float high = -INFINITY;
#pragma unroll
    for (int w = 0; w < key_warps; ++w) high = fmaxf(high, warp_max[w * tile_rows + row]);
    float total = 0, all = 0;
#pragma unroll
    for (int w = 0; w < key_warps; ++w) {
      const int slot = w * tile_rows + row;
      const float weight = warp_sum[slot] > 0 ? exp2_fast(warp_max[slot] - high) : 0;
      total += weight * warp_out[slot * HeadSize + column];
      all += weight * warp_sum[slot];
    }
    if (parts == 1) {
      store_value(a.out, a.out_f32,
                  token * a.out_stride +
                      (kv_head * group + (first_pair + row) % group) * a.out_head_stride + column,
                  all > 0 ? total / all : 0);
      continue;
    }
    a.part_out[(part * pairs + pair) * HeadSize + column] = total;
    if (column == 0) {
      a.part_max[part * pairs + pair] = high;
      a.part_sum[part * pairs + pair] = all;
    }
  }
  if (parts == 1 || RowWarps > 1) return;
  if (last_to_arrive(a.arrived + blockIdx.z * gridDim.y + blockIdx.y, parts)) {
    join_parts(a, kv_head, first_pair, pair_count, parts, HeadSize,
               reinterpret_cast<float*>(memory));
  }
}

}  // namespace kinora::cuda_attention
