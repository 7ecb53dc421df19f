// How much attention the new tokens gave each row (DeviceRowSet::mass): Σ over tokens and chosen
// heads, or for each of them apart, of the softmax probability, worked out again from the scores
// once the softmax state is known. A warp takes a share of 32 rows through all heads, so every row
// is added to once, always in one order.
#pragma once

#include "attention/cuda/decode/decode_batch_cuda.cuh"
#include "attention/cuda/decode/row_codes_cuda.cuh"

namespace kinora::cuda_attention {

constexpr int mass_warps = 4;
constexpr int mass_blocks = 2;  // of a multiprocessor; more would leave too few registers

// What differs from layer to layer; a row of blocks takes each.
struct MassLayer {
  const void* queries;
  const DeviceSequence* sequences;
  float* state_max;
  float* state_sum;
};
constexpr int most_mass_layers = 64;  // of a launch
struct MassLayers {
  MassLayer of[most_mass_layers];
};

__device__ inline DecodeArguments in_layer(const DecodeArguments& shared,
                                           const MassLayers& layers) {
  DecodeArguments a = shared;
  const MassLayer& here = layers.of[blockIdx.y];
  a.queries = here.queries;
  a.sequences = here.sequences;
  a.state_max = here.state_max;
  a.state_sum = here.state_sum;
  return a;
}

// The share that a warp is at.
struct MassShare {
  const DeviceSequence* sequence;
  SetCursor at;
  int32_t row;  // of the sequence, the first of the share
};

// Calls body(share) for every share of this warp whose set wants its mass.
template <class Body>
__device__ inline void for_mass_shares(const DecodeArguments& a, SequenceStarts& starts,
                                       const Body& body) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t shares = place_sequences(a, starts);
  cuda::wait_for_previous();
  for (int32_t share = static_cast<int32_t>(blockIdx.x * mass_warps + threadIdx.x / 32);
       share < shares; share += static_cast<int32_t>(gridDim.x) * mass_warps) {
    const int32_t which = a.sequence_count == 1 ? 0 : sequence_of(starts, share, lane);
    MassShare here{a.sequences + which, {}, share * decode_share};
    if (a.sequence_count > 1) here.row -= starts[which] * decode_share;
    here.at.seek(*here.sequence, here.row);
    if (here.sequence->sets[here.at.index].mass != nullptr) body(here);
  }
}

// Whether the mass of a query head counts, and whether any of some neighbouring ones does.
__device__ inline bool has_head(uint64_t heads, int head) {
  return heads == ~uint64_t{0} || (head < 64 && (heads >> head & 1) != 0);
}
__device__ inline bool has_some_head(uint64_t heads, int first, int count) {
  if (heads == ~uint64_t{0}) return true;
  if (first >= 64) return false;
  heads >>= first;
  return count >= 64 ? heads != 0 : (heads & ((uint64_t{1} << count) - 1)) != 0;
}

__device__ inline bool adds_apart(const DeviceSequence& sequence) {
  return sequence.mass_token_stride != 0 || sequence.mass_head_stride != 0;
}
__device__ inline float* mass_of(const DeviceRowSet& set, int32_t place) {
  return set.mass + (set.mass_places != nullptr ? set.mass_places[place] : place);
}
// Where tokens or heads are added apart.
__device__ inline float* mass_of(const DeviceSequence& sequence, const DeviceRowSet& set,
                                 int32_t place, int token, int head) {
  return mass_of(set, place) + token * sequence.mass_token_stride +
         head * sequence.mass_head_stride;
}

// What turns the score of a pair into a probability: exp2(score − high) · share.
struct PairState {
  float high;
  float share;
};
__device__ inline PairState load_state(const DecodeArguments& a, int64_t place) {
  const float sum = a.state_sum[place];
  return {a.state_max[place] * log2_e, sum > 0 ? 1 / sum : 0};
}

// Eight elements of a query as bf16.
__device__ inline uint4 load_query_piece(const DecodeArguments& a, int64_t at) {
  if (!a.queries_f32) {
    const auto* from =
        reinterpret_cast<const uint32_t*>(static_cast<const __nv_bfloat16*>(a.queries) + at);
    return {from[0], from[1], from[2], from[3]};
  }
  const auto* from = reinterpret_cast<const float2*>(static_cast<const float*>(a.queries) + at);
  return {pack_bf16(from[0].x, from[0].y), pack_bf16(from[1].x, from[1].y),
          pack_bf16(from[2].x, from[2].y), pack_bf16(from[3].x, from[3].y)};
}

// Eight neighbouring columns of some keys for each lane, as right factors of products: those of row
// 8 n + lane / 4 in span j of 32 columns.
template <int HeadSize, typename Row>
struct MassKeys {
  static constexpr int spans = HeadSize / 32;
  uint4 columns[4][spans];

  // row_of(row) is where a row of the share is kept.
  template <class RowOf>
  __device__ void load(const DeviceRowSet& set, int kv_heads, int kv_head, int32_t left, int lane,
                       const RowOf& row_of) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int row = n * 8 + lane / 4;
      const auto* key = static_cast<const Row*>(set.keys) +
                        (row_of(row) * kv_heads + kv_head) * HeadSize + lane % 4 * 8;
#pragma unroll
      for (int j = 0; j < spans; ++j) {
        columns[n][j] = row < left ? *reinterpret_cast<const uint4*>(key + j * 32) : uint4{};
      }
    }
  }
  // s += queries · keys, over span j of the columns.
  __device__ void multiply(float (&s)[4], const uint32_t (&low)[4], const uint32_t (&high)[4],
                           int n, int j) const {
    multiply_add(s, low, columns[n][j].x, columns[n][j].y);
    multiply_add(s, high, columns[n][j].z, columns[n][j].w);
  }
};

// Rows in 8 bits: a span shares a scale. A lane needs those of the keys that it has scores of.
template <int HeadSize, typename Code>
struct PackedMassKeys {
  static constexpr int spans = HeadSize / 32;
  uint2 columns[4][spans];
  HeadScales<HeadSize> scales[4][2];  // of rows 8 n + 2 (lane % 4) and the next

  template <class RowOf>
  __device__ void load(const DeviceRowSet& set, int kv_heads, int kv_head, int32_t left, int lane,
                       const RowOf& row_of) {
    const auto words_of = [&](int row) {  // of a head
      return reinterpret_cast<const uint32_t*>(static_cast<const uint8_t*>(set.keys) +
                                               (row_of(row) * kv_heads + kv_head) *
                                                   packed_head_bytes<HeadSize>);
    };
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int row = n * 8 + lane / 4;
      const uint32_t* key = words_of(row) + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < spans; ++j) {
        columns[n][j] = row < left ? uint2{key[j * 8], key[j * 8 + 1]} : uint2{};
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int scored = n * 8 + lane % 4 * 2 + c;
        scales[n][c] = {};
        if (scored < left) scales[n][c].load(words_of(scored) + HeadSize / 4);
      }
    }
  }
  __device__ void multiply(float (&s)[4], const uint32_t (&low)[4], const uint32_t (&high)[4],
                           int n, int j) const {
    const uint2 codes = columns[n][j];
    float some[4] = {};
    multiply_add(some, low, widen_pair<0, Code>(codes.x), widen_pair<1, Code>(codes.x));
    multiply_add(some, high, widen_pair<0, Code>(codes.y), widen_pair<1, Code>(codes.y));
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = fmaf(some[i], scales[n][i % 2].of(j), s[i]);
  }
};
template <int HeadSize>
struct MassKeys<HeadSize, int8_t> : PackedMassKeys<HeadSize, int8_t> {};
template <int HeadSize>
struct MassKeys<HeadSize, e4m3> : PackedMassKeys<HeadSize, e4m3> {};

// Rows in bf16 or 8 bits on tensor cores.  grid: (any, layers)
template <int HeadSize, typename Row>
__global__ void __launch_bounds__(mass_warps * 32, mass_blocks)
    decode_mass(const __grid_constant__ DecodeArguments shared,
                const __grid_constant__ MassLayers layers) {
  const DecodeArguments a = in_layer(shared, layers);
  __shared__ SequenceStarts starts;
  cuda::let_next_start();
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane / 4, column = lane % 4 * 2;
  for_mass_shares(a, starts, [&](const MassShare& here) {
    const DeviceSequence& sequence = *here.sequence;
    const DeviceRowSet& set = sequence.sets[here.at.index];
    const int32_t place = here.row - here.at.begin;
    const int32_t left = static_cast<int32_t>(set.count) - place;
    const float weight = row_weight(sequence, here.at, here.row, lane);
    const bool apart = adds_apart(sequence);
    float mass[4][2] = {};  // of rows 8 n + column and the next, for this lane's pairs
    for (int kv_head = 0; kv_head < a.kv_heads; ++kv_head) {
      const DecodePairs pairs(a, sequence, kv_head);
      if (!has_some_head(sequence.mass_heads, pairs.first_head, pairs.group)) continue;
      // Products do not care in which order columns are summed up: a lane takes eight neighbouring
      // ones of a key, and the same of a query.
      MassKeys<HeadSize, Row> keys;
      keys.load(set, a.kv_heads, kv_head, left, lane, [&](int row) -> int64_t {
        return set.list != nullptr && row < left ? set.list[place + row] : place + row;
      });
      for (int first = 0; first < pairs.count; first += 16) {
        float s[4][4] = {};
        const int pair[2] = {min(first + quad, pairs.count - 1),
                             min(first + quad + 8, pairs.count - 1)};
#pragma unroll
        for (int j = 0; j < keys.spans; ++j) {
          uint4 query[2];
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            query[r] = load_query_piece(a, pairs.token(pair[r]) * a.query_stride +
                                               pairs.head(pair[r]) * a.query_head_stride + j * 32 +
                                               lane % 4 * 8);
          }
          const uint32_t low[4] = {query[0].x, query[1].x, query[0].y, query[1].y};
          const uint32_t high[4] = {query[0].z, query[1].z, query[0].w, query[1].w};
#pragma unroll
          for (int n = 0; n < 4; ++n) keys.multiply(s[n], low, high, n, j);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int token = pair[r] / pairs.group;
          const PairState state = load_state(a, pairs.place(pair[r]));
          uint32_t seen =
              rows_seen(sequence, here.at, here.row, token, a.masks[pairs.first_token + token]) >>
              column;
          if (first + quad + 8 * r >= pairs.count || token < sequence.mass_from ||
              !has_head(sequence.mass_heads, pairs.head(pair[r]))) {
            seen = 0;
          }
#pragma unroll
          for (int n = 0; n < 4; ++n) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
              const float more = __shfl_sync(0xffffffff, weight, n * 8 + column + c);
              const float score = fmaf(s[n][2 * r + c], a.factor, more);
              if ((seen >> (n * 8 + c) & 1) == 0) continue;
              const float high = exp2_fast(score - state.high);
              if (apart) {
                atomicAdd(
                    mass_of(sequence, set, place + n * 8 + column + c, token, pairs.head(pair[r])),
                    high * state.share);
              } else {
                mass[n][c] = fmaf(high, state.share, mass[n][c]);
              }
            }
          }
        }
      }
    }
    if (apart) return;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float total = mass[n][c];
        for (int step = 4; step < 32; step *= 2) {
          total += __shfl_xor_sync(0xffffffff, total, step);
        }
        const int row = n * 8 + column + c;
        if (quad == 0 && row < left) atomicAdd(mass_of(set, place + row), total);
      }
    }
  });
}

// Any rows and head size in f32 arithmetic.  grid: (any, layers)
template <int = 0>
__global__ void __launch_bounds__(mass_warps * 32)
    decode_mass_simple(const __grid_constant__ DecodeArguments shared,
                       const __grid_constant__ MassLayers layers, RowReader reader) {
  const DecodeArguments a = in_layer(shared, layers);
  __shared__ SequenceStarts starts;
  cuda::let_next_start();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for_mass_shares(a, starts, [&](const MassShare& here) {
    const DeviceSequence& sequence = *here.sequence;
    const DeviceRowSet& set = sequence.sets[here.at.index];
    const int32_t place = here.row - here.at.begin + lane;
    if (place >= static_cast<int32_t>(set.count)) return;
    const int64_t row = set.list != nullptr ? set.list[place] : place;
    const float weight = row_weight(sequence, here.at, here.row, lane);
    const int group = a.heads / a.kv_heads;
    const bool apart = adds_apart(sequence);
    float mass = 0;
    for (int token = sequence.mass_from; token < sequence.tokens; ++token) {
      const int32_t whole = sequence.first_token + token;
      if ((rows_seen(sequence, here.at, here.row, token, a.masks[whole]) >> lane & 1) == 0) {
        continue;
      }
      for (int head = 0; head < a.heads; ++head) {
        if (!has_head(sequence.mass_heads, head)) continue;
        const int64_t from = whole * a.query_stride + head * a.query_head_stride;
        const int64_t key = row * a.kv_heads + head / group;
        float score = 0;
        for (int c = 0; c < reader.head_size; ++c) {
          score = fmaf(load_value(a.queries, a.queries_f32, from + c) * a.factor,
                       reader.load(set.keys, key, c), score);
        }
        const PairState state = load_state(a, int64_t{whole} * a.heads + head);
        const float high = exp2f(score + weight - state.high);
        if (apart) {
          atomicAdd(mass_of(sequence, set, place, token, head), high * state.share);
        } else {
          mass = fmaf(high, state.share, mass);
        }
      }
    }
    if (!apart) atomicAdd(mass_of(set, place), mass);
  });
}

}  // namespace kinora::cuda_attention
