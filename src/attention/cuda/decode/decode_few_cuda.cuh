// The decode kernel (decode_cuda.h) for bf16 rows and at most eight (token, head) pairs of a kv
// head and sequence, as in decoding a token at a time. Keys and values are the left factors of its
// products, so nothing is computed for absent pairs. Its warps use few registers, and each streams
// rows through its own ring without waiting for the others: this leaves room for other kernels on
// the multiprocessor. It can also rotate queries and keys and append the new rows
// itself.
#pragma once

#include "attention/cuda/decode/decode_join_cuda.cuh"

namespace kinora::cuda_attention {

constexpr int few_pairs = 8;
constexpr int few_warps = 4;
constexpr int few_keys = 16;  // of a stage of a warp
constexpr int few_stages = 4;
constexpr int few_parts = 128;  // parts of a pair that fit into the ring when they are joined

template <int HeadSize>
constexpr size_t few_ring_bytes = size_t{few_warps} * few_stages* few_keys* HeadSize * 2 * 2;
static_assert(few_parts * (128 + 4) * sizeof(float) <= few_ring_bytes<128>);
static_assert(few_parts * (64 + 4) * sizeof(float) <= few_ring_bytes<64>);
template <int HeadSize>
constexpr size_t few_shared_bytes = few_ring_bytes<HeadSize> + few_pairs* HeadSize * 2;

// Fills q [few_pairs, HeadSize], and with a.unturned writes the new rows that lie in the stretch.
template <int HeadSize>
__device__ inline void prepare_queries(const DecodeArguments& a, const DeviceSequence& sequence,
                                       const DecodePairs& pairs, const Stretch& stretch,
                                       int kv_head, __nv_bfloat16* q) {
  constexpr int half = HeadSize / 2;
  const int thread = static_cast<int>(threadIdx.x);
  if (a.unturned == nullptr) {
    for (int i = thread; i < few_pairs * HeadSize; i += few_warps * 32) {
      const int pair = i / HeadSize, column = i % HeadSize;
      float value = 0;
      if (pair < pairs.count) {
        value = load_value(
            a.queries, a.queries_f32,
            pairs.token(pair) * a.query_stride + pairs.head(pair) * a.query_head_stride + column);
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
    if (pair < pairs.count) turn(pairs.token(pair), pairs.head(pair), column, x1, x2);
    q[pair * HeadSize + column] = __float2bfloat16_rn(x1);
    q[pair * HeadSize + column + half] = __float2bfloat16_rn(x2);
    if (a.keep_queries && stretch.begin == 0 && pair < pairs.count) {
      const int64_t at =
          pairs.token(pair) * a.query_stride + pairs.head(pair) * a.query_head_stride + column;
      store_value(const_cast<void*>(a.queries), a.queries_f32, at, x1);
      store_value(const_cast<void*>(a.queries), a.queries_f32, at + half, x2);
    }
  }
  const DeviceRowSet& own = sequence.sets[sequence.own];
  SetCursor at;
  while (at.index < sequence.own) at.seek(sequence, at.next);
  // New token i is this row of the set and, counted from `fresh`, of the sequence.
  const int32_t old_rows = static_cast<int32_t>(own.count) - sequence.tokens;
  const int32_t fresh = at.begin + old_rows;
  const int32_t first = max(stretch.begin, fresh);
  const int32_t last = min(stretch.end, fresh + sequence.tokens);
  for (int i = thread; i < 2 * half * (last - first); i += few_warps * 32) {
    const int token = first - fresh + i / (2 * half);
    const int of_value = i / half % 2, column = i % half;
    float x1, x2;
    turn(sequence.first_token + token, a.heads + of_value * a.kv_heads + kv_head, column, x1, x2);
    auto* target =
        static_cast<__nv_bfloat16*>(const_cast<void*>(of_value != 0 ? own.values : own.keys)) +
        (int64_t{old_rows + token} * a.kv_heads + kv_head) * HeadSize + column;
    target[0] = __float2bfloat16_rn(x1);
    target[half] = __float2bfloat16_rn(x2);
  }
}

// One stretch of a sequence; all threads of a block. `waited` says whether earlier kernels have
// ended.
template <int HeadSize>
__device__ inline void attend_few(const DecodeArguments& a, const Stretch& stretch, bool& waited,
                                  char* memory) {
  constexpr int pieces = HeadSize / 8;
  constexpr int steps = HeadSize / 16;
  constexpr uint32_t tile_bytes = few_keys * HeadSize * 2;
  const int part = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const uint32_t ring =
      address_of(memory) + static_cast<uint32_t>(warp) * few_stages * 2 * tile_bytes;
  auto* q_rows = reinterpret_cast<__nv_bfloat16*>(memory + few_ring_bytes<HeadSize>);

  const DeviceSequence& sequence = a.sequences[stretch.sequence];
  const DecodePairs pairs(a, sequence, kv_head);
  const int32_t end = stretch.end;
  const int64_t row_stride = int64_t{a.kv_heads} * HeadSize;
  SetCursor source;  // of the rows that are loaded
  const __nv_bfloat16 *keys = nullptr, *values = nullptr;
  const int32_t* list = nullptr;
  int32_t count = 0;

  // The warp's tile number `tile` into a stage.
  const auto tile_begin = [&](int tile) {
    return stretch.begin + (tile * few_warps + warp) * few_keys;
  };
  const auto load = [&](int tile) {
    const int32_t first = tile_begin(tile);
    const uint32_t target = ring + static_cast<uint32_t>(tile % few_stages) * 2 * tile_bytes;
    if (first < end) {
      if (source.seek(sequence, first)) {
        const DeviceRowSet& set = sequence.sets[source.index];
        keys = static_cast<const __nv_bfloat16*>(set.keys) + kv_head * HeadSize;
        values = static_cast<const __nv_bfloat16*>(set.values) + kv_head * HeadSize;
        list = set.list;
        count = static_cast<int32_t>(set.count);
      }
      const int32_t place = first - source.begin, left = count - place;
      const auto copy = [&](int i, const auto& row_of) {
        const int row = (i + lane) / pieces, piece = (i + lane) % pieces;
        const bool inside = row < left;
        const int64_t offset = row_of(row, inside) * row_stride + piece * 8;
        const uint32_t at = piece_offset<pieces>(row, piece);
        copy_piece(target + at, keys + offset, inside ? 16 : 0);
        copy_piece(target + tile_bytes + at, values + offset, inside ? 16 : 0);
      };
      if (list == nullptr) {
#pragma unroll
        for (int i = 0; i < few_keys * pieces; i += 32) {
          copy(i, [&](int row, bool inside) { return int64_t{inside ? place + row : 0}; });
        }
      } else {
        const int32_t listed = lane < min(few_keys, left) ? list[place + lane] : 0;
#pragma unroll
        for (int i = 0; i < few_keys * pieces; i += 32) {
          copy(i, [&](int row, bool) { return int64_t{__shfl_sync(0xffffffff, listed, row)}; });
        }
      }
    }
    commit_copies();
  };
  // Old rows were there before the kernel that makes this one's queries and new rows.
  int ready = 0;
  if (!waited) {
    const int32_t old_end = old_rows_end(sequence, stretch.begin, end);
    while (ready < few_stages - 1 && tile_begin(ready) + few_keys <= old_end) load(ready++);
    cuda::wait_for_previous();
    waited = true;
  }
  prepare_queries<HeadSize>(a, sequence, pairs, stretch, kv_head, q_rows);
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

  float out[steps][4] = {};  // [columns 16 · steps, pairs]
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};
  SetCursor now;  // of the rows that are multiplied
  int32_t plain_end = 0;
  for (int tile = 0; tile_begin(tile) < end; ++tile) {
    const int32_t first = tile_begin(tile);
    if (now.seek(sequence, first)) plain_end = plain_rows_end(sequence, now);
    const bool plain = first + few_keys <= plain_end;
    const float weight = plain ? 0 : row_weight(sequence, now, first, lane);
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
#pragma unroll
    for (int j = 0; j < 4; ++j) s[j] = (s[j] + more[j]) * a.factor;
    if (!plain) {
      const float weights[2] = {__shfl_sync(0xffffffff, weight, lane / 4),
                                __shfl_sync(0xffffffff, weight, lane / 4 + 8)};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int token = min(lane % 4 * 2 + r, pairs.count - 1) / pairs.group;
        const uint32_t seen =
            rows_seen(sequence, now, first, token, a.masks[sequence.first_token + token]) >>
            (lane / 4);
        s[r] = (seen & 1) != 0 ? s[r] + weights[0] : -INFINITY;
        s[2 + r] = (seen >> 8 & 1) != 0 ? s[2 + r] + weights[1] : -INFINITY;
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
  const bool only = stretch.parts.count == 1;
  join_warps<few_warps, few_pairs, HeadSize, HeadSize>(a, pairs, 0, pairs.count, part, only,
                                                       warp_out, warp_max, warp_sum);
  if (!only &&
      last_to_arrive(a.arrived + stretch.sequence * a.kv_heads + kv_head, stretch.parts.count)) {
    join_through<HeadSize, few_warps * 32, few_ring_bytes<HeadSize>>(
        a, pairs, stretch.parts, reinterpret_cast<float*>(memory));
  }
}

// grid: (parts, kv heads)
template <int HeadSize>
__global__ void __launch_bounds__(few_warps * 32, 3)  // for the registers, not for three blocks
    decode_few(const __grid_constant__ DecodeArguments a) {
  extern __shared__ __align__(128) char memory[];
  __shared__ SequenceStarts starts;
  cuda::let_next_start();
  Walk walk(a, starts, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  bool waited = false;
  for (Stretch stretch; walk.next(stretch); __syncthreads()) {
    attend_few<HeadSize>(a, stretch, waited, memory);
  }
  if (!waited) cuda::wait_for_previous();
}

}  // namespace kinora::cuda_attention
