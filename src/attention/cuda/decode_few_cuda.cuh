// The decode kernel (decode_cuda.h) for bf16 rows and at most eight (token, head) pairs of a kv
// head, as in decoding a token at a time. Keys and values are the left factors of its products, so
// nothing is computed for pairs that are not there, and its warps keep few registers and stream
// rows each through a ring of its own without waiting for each other: other kernels have room on
// the multiprocessor meanwhile. It can also turn queries and keys and append the new rows itself.
#pragma once

#include "attention/cuda/decode_join_cuda.cuh"

namespace kinora::cuda_attention {

constexpr int few_pairs = 8;
constexpr int few_warps = 4;
constexpr int few_keys = 16;  // of a stage of a warp
constexpr int few_stages = 4;
constexpr int few_parts = 128;  // parts of a pair that fit into the ring when they are joined

template <int HeadSize>
constexpr size_t few_ring_bytes = size_t{few_warps} * few_stages* few_keys* HeadSize * 2 * 2;
template <int HeadSize>
constexpr size_t few_shared_bytes = few_ring_bytes<HeadSize> + few_pairs* HeadSize * 2;

// Two rows of a matrix of 8 × 8 become two columns.
__device__ inline uint32_t transposed(uint32_t rows) {
  uint32_t columns;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(columns) : "r"(rows));
  return columns;
}

__device__ inline float load_value(const void* data, bool f32, int64_t at) {
  return f32 ? static_cast<const float*>(data)[at]
             : __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
}

// Fills q [few_pairs, HeadSize], and with a.unturned writes the new rows that lie in [begin, end).
template <int HeadSize>
__device__ inline void prepare_queries(const DecodeArguments& a, const LayerRows& layer,
                                       int kv_head, int64_t begin, int64_t end, __nv_bfloat16* q) {
  constexpr int half = HeadSize / 2;
  const int group = a.heads / a.kv_heads, pair_count = a.tokens * group;
  const int thread = static_cast<int>(threadIdx.x);
  if (a.unturned == nullptr) {
    for (int i = thread; i < few_pairs * HeadSize; i += few_warps * 32) {
      const int pair = i / HeadSize, column = i % HeadSize;
      float value = 0;
      if (pair < pair_count) {
        value = load_value(a.queries, a.queries_f32,
                           pair / group * a.query_stride +
                               (kv_head * group + pair % group) * a.query_head_stride + column);
      }
      q[i] = __float2bfloat16_rn(value);
    }
    return;
  }
  // (x, x') ← (x cos − x' sin, x' cos + x sin) for the columns i and i + half of a head
  const auto turn = [&](int token, int head, int column, float& x1, float& x2) {
    const int64_t at = token * a.unturned_stride + int64_t{head} * HeadSize + column;
    x1 = load_value(a.unturned, a.queries_f32, at);
    x2 = load_value(a.unturned, a.queries_f32, at + half);
    if (head >= a.heads + a.kv_heads) return;  // a value
    const float c = a.cos[token * half + column], s = a.sin[token * half + column];
    const float turned = x1 * c - x2 * s;
    x2 = x2 * c + x1 * s;
    x1 = turned;
  };
  for (int i = thread; i < few_pairs * half; i += few_warps * 32) {
    const int pair = i / half, column = i % half;
    float x1 = 0, x2 = 0;
    if (pair < pair_count) turn(pair / group, kv_head * group + pair % group, column, x1, x2);
    q[pair * HeadSize + column] = __float2bfloat16_rn(x1);
    q[pair * HeadSize + column + half] = __float2bfloat16_rn(x2);
  }
  const int64_t first = max(begin, layer.rows - a.tokens);
  for (int i = thread; i < 2 * half * static_cast<int>(end - first); i += few_warps * 32) {
    const int64_t row = first + i / (2 * half);
    const int of_value = i / half % 2, column = i % half;
    float x1, x2;
    turn(static_cast<int>(row - (layer.rows - a.tokens)), a.heads + of_value * a.kv_heads + kv_head,
         column, x1, x2);
    auto* target =
        static_cast<__nv_bfloat16*>(const_cast<void*>(of_value != 0 ? layer.values : layer.keys)) +
        (row * a.kv_heads + kv_head) * HeadSize + column;
    target[0] = __float2bfloat16_rn(x1);
    target[half] = __float2bfloat16_rn(x2);
  }
}

// Joins the parts of a kv head through the ring's shared memory, as many pairs at once as fit.
template <int HeadSize>
__device__ inline void join_few(const DecodeArguments& a, int kv_head, int parts, float* room) {
  constexpr int quads = HeadSize / 4;
  const int group = a.heads / a.kv_heads, pair_count = a.tokens * group;
  const int64_t pairs = int64_t{a.tokens} * a.heads;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const auto place = [&](int p) {
    return int64_t{p / group} * a.heads + kv_head * group + p % group;
  };
  const int64_t step = pairs * HeadSize;  // from part to part
  static_assert(few_parts * (HeadSize + 4) * sizeof(float) <= few_ring_bytes<HeadSize>);
  float* share = room;                      // [at once, parts]
  const int each = parts * (HeadSize + 4);  // floats of a pair; 4: the share, rounded up
  const int at_once =
      min(pair_count, static_cast<int>(few_ring_bytes<HeadSize> / sizeof(float)) / each);
  float* outs = room + at_once * parts * 4;  // [at once, parts, HeadSize]
  for (int first = 0; first < pair_count; first += at_once) {
    const int count = min(at_once, pair_count - first);
    __syncthreads();
    // Half a warp or a whole one takes a row of a part.
    for (int p = 0; p < count; ++p) {
      const float* from = a.part_out + place(first + p) * HeadSize + thread % quads * 4;
      const uint32_t to = address_of(outs + p * parts * HeadSize + thread % quads * 4);
      for (int part = thread / quads; part < parts; part += few_warps * 32 / quads) {
        copy_piece(to + static_cast<uint32_t>(part * HeadSize) * 4, from + part * step, 16);
      }
    }
    commit_copies();
    for (int p = thread / 32; p < count; p += few_warps) {
      float high = -INFINITY, total = 0;
      for (int i = lane; i < parts; i += 32) {
        high = fmaxf(high, __ldcg(a.part_max + i * pairs + place(first + p)));
      }
      for (int step = 16; step > 0; step /= 2) {
        high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, step));
      }
      for (int i = lane; i < parts; i += 32) {  // a part that read nothing has sum 0
        const int64_t at = i * pairs + place(first + p);
        const float sum = __ldcg(a.part_sum + at);
        const float weight = sum > 0 ? exp2f(__ldcg(a.part_max + at) - high) : 0;
        share[p * parts + i] = weight;
        total += weight * sum;
      }
      for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffff, total, step);
      __syncwarp();
      for (int i = lane; i < parts; i += 32) {
        share[p * parts + i] = total > 0 ? share[p * parts + i] / total : 0;
      }
    }
    wait_copies<0>();
    __syncthreads();
    for (int i = thread; i < count * quads; i += few_warps * 32) {
      const int p = i / quads, column = i % quads * 4;
      float4 value{};
#pragma unroll 4
      for (int part = 0; part < parts; ++part) {
        const float weight = share[p * parts + part];
        const auto x =
            *reinterpret_cast<const float4*>(outs + (p * parts + part) * HeadSize + column);
        value.x = fmaf(weight, x.x, value.x);
        value.y = fmaf(weight, x.y, value.y);
        value.z = fmaf(weight, x.z, value.z);
        value.w = fmaf(weight, x.w, value.w);
      }
      const int64_t at = (first + p) / group * a.out_stride +
                         (kv_head * group + (first + p) % group) * a.out_head_stride + column;
      store_value(a.out, a.out_f32, at, value.x);
      store_value(a.out, a.out_f32, at + 1, value.y);
      store_value(a.out, a.out_f32, at + 2, value.z);
      store_value(a.out, a.out_f32, at + 3, value.w);
    }
  }
}

// grid: (splits, kv heads)
template <int HeadSize>
__global__ void __launch_bounds__(few_warps * 32, 1)
    decode_few(const __grid_constant__ DecodeArguments a) {
  constexpr int pieces = HeadSize / 8;
  constexpr int steps = HeadSize / 16;
  constexpr uint32_t tile_bytes = few_keys * HeadSize * 2;
  extern __shared__ __align__(128) char memory[];
  cuda::let_next_start();

  const int part = static_cast<int>(blockIdx.x), parts = static_cast<int>(gridDim.x);
  const int kv_head = static_cast<int>(blockIdx.y);
  const int group = a.heads / a.kv_heads, pair_count = a.tokens * group;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const uint32_t ring =
      address_of(memory) + static_cast<uint32_t>(warp) * few_stages * 2 * tile_bytes;
  auto* q_rows = reinterpret_cast<__nv_bfloat16*>(memory + few_ring_bytes<HeadSize>);

  const LayerRows layer = *a.layer;
  int64_t begin, end;
  decode_range(layer.rows, part, parts, begin, end);
  const int64_t old_rows = layer.rows - a.tokens;
  const int64_t row_stride = int64_t{a.kv_heads} * HeadSize;
  const auto* keys = static_cast<const __nv_bfloat16*>(layer.keys) + kv_head * HeadSize;
  const auto* values = static_cast<const __nv_bfloat16*>(layer.values) + kv_head * HeadSize;

  // The warp's tile number `tile` into a stage.
  const auto tile_begin = [&](int tile) { return begin + (tile * few_warps + warp) * few_keys; };
  const auto load = [&](int tile) {
    const int64_t first = tile_begin(tile);
    const uint32_t target = ring + static_cast<uint32_t>(tile % few_stages) * 2 * tile_bytes;
    if (first < end) {
#pragma unroll
      for (int i = 0; i < few_keys * pieces; i += 32) {
        const int row = (i + lane) / pieces, piece = (i + lane) % pieces;
        const bool inside = first + row < end;
        const int64_t offset = (inside ? first + row : begin) * row_stride + piece * 8;
        const uint32_t at = piece_offset<pieces>(row, piece);
        copy_piece(target + at, keys + offset, inside ? 16 : 0);
        copy_piece(target + tile_bytes + at, values + offset, inside ? 16 : 0);
      }
    }
    commit_copies();
  };
  // Old rows were there before the kernel that makes this one's queries and new rows.
  int ready = 0;
  while (ready < few_stages - 1 && tile_begin(ready) + few_keys <= old_rows) load(ready++);
  cuda::wait_for_previous();
  prepare_queries<HeadSize>(a, layer, kv_head, begin, end, q_rows);
  __syncthreads();
  while (ready < few_stages - 1) load(ready++);

  // A lane sees keys lane / 4 and lane / 4 + 8 of a tile and pairs 2 (lane % 4) and the next.
  uint32_t q[steps][2];
#pragma unroll
  for (int s = 0; s < steps; ++s) {
    const auto* from = q_rows + lane / 4 * HeadSize + s * 16 + lane % 4 * 2;
    q[s][0] = *reinterpret_cast<const uint32_t*>(from);
    q[s][1] = *reinterpret_cast<const uint32_t*>(from + 8);
  }
  uint64_t mask[2];  // of new tokens
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = min(lane % 4 * 2 + r, pair_count - 1) / group;
    mask[r] = a.tree_mask != nullptr ? a.tree_mask[token] : ~uint64_t{0} >> (63 - token);
  }

  float out[steps][4] = {};  // [columns 16 · steps, pairs]
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};
  for (int tile = 0; tile_begin(tile) < end; ++tile) {
    wait_copies<few_stages - 2>();
    __syncwarp();
    load(tile + few_stages - 1);  // where all lanes have read the tile before this one
    const uint32_t key_tile = ring + static_cast<uint32_t>(tile % few_stages) * 2 * tile_bytes;
    float s[4] = {}, more[4] = {};
#pragma unroll
    for (int k = 0; k < steps; ++k) {
      uint32_t left[4];
      load_left<pieces>(left, key_tile, 0, k, lane);
      multiply_add(k % 2 == 0 ? s : more, left, q[k][0], q[k][1]);
    }
    const int64_t first = tile_begin(tile);
#pragma unroll
    for (int j = 0; j < 4; ++j) s[j] = (s[j] + more[j]) * a.factor;
    if (first + few_keys > old_rows || first + few_keys > end) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int64_t row = first + lane / 4 + j / 2 * 8, fresh = row - old_rows;
        const bool seen = row < end && (fresh < 0 || (mask[j % 2] >> fresh & 1));
        if (!seen) s[j] = -INFINITY;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float high = fmaxf(s[r], s[2 + r]);
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, step));
      }
      high = fmaxf(high, max[r]);
      const float base = high == -INFINITY ? 0 : high;
      const float correction = exp2_fast(max[r] - base);
      max[r] = high;
      s[r] = exp2_fast(s[r] - base);
      s[2 + r] = exp2_fast(s[2 + r] - base);
      sum[r] = sum[r] * correction + s[r] + s[2 + r];  // of this lane's keys
#pragma unroll
      for (int n = 0; n < steps; ++n) {
        out[n][r] *= correction;
        out[n][2 + r] *= correction;
      }
    }
    const uint32_t p0 = transposed(pack_bf16(s[0], s[1]));
    const uint32_t p1 = transposed(pack_bf16(s[2], s[3]));
#pragma unroll
    for (int n = 0; n < steps; ++n) {
      uint32_t left[4];
      load_matrices_transposed(
          left, key_tile + tile_bytes +
                    piece_offset<pieces>(lane % 8 + lane / 16 * 8, n * 2 + lane / 8 % 2));
      multiply_add(out[n], left, p0, p1);
    }
  }
  wait_copies<0>();
  __syncthreads();

  // The warps join their results through shared memory.
  auto* warp_out = reinterpret_cast<float*>(memory);  // [warps, pairs, HeadSize]
  float* warp_max = warp_out + few_warps * few_pairs * HeadSize;
  float* warp_sum = warp_max + few_warps * few_pairs;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) sum[r] += __shfl_xor_sync(0xffffffff, sum[r], step);
    const int slot = warp * few_pairs + lane % 4 * 2 + r;
#pragma unroll
    for (int n = 0; n < steps; ++n) {
      warp_out[slot * HeadSize + n * 16 + lane / 4] = out[n][r];
      warp_out[slot * HeadSize + n * 16 + lane / 4 + 8] = out[n][2 + r];
    }
    if (lane < 4) {
      warp_max[slot] = max[r];
      warp_sum[slot] = sum[r];
    }
  }
  __syncthreads();
  join_warps<few_warps, few_pairs, HeadSize, HeadSize>(a, kv_head, 0, pair_count, part, parts,
                                                       warp_out, warp_max, warp_sum);
  if (parts > 1 && last_to_arrive(a.arrived + kv_head, parts)) {
    join_few<HeadSize>(a, kv_head, parts, reinterpret_cast<float*>(memory));
  }
}

}  // namespace kinora::cuda_attention
