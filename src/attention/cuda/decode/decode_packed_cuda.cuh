// The decode kernel (decode_cuda.h) for rows in 8 bits: for up to 8 · Tiles (token, head) pairs of
// a kv head and sequence, which share one reading and widening of every row. As in decode_few keys
// and values are the left factors, and each warp streams rows through its own ring.
//
// Codes are exact in bf16. The scale of 32 columns of a key multiplies what these columns add to
// its score; that of a value multiplies the probability before it is rounded to bf16, once for
// every 32 columns of the output.
#pragma once

#include <new>

#include "attention/cuda/decode/decode_join_cuda.cuh"
#include "attention/cuda/decode/packed_source_cuda.cuh"

namespace kinora::cuda_attention {

// Queries of a pair; the lanes of a quarter of a warp load from different banks.
template <int HeadSize>
constexpr int packed_query_pitch = HeadSize + 32;
template <int HeadSize, int Tiles>
constexpr size_t packed_shared_bytes =
    packed_ring_bytes<HeadSize> + size_t{Tiles} * 8 * packed_query_pitch<HeadSize> * 2;
template <int HeadSize, int Tiles>
constexpr size_t packed_join_bytes = size_t{packed_warps} * Tiles * 8 * (HeadSize + 2) * 4;
static_assert(packed_join_bytes<128, 4> <= packed_ring_bytes<128>);
static_assert(packed_join_bytes<64, 4> <= packed_ring_bytes<64>);

// The queries of a block's pairs as bf16, [8 · Tiles, pitch].
template <int HeadSize, int Tiles>
__device__ inline void place_queries(const DecodeArguments& a, const DecodePairs& pairs,
                                     int first_pair, __nv_bfloat16* q) {
  for (int i = static_cast<int>(threadIdx.x); i < 8 * Tiles * HeadSize; i += packed_warps * 32) {
    const int pair = first_pair + i / HeadSize, column = i % HeadSize;
    float value = 0;
    if (pair < pairs.count) {
      value = load_value(
          a.queries, a.queries_f32,
          pairs.token(pair) * a.query_stride + pairs.head(pair) * a.query_head_stride + column);
    }
    q[i / HeadSize * packed_query_pitch<HeadSize> + column] = __float2bfloat16_rn(value);
  }
}

// One stretch of a sequence; all threads of a block. `waited` says whether earlier kernels have
// ended.
template <int HeadSize, int Tiles, typename T>
__device__ inline void attend_packed(const DecodeArguments& a, const Stretch& stretch, bool& waited,
                                     char* memory) {
  constexpr int blocks = scale_blocks<HeadSize>;
  constexpr uint32_t tile_bytes = packed_tile_bytes<HeadSize>;
  constexpr uint32_t scales_at = packed_keys * HeadSize;
  constexpr int pair_slots = 8 * Tiles;
  constexpr bool keeps_queries = Tiles == 1;  // in registers
  // With many pairs there are no registers for the keys of several blocks at once.
  constexpr int score_unroll = Tiles == 1 ? blocks : Tiles == 2 ? 2 : 1;
  const int part = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int quad = lane / 4, member = lane % 4;
  const DeviceSequence& sequence = a.sequences[stretch.sequence];
  const int first_pair = static_cast<int>(blockIdx.z) * pair_slots;
  if (DecodePairs(a, sequence, kv_head).count <= first_pair) return;
  PackedSource<HeadSize> source(a, sequence, stretch, memory);
  auto* q_rows = reinterpret_cast<__nv_bfloat16*>(memory + packed_ring_bytes<HeadSize>);

  // Old rows were there before the kernel that makes this one's queries and new rows.
  int ready = 0;
  if (!waited) {
    const int32_t old_end = old_rows_end(sequence, stretch.begin, stretch.end, packed_margin);
    while (ready < packed_stages - 1 && source.begin_of(ready) + packed_keys <= old_end) {
      source.load(ready++);
    }
    cuda::wait_for_previous();
    waited = true;
  }
  place_queries<HeadSize, Tiles>(a, DecodePairs(a, sequence, kv_head), first_pair, q_rows);
  __syncthreads();
  while (ready < packed_stages - 1) source.load(ready++);

  // A lane sees keys `quad` and `quad` + 8 of a tile and pairs 2 · member and the next of each tile
  // of pairs. Products do not care in which order columns are summed up: of 32 columns a lane takes
  // eight neighbouring ones.
  const uint32_t queries_at =
      address_of(q_rows) +
      static_cast<uint32_t>(quad * packed_query_pitch<HeadSize> + member * 8) * 2;
  const auto query_of = [&](int n, int b) {
    return load_shared_four(
        queries_at +
        static_cast<uint32_t>(n * 8 * packed_query_pitch<HeadSize> + b * columns_per_scale) * 2);
  };
  [[maybe_unused]] uint4 q[keeps_queries ? blocks : 1];
  if constexpr (keeps_queries) {
#pragma unroll
    for (int b = 0; b < blocks; ++b) q[b] = query_of(0, b);
  }

  // [pairs, columns]: of 32 columns a lane has 4 · quad … 4 · quad + 3, two in each product.
  float out[Tiles][2 * blocks][4] = {};
  float max[Tiles][2], sum[Tiles][2];
#pragma unroll
  for (int n = 0; n < Tiles; ++n) {
    max[n][0] = max[n][1] = -INFINITY;
    sum[n][0] = sum[n][1] = 0;
  }
  SetCursor now;  // of the rows that are multiplied
  int32_t plain_end = 0;
  for (int tile = 0; source.begin_of(tile) < stretch.end; ++tile) {
    const int32_t first = source.begin_of(tile);
    if (now.seek(sequence, first)) plain_end = plain_rows_end(sequence, now);
    const bool plain = first + packed_keys <= plain_end;
    const float weight = plain ? 0 : row_weight(sequence, now, first, lane);
    wait_copies<packed_stages - 2>();
    __syncwarp();
    source.load(tile + packed_stages - 1);  // where all lanes have read the tile before this one
    const uint32_t key_tile = source.stage_of(tile), value_tile = key_tile + tile_bytes;
    const int here = anew(lane), key = here / 4, eighth = here % 4;

    float s[Tiles][4] = {};
#pragma unroll(score_unroll)
    for (int b = 0; b < blocks; ++b) {
      const uint2 upper =
          load_shared_two(key_tile + code_offset<HeadSize>(key, b * 32 + eighth * 8));
      const uint2 lower =
          load_shared_two(key_tile + code_offset<HeadSize>(key + 8, b * 32 + eighth * 8));
      const uint32_t left[2][4] = {{widen_pair<0, T>(upper.x), widen_pair<0, T>(lower.x),
                                    widen_pair<1, T>(upper.x), widen_pair<1, T>(lower.x)},
                                   {widen_pair<0, T>(upper.y), widen_pair<0, T>(lower.y),
                                    widen_pair<1, T>(upper.y), widen_pair<1, T>(lower.y)}};
      const uint32_t scale_at =
          key_tile + scales_at + static_cast<uint32_t>(key * (HeadSize / 16) + b * 2);
      const float scales[2] = {load_shared_scale(scale_at),
                               load_shared_scale(scale_at + 8 * (HeadSize / 16))};
#pragma unroll
      for (int n = 0; n < Tiles; ++n) {
        uint4 right;
        if constexpr (keeps_queries) {
          right = q[b];
        } else {
          right = query_of(n, b);
        }
        float some[4] = {};
        multiply_add(some, left[0], right.x, right.y);
        multiply_add(some, left[1], right.z, right.w);
#pragma unroll
        for (int j = 0; j < 4; ++j) s[n][j] = fmaf(some[j], scales[j / 2], s[n][j]);
      }
    }
#pragma unroll
    for (int n = 0; n < Tiles; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) s[n][j] *= a.factor;
    }
    if (!plain) {
      const float weights[2] = {__shfl_sync(0xffffffff, weight, quad),
                                __shfl_sync(0xffffffff, weight, quad + 8)};
      const DecodePairs pairs(a, sequence, kv_head);
      uint32_t seen = 0;  // bits 2 i and 2 i + 1: whether pair i of this lane sees its two keys
#pragma unroll 1
      for (int i = 0; i < 2 * Tiles; ++i) {
        const int pair = first_pair + i / 2 * 8 + member * 2 + i % 2;
        const int token = min(pair, pairs.count - 1) / pairs.group;
        const uint32_t rows =
            rows_seen(sequence, now, first, token, a.masks[sequence.first_token + token]) >> quad;
        seen |= ((rows & 1) | (rows >> 8 & 1) << 1) << (2 * i);
      }
#pragma unroll
      for (int n = 0; n < Tiles; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const bool sees = (seen >> (4 * n + j % 2 * 2 + j / 2) & 1) != 0;
          s[n][j] = sees ? s[n][j] + weights[j / 2] : -INFINITY;
        }
      }
    }
#pragma unroll
    for (int n = 0; n < Tiles; ++n) {
      float correction[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float high = fmaxf(s[n][r], s[n][2 + r]);
#pragma unroll
        for (int step = 4; step < 32; step *= 2) {
          high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, step));
        }
        high = fmaxf(high, max[n][r]);
        const float base = high == -INFINITY ? 0 : high;
        correction[r] = exp2_fast(max[n][r] - base);
        max[n][r] = high;
        s[n][r] = exp2_fast(s[n][r] - base);
        s[n][2 + r] = exp2_fast(s[n][2 + r] - base);
        sum[n][r] = sum[n][r] * correction[r] + s[n][r] + s[n][2 + r];  // of this lane's keys
      }
      if (__any_sync(0xffffffff, correction[0] != 1 || correction[1] != 1)) {
#pragma unroll
        for (int m = 0; m < 2 * blocks; ++m) {
#pragma unroll
          for (int j = 0; j < 4; ++j) out[n][m][j] *= correction[j % 2];
        }
      }
    }

    const HeadScales<HeadSize> value_scales[2] = {
        load_shared_scales<HeadSize>(value_tile + scales_at +
                                     static_cast<uint32_t>(quad * (HeadSize / 16))),
        load_shared_scales<HeadSize>(value_tile + scales_at +
                                     static_cast<uint32_t>((quad + 8) * (HeadSize / 16)))};
#pragma unroll
    for (int b = 0; b < blocks; ++b) {
      // Four neighbouring columns of the keys that this lane has in a product.
      const auto columns_of = [&](int row) {
        return load_shared(value_tile + code_offset<HeadSize>(row, b * 32 + key * 4));
      };
      const uint32_t early[2] = {columns_of(2 * eighth), columns_of(2 * eighth + 1)};
      const uint32_t late[2] = {columns_of(2 * eighth + 8), columns_of(2 * eighth + 9)};
      const uint32_t left[2][4] = {
          {widen_across<0, T>(early[0], early[1]), widen_across<1, T>(early[0], early[1]),
           widen_across<0, T>(late[0], late[1]), widen_across<1, T>(late[0], late[1])},
          {widen_across<2, T>(early[0], early[1]), widen_across<3, T>(early[0], early[1]),
           widen_across<2, T>(late[0], late[1]), widen_across<3, T>(late[0], late[1])}};
      const float scales[2] = {value_scales[0].of(b), value_scales[1].of(b)};
#pragma unroll
      for (int n = 0; n < Tiles; ++n) {
        const uint32_t p0 = transposed(pack_bf16(s[n][0] * scales[0], s[n][1] * scales[0]));
        const uint32_t p1 = transposed(pack_bf16(s[n][2] * scales[1], s[n][3] * scales[1]));
        multiply_add(out[n][2 * b], left[0], p0, p1);
        multiply_add(out[n][2 * b + 1], left[1], p0, p1);
      }
    }
  }
  wait_copies<0>();
  __syncthreads();

  // The warps join their results through shared memory.
  auto* warp_out = reinterpret_cast<float*>(memory);  // [warps, pairs, HeadSize]
  float* warp_max = warp_out + packed_warps * pair_slots * HeadSize;
  float* warp_sum = warp_max + packed_warps * pair_slots;
#pragma unroll
  for (int n = 0; n < Tiles; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        sum[n][r] += __shfl_xor_sync(0xffffffff, sum[n][r], step);
      }
      const int slot = warp * pair_slots + n * 8 + member * 2 + r;
#pragma unroll
      for (int b = 0; b < blocks; ++b) {
        *reinterpret_cast<float4*>(warp_out + slot * HeadSize + b * 32 + quad * 4) = float4{
            out[n][2 * b][r], out[n][2 * b][2 + r], out[n][2 * b + 1][r], out[n][2 * b + 1][2 + r]};
      }
      if (lane < 4) {
        warp_max[slot] = max[n][r];
        warp_sum[slot] = sum[n][r];
      }
    }
  }
  __syncthreads();
  const DecodePairs pairs(a, sequence, kv_head);
  const bool only = stretch.parts.count == 1;
  join_warps<packed_warps, pair_slots, HeadSize, HeadSize>(
      a, pairs, first_pair, min(pair_slots, pairs.count - first_pair), part, only, warp_out,
      warp_max, warp_sum);
  if constexpr (Tiles == 1) {  // all pairs
    if (!only &&
        last_to_arrive(a.arrived + stretch.sequence * a.kv_heads + kv_head, stretch.parts.count)) {
      join_through<HeadSize, packed_warps * 32, packed_ring_bytes<HeadSize>>(
          a, pairs, stretch.parts, reinterpret_cast<float*>(memory));
    }
  }
}

// grid: (parts, kv heads, tiles of pairs). With Tiles = 1 there is one tile, and the block that
// finishes last for a sequence and kv head joins the parts; otherwise a second kernel does.
template <int HeadSize, int Tiles, typename T>
__global__ void __launch_bounds__(packed_warps * 32, Tiles == 1 ? 2 : 1)  // for the registers
    decode_packed(const __grid_constant__ DecodeArguments a) {
  extern __shared__ __align__(128) char memory[];
  __shared__ SequenceStarts starts;
  // One thread walks, for all: registers are what this kernel has least of.
  __shared__ alignas(Walk) char walk_room[sizeof(Walk)];
  __shared__ Stretch stretch;
  __shared__ bool more;
  cuda::let_next_start();
  auto* walk = reinterpret_cast<Walk*>(walk_room);
  {
    const Walk all(a, starts, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
    if (threadIdx.x == 0) new (walk) Walk(all);
  }
  bool waited = false;
  for (;; __syncthreads()) {
    if (threadIdx.x == 0) more = walk->next(stretch);
    __syncthreads();
    if (!more) break;
    attend_packed<HeadSize, Tiles, T>(a, stretch, waited, memory);
  }
  if (!waited) cuda::wait_for_previous();
}

}  // namespace kinora::cuda_attention
