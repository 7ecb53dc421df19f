// The decode kernel (decode_cuda.h) for bf16 rows and at most eight (token, head) pairs of a kv
// head and sequence, as in decoding a token at a time. Keys and values are the left factors of its
// products, so nothing is computed for absent pairs. Its warps use few registers, and each streams
// rows through its own ring without waiting for the others: this leaves room for other kernels on
// the multiprocessor. It can also norm and rotate queries and keys and append
// the new rows itself.
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

// The new rows of a sequence that lie in a stretch: tokens [first, last) of the sequence, and token
// i is row old_rows + i of its own set.
struct FreshRows {
  int32_t old_rows = 0;
  int32_t first = 0;
  int32_t last = 0;

  FreshRows() = default;
  __device__ FreshRows(const DeviceSequence& sequence, const Stretch& stretch) {
    SetCursor at;
    while (at.index < sequence.own) at.seek(sequence, at.next);
    old_rows = static_cast<int32_t>(sequence.sets[sequence.own].count) - sequence.tokens;
    const int32_t begin = at.begin + old_rows;  // counted through all sets
    first = max(stretch.begin - begin, 0);
    last = min(stretch.end - begin, sequence.tokens);
  }
};

// A head of a new token as a warp has it: lane l has columns l, l + 32, … of the first half and,
// with each, its partner half a head further on.
template <int HeadSize>
struct WarpHead {
  static constexpr int half = HeadSize / 2, each = half / 32;
  float x1[each] = {}, x2[each] = {};
  float cos[each], sin[each];

  // (x, x') ← (x cos − x' sin, x' cos + x sin)
  __device__ void turn() {
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const float turned = x1[i] * cos[i] - x2[i] * sin[i];
      x2[i] = x2[i] * cos[i] + x1[i] * sin[i];
      x1[i] = turned;
    }
  }
};

// The weights of a norm of heads, as a warp has a head.
template <int HeadSize>
struct WarpNorm {
  static constexpr int half = HeadSize / 2, each = half / 32;
  float weight1[each], weight2[each];

  __device__ void load(const float* weights, int lane) {
#pragma unroll
    for (int i = 0; i < each; ++i) {
      weight1[i] = __ldg(weights + lane + 32 * i);
      weight2[i] = __ldg(weights + half + lane + 32 * i);
    }
  }

  // x ← weight · x / √(mean x² + epsilon), in the type that projections have; by a whole warp.
  __device__ void apply(WarpHead<HeadSize>& head, float epsilon, bool f32) const {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < each; ++i) {
      squares += head.x1[i] * head.x1[i] + head.x2[i] * head.x2[i];
    }
    const float factor = 1.0f / sqrtf(cuda::warp_sum(squares) / HeadSize + epsilon);
    const auto stored = [&](float value) {
      return f32 ? value : __bfloat162float(__float2bfloat16_rn(value));
    };
#pragma unroll
    for (int i = 0; i < each; ++i) {
      head.x1[i] = stored(head.x1[i] * factor * weight1[i]);
      head.x2[i] = stored(head.x2[i] * factor * weight2[i]);
    }
  }
};

// The pairs whose queries a warp brings: one in few_warps.
struct FewQueries {
  static constexpr int each = few_pairs / few_warps;
  int32_t token[each];  // −1: there is no such pair
  int32_t head[each];

  __device__ explicit FewQueries(const DecodePairs& pairs) {
#pragma unroll
    for (int k = 0; k < each; ++k) {
      const int pair = static_cast<int>(threadIdx.x) / 32 + k * few_warps;
      token[k] = pair < pairs.count ? pairs.token(pair) : -1;
      head[k] = pairs.head(pair);
    }
  }
};

// Fills q [few_pairs, HeadSize], and with a.unturned writes the stretch's new rows. All that is
// loaded is on its way before any of it is used.
template <int HeadSize>
__device__ inline void prepare_queries(const DecodeArguments& a, const DeviceSequence& sequence,
                                       const FewQueries& mine, const FreshRows& fresh, bool keep,
                                       int kv_head, __nv_bfloat16* q) {
  using Head = WarpHead<HeadSize>;
  constexpr int half = HeadSize / 2, columns = Head::each;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const bool turns = a.unturned != nullptr, norms = a.query_norm != nullptr;
  const void* from = turns ? a.unturned : a.queries;
  const auto token_stride = static_cast<int32_t>(turns ? a.unturned_stride : a.query_stride);
  const int32_t head_stride = turns ? HeadSize : static_cast<int32_t>(a.query_head_stride);
  const auto load = [&](int token, int head) {
    Head row;
#pragma unroll
    for (int i = 0; i < columns; ++i) {
      const int column = lane + 32 * i;
      const int32_t at = token * token_stride + head * head_stride + column;
      row.x1[i] = load_value(from, a.queries_f32, at);
      row.x2[i] = load_value(from, a.queries_f32, at + half);
      const bool turned = turns && head < a.heads + a.kv_heads;  // no value
      row.cos[i] = turned ? a.cos[token * half + column] : 1;
      row.sin[i] = turned ? a.sin[token * half + column] : 0;
    }
    return row;
  };
  // Item i of the new rows: a token's key or value.
  const int fresh_items = 2 * max(0, fresh.last - fresh.first);
  const auto load_fresh = [&](int i) {
    return load(sequence.first_token + fresh.first + i / 2, a.heads + i % 2 * a.kv_heads + kv_head);
  };
  Head query[mine.each], row;
  WarpNorm<HeadSize> query_norm, key_norm;
  if (norms) query_norm.load(a.query_norm, lane);
#pragma unroll
  for (int k = 0; k < mine.each; ++k) {
    if (mine.token[k] >= 0) query[k] = load(mine.token[k], mine.head[k]);
  }
  if (warp < fresh_items) {
    row = load_fresh(warp);
    if (norms) key_norm.load(a.key_norm, lane);
  }
#pragma unroll
  for (int k = 0; k < mine.each; ++k) {
    if (mine.token[k] >= 0) {
      if (norms) query_norm.apply(query[k], a.norm_epsilon, a.queries_f32);
      query[k].turn();
    }
    auto* to = q + (warp + k * few_warps) * HeadSize + lane;
#pragma unroll
    for (int i = 0; i < columns; ++i) {
      to[32 * i] = __float2bfloat16_rn(query[k].x1[i]);
      to[32 * i + half] = __float2bfloat16_rn(query[k].x2[i]);
    }
  }
#pragma unroll 1
  for (int i = warp; i < fresh_items; i += few_warps) {
    if (i != warp) row = load_fresh(i);
    const bool of_value = i % 2 != 0;
    if (norms && !of_value) key_norm.apply(row, a.norm_epsilon, a.queries_f32);
    row.turn();
    const DeviceRowSet& own = sequence.sets[sequence.own];
    auto* target =
        static_cast<__nv_bfloat16*>(const_cast<void*>(of_value ? own.values : own.keys)) +
        (int64_t{fresh.old_rows + fresh.first + i / 2} * a.kv_heads + kv_head) * HeadSize + lane;
#pragma unroll
    for (int k = 0; k < columns; ++k) {
      target[32 * k] = __float2bfloat16_rn(row.x1[k]);
      target[32 * k + half] = __float2bfloat16_rn(row.x2[k]);
    }
  }
  if (!keep) return;
#pragma unroll
  for (int k = 0; k < mine.each; ++k) {
    if (mine.token[k] < 0) continue;
    const int64_t at = mine.token[k] * a.query_stride + mine.head[k] * a.query_head_stride + lane;
#pragma unroll
    for (int i = 0; i < columns; ++i) {
      store_value(const_cast<void*>(a.queries), a.queries_f32, at + 32 * i, query[k].x1[i]);
      store_value(const_cast<void*>(a.queries), a.queries_f32, at + 32 * i + half, query[k].x2[i]);
    }
  }
}

// The kv head and the part of its rows that a block of decode_few reads.
struct FewPlace {
  int32_t kv_head, part;
  int32_t parts;  // of this head

  __device__ explicit FewPlace(const DecodeArguments& a) : parts(a.parts) {
    auto block = static_cast<int32_t>(blockIdx.x);
    const int32_t longer = a.longer_heads * (parts + 1);
    kv_head = 0;
    if (block < longer) {
      ++parts;
    } else {
      block -= longer;
      kv_head = a.longer_heads;
    }
    const int32_t heads_before = small_quotient(block, reciprocal(static_cast<float>(parts)));
    kv_head += heads_before;
    part = block - heads_before * parts;
  }
};

// One stretch of a sequence; all threads of a block. `waited` says whether earlier kernels have
// ended.
template <int HeadSize>
__device__ inline void attend_few(const DecodeArguments& a, const FewPlace& place,
                                  const Stretch& stretch, bool& waited, char* memory) {
  constexpr int pieces = HeadSize / 8;
  constexpr int steps = HeadSize / 16;
  constexpr uint32_t tile_bytes = few_keys * HeadSize * 2;
  const int part = place.part, kv_head = place.kv_head;
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

  const auto tile_begin = [&](int tile) {
    return stretch.begin + (tile * few_warps + warp) * few_keys;
  };
  // The warp's tile number `tile` into a stage. A lane copies one piece of every few rows.
  const auto load = [&](int tile) {
    constexpr int step = 32 / pieces;
    const int32_t first = tile_begin(tile);
    const uint32_t target = ring + static_cast<uint32_t>(tile % few_stages) * 2 * tile_bytes;
    if (first < end) {
      if (source.seek(sequence, first)) {
        const DeviceRowSet& set = sequence.sets[source.index];
        const int at = kv_head * HeadSize + lane % pieces * 8;
        keys = static_cast<const __nv_bfloat16*>(set.keys) + at;
        values = static_cast<const __nv_bfloat16*>(set.values) + at;
        list = set.list;
        count = static_cast<int32_t>(set.count);
      }
      const int32_t place = first - source.begin, left = count - place;
      int32_t index = lane < left ? place + lane : 0;  // of row `lane` of the tile
      if (list != nullptr && lane < min(few_keys, left)) index = list[place + lane];
#pragma unroll
      for (int i = 0; i < few_keys; i += step) {
        const int row = i + lane / pieces;
        const uint32_t bytes = row < left ? 16 : 0;
        const int64_t offset = __shfl_sync(0xffffffff, index, row) * row_stride;
        const uint32_t at = target + piece_offset<pieces>(row, lane % pieces);
        copy_piece(at, keys + offset, bytes);
        copy_piece(at + tile_bytes, values + offset, bytes);
      }
    }
    commit_copies();
  };
  const FewQueries mine(pairs);
  FreshRows fresh;
  if (a.unturned != nullptr) {
    fresh = FreshRows(sequence, stretch);
    if (thread < pairs.count) {
      const int64_t at = pairs.token(thread) * (HeadSize / 2);
      fetch_line(a.cos + at);
      fetch_line(a.sin + at);
    }
    if (a.query_norm != nullptr && thread * 8 < HeadSize) {
      fetch_line(a.query_norm + thread * 8);
      fetch_line(a.key_norm + thread * 8);
    }
  }
  // Old rows were there before the kernel that makes this one's queries and new rows.
  const int32_t old_end = waited ? 0 : old_rows_end(sequence, stretch.begin, end);

  // A lane sees keys lane / 4 and lane / 4 + 8 of a tile and pairs 2 (lane % 4) and the next.
  uint32_t q[steps][2] = {};
  float out[steps][4] = {};  // [columns 16 · steps, pairs]
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};
  SetCursor now;  // of the rows that are multiplied
  int32_t plain_end = 0;
  bool prepared = false;
  // The first turns only load. Each warp passes the barrier once, in a turn of its own.
#pragma unroll 1
  for (int tile = 1 - few_stages; tile < 0 || tile_begin(tile) < end || !prepared; ++tile) {
    const int next = tile + few_stages - 1;
    if (!prepared && (tile == 0 || tile_begin(next) + few_keys > old_end)) {
      if (!waited) cuda::wait_for_previous();
      prepare_queries<HeadSize>(a, sequence, mine, fresh, a.keep_queries && stretch.begin == 0,
                                kv_head, q_rows);
      __syncthreads();
#pragma unroll
      for (int s = 0; s < steps; ++s) {
        const auto* from = q_rows + lane / 4 * HeadSize + s * 16 + lane % 4 * 2;
        q[s][0] = *reinterpret_cast<const uint32_t*>(from);
        q[s][1] = *reinterpret_cast<const uint32_t*>(from + 8);
      }
      prepared = true;
    }
    const int32_t first = tile_begin(tile);
    if (tile >= 0) {  // all lanes have read the tile whose place the next one takes
      wait_copies<few_stages - 2>();
      __syncwarp();
    }
    load(next);
    if (tile < 0 || first >= end) continue;
    if (now.seek(sequence, first)) plain_end = plain_rows_end(sequence, now);
    const bool plain = first + few_keys <= plain_end;
    const float weight = plain ? 0 : row_weight(sequence, now, first, lane);
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
  waited = true;
  wait_copies<0>();
  __syncthreads();

  // The warps join their results through shared memory.
  constexpr int pitch = HeadSize + 4;                 // four pairs of a warp in different banks
  auto* warp_out = reinterpret_cast<float*>(memory);  // [warps, pairs, pitch]
  float* warp_max = warp_out + few_warps * few_pairs * pitch;
  float* warp_sum = warp_max + few_warps * few_pairs;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) sum[r] += __shfl_xor_sync(0xffffffff, sum[r], step);
    const int slot = warp * few_pairs + lane % 4 * 2 + r;
#pragma unroll
    for (int n = 0; n < steps; ++n) {
      warp_out[slot * pitch + n * 16 + lane / 4] = out[n][r];
      warp_out[slot * pitch + n * 16 + lane / 4 + 8] = out[n][2 + r];
    }
    if (lane < 4) {
      warp_max[slot] = max[r];
      warp_sum[slot] = sum[r];
    }
  }
  __syncthreads();
  const bool only = stretch.parts.count == 1;
  join_warps<few_warps, few_pairs, HeadSize, pitch>(a, pairs, 0, pairs.count, part, only, warp_out,
                                                    warp_max, warp_sum);
  if (!only &&
      last_to_arrive(a.arrived + stretch.sequence * a.kv_heads + kv_head, stretch.parts.count)) {
    join_through<HeadSize, few_warps * 32, few_ring_bytes<HeadSize>>(
        a, pairs, stretch.parts, reinterpret_cast<float*>(memory));
  }
}

// grid: a block for every part of every kv head
template <int HeadSize>
__global__ void __launch_bounds__(few_warps * 32, 3)  // for the registers, not for three blocks
    decode_few(const __grid_constant__ DecodeArguments a) {
  extern __shared__ __align__(128) char memory[];
  __shared__ SequenceStarts starts;
  cuda::let_next_start();
  const FewPlace place(a);
  Walk walk(a, starts, place.part, place.parts);
  bool waited = false;
  for (Stretch stretch; walk.next(stretch); __syncthreads()) {
    attend_few<HeadSize>(a, place, stretch, waited, memory);
  }
  if (!waited) cuda::wait_for_previous();
}

}  // namespace kinora::cuda_attention
