// How the decode kernels (decode_cuda.h) join what warps and parts hold of a (token, head) pair.
#pragma once

#include "attention/cuda/decode/decode_batch_cuda.cuh"

namespace kinora::cuda_attention {

// The softmax state of a pair, which had its maximum in log2 units so far.
__device__ inline void store_state(const DecodeArguments& a, int64_t place, float max, float sum) {
  constexpr float ln_2 = 0.693147180559945f;
  if (a.state_max != nullptr) a.state_max[place] = max * ln_2;
  if (a.state_sum != nullptr) a.state_sum[place] = sum;
}

// Joins what the warps of a block hold of pairs [first, first + count): [warps, rows, pitch]
// outputs and [warps, rows] maxima and sums in shared memory. The result is that of part `part`, or
// the output where there is only one.
template <int Warps, int Rows, int HeadSize, int Pitch>
__device__ inline void join_warps(const DecodeArguments& a, const DecodePairs& pairs, int first,
                                  int count, int part, bool only, const float* warp_out,
                                  const float* warp_max, const float* warp_sum) {
  const int64_t all_pairs = int64_t{a.tokens} * a.heads;
  const int threads = static_cast<int>(blockDim.x);
  for (int i = static_cast<int>(threadIdx.x); i < count * HeadSize; i += threads) {
    const int row = i / HeadSize, column = i % HeadSize;
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
    const int64_t place = pairs.place(first + row);
    if (only) {
      store_value(a.out, a.out_f32,
                  pairs.token(first + row) * a.out_stride +
                      pairs.head(first + row) * a.out_head_stride + column,
                  all > 0 ? total / all : 0);
      if (column == 0) store_state(a, place, high, all);
      continue;
    }
    const int64_t at = part * all_pairs + place;
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

// Joins the parts of pairs [first, first + count); all threads of a block.
__device__ inline void join_parts(const DecodeArguments& a, const DecodePairs& pairs, int first,
                                  int count, const PartRange& range, int head_size,
                                  float* scratch) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int lane = thread % 32, parts = range.count;
  const int64_t all_pairs = int64_t{a.tokens} * a.heads;
  float* max = scratch;  // [count, parts], then the share of a part in its pair
  float* sum = scratch + count * parts;
  const int64_t step = all_pairs * head_size;
  const float* outs = a.part_out + range.first * step;
  const int quads = head_size / 4;
  // The first four columns of a thread are on their way while the shares are worked out.
  constexpr int ahead = 33;
  const bool prefetch = head_size % 4 == 0 && parts <= ahead && thread < count * quads;
  float4 fetched[ahead];
  if (prefetch) {
    const float* from = outs + pairs.place(first + thread / quads) * head_size + thread % quads * 4;
#pragma unroll
    for (int part = 0; part < ahead; ++part) {
      if (part < parts) fetched[part] = __ldcg(reinterpret_cast<const float4*>(from + part * step));
    }
  }
  for (int i = thread; i < count * parts; i += threads) {
    const int64_t at = (range.first + i % parts) * all_pairs + pairs.place(first + i / parts);
    max[i] = __ldcg(a.part_max + at);
    sum[i] = __ldcg(a.part_sum + at);
  }
  __syncthreads();
  for (int p = thread / 32; p < count; p += threads / 32) {
    float high = -INFINITY;
    for (int i = lane; i < parts; i += 32) high = fmaxf(high, max[p * parts + i]);
    for (int step_mask = 16; step_mask > 0; step_mask /= 2) {
      high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, step_mask));
    }
    float total = 0;
    for (int i = lane; i < parts; i += 32) {  // a part that read nothing has sum 0
      const float weight = sum[p * parts + i] > 0 ? exp2f(max[p * parts + i] - high) : 0;
      max[p * parts + i] = weight;
      total += weight * sum[p * parts + i];
    }
    total = cuda::warp_sum(total);
    for (int i = lane; i < parts; i += 32) {
      max[p * parts + i] = total > 0 ? max[p * parts + i] / total : 0;
    }
    if (lane == 0) store_state(a, pairs.place(first + p), high, total);
  }
  __syncthreads();
  const auto put = [&](int p, int column, float value) {
    store_value(
        a.out, a.out_f32,
        pairs.token(first + p) * a.out_stride + pairs.head(first + p) * a.out_head_stride + column,
        value);
  };
  if (head_size % 4 != 0) {
    for (int i = thread; i < count * head_size; i += threads) {
      const int p = i / head_size, column = i % head_size;
      const float* from = outs + pairs.place(first + p) * head_size + column;
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
    const float* from = outs + pairs.place(first + p) * head_size + column;
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

// Joins the parts of all pairs of a sequence's kv head through shared memory, as many pairs at once
// as fit into it; all threads of a block. One pair with its parts must fit.
template <int HeadSize, int Threads, size_t RoomBytes>
__device__ inline void join_through(const DecodeArguments& a, const DecodePairs& pairs,
                                    const PartRange& range, float* room) {
  constexpr int quads = HeadSize / 4;
  const int64_t all_pairs = int64_t{a.tokens} * a.heads;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, parts = range.count;
  const int64_t step = all_pairs * HeadSize;  // from part to part
  float* share = room;                        // [at once, parts]
  const int each = parts * (HeadSize + 4);    // floats of a pair; 4: the share, rounded up
  const int at_once = min(pairs.count, static_cast<int>(RoomBytes / sizeof(float)) / each);
  float* outs = room + at_once * parts * 4;  // [at once, parts, HeadSize]
  const float* maxima = a.part_max + range.first * all_pairs;
  const float* sums = a.part_sum + range.first * all_pairs;
  for (int first = 0; first < pairs.count; first += at_once) {
    const int count = min(at_once, pairs.count - first);
    __syncthreads();
    // Half a warp or a whole one takes a row of a part.
    for (int p = 0; p < count; ++p) {
      const float* from =
          a.part_out + range.first * step + pairs.place(first + p) * HeadSize + thread % quads * 4;
      const uint32_t to = address_of(outs + p * parts * HeadSize + thread % quads * 4);
      for (int part = thread / quads; part < parts; part += Threads / quads) {
        copy_piece(to + static_cast<uint32_t>(part * HeadSize) * 4, from + part * step, 16);
      }
    }
    commit_copies();
    for (int p = thread / 32; p < count; p += Threads / 32) {
      const int64_t place = pairs.place(first + p);
      float high = -INFINITY, total = 0;
      for (int i = lane; i < parts; i += 32) {
        high = fmaxf(high, __ldcg(maxima + i * all_pairs + place));
      }
      high = cuda::warp_max(high);
      for (int i = lane; i < parts; i += 32) {  // a part that read nothing has sum 0
        const int64_t at = i * all_pairs + place;
        const float sum = __ldcg(sums + at);
        const float weight = sum > 0 ? exp2f(__ldcg(maxima + at) - high) : 0;
        share[p * parts + i] = weight;
        total += weight * sum;
      }
      total = cuda::warp_sum(total);
      __syncwarp();
      for (int i = lane; i < parts; i += 32) {
        share[p * parts + i] = total > 0 ? share[p * parts + i] / total : 0;
      }
      if (lane == 0) store_state(a, place, high, total);
    }
    wait_copies<0>();
    __syncthreads();
    for (int i = thread; i < count * quads; i += Threads) {
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
      const int64_t at = pairs.token(first + p) * a.out_stride +
                         pairs.head(first + p) * a.out_head_stride + column;
      store_value(a.out, a.out_f32, at, value.x);
      store_value(a.out, a.out_f32, at + 1, value.y);
      store_value(a.out, a.out_f32, at + 2, value.z);
      store_value(a.out, a.out_f32, at + 3, value.w);
    }
  }
}

// How a kernel without a join of its own has cut the pairs of a kv head into tiles, and the rows of
// a tile into parts. Where `halves` is set, a tile whose pairs are no more than half of `rows` has
// two slots for each part.
struct PairTiles {
  int32_t rows = 1;
  int32_t full = 1;  // tiles of `parts` parts; those that follow have `last_parts`
  int32_t parts = 1;
  int32_t last_parts = 1;
  bool halves = false;

  __host__ __device__ int32_t parts_of(int32_t tile) const {
    return tile < full ? parts : last_parts;
  }
  // Whether a tile of a sequence with this many pairs has two slots for each part.
  __host__ __device__ bool halved(int32_t tile, int32_t pairs) const {
    return halves && pairs - tile * rows <= rows / 2;
  }
};

constexpr int join_warps_per_block = 4;

// Joins the slots of every pair of the batch, and what it has of other rows; a warp for each, whose
// lanes share out quads of columns.
// grid: (tokens × heads of a kv head / warps, kv heads)
template <int HeadSize>
__global__ void __launch_bounds__(join_warps_per_block * 32, 4)
    join_pairs(const __grid_constant__ DecodeArguments a, const __grid_constant__ PairTiles tiles) {
  constexpr int quads = HeadSize / 4;
  __shared__ SequenceStarts starts;
  cuda::let_next_start();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = a.heads / a.kv_heads;
  const int index =
      static_cast<int>(blockIdx.x) * join_warps_per_block + static_cast<int>(threadIdx.x) / 32;
  const int32_t shares = place_sequences(a, starts);
  const int token = index / group;
  const int32_t which =
      token < a.tokens ? sequence_of_token(a.sequences, a.sequence_count, token, lane) : -1;
  const bool joins_others =
      a.others.out != nullptr && token < a.tokens &&
      sequence_of_token(a.others.sequences, a.others.sequence_count, token, lane) >= 0;
  cuda::wait_for_previous();
  const int head = static_cast<int>(blockIdx.y) * group + index % group;
  const int64_t all_pairs = int64_t{a.tokens} * a.heads, place = int64_t{token} * a.heads + head;
  PartRange range{0, 0};
  if (which >= 0) {
    const DeviceSequence& sequence = a.sequences[which];
    const int p = (token - sequence.first_token) * group + index % group;
    const int32_t tile = p / tiles.rows;
    range = parts_reading(a, starts, shares, tiles.parts_of(tile), which, lane);
    if (tiles.halved(tile, sequence.tokens * group)) {
      range.first *= 2;
      range.count *= 2;
    } else if (range.count == 1 && a.others.out == nullptr) {
      return;  // it is the output
    }
  } else if (!joins_others) {
    return;
  }
  const float* maxima = a.part_max + range.first * all_pairs + place;
  const float* sums = a.part_sum + range.first * all_pairs + place;
  const float* outs = a.part_out + (range.first * all_pairs + place) * HeadSize + lane % quads * 4;
  const auto out_of = [&](int i) {
    return __ldcg(reinterpret_cast<const float4*>(outs + i * all_pairs * HeadSize));
  };
  // The first outputs are on their way while the shares are worked out.
  constexpr int ahead = 16;
  float4 fetched[ahead];
#pragma unroll
  for (int i = 0; i < ahead; ++i) {
    if (i < range.count) fetched[i] = out_of(i);
  }
  float other_max = -INFINITY, other_sum = 0;
  float4 other_out{};
  if (joins_others) {
    other_max = __ldcg(a.others.max + place) * log2_e;
    other_sum = __ldcg(a.others.sum + place);
    other_out =
        __ldcg(reinterpret_cast<const float4*>(a.others.out + place * HeadSize + lane % quads * 4));
  }
  // A part that read nothing has sum 0. A lane keeps what it knows of its first part.
  const float own_sum = lane < range.count ? __ldcg(sums + lane * all_pairs) : 0;
  const float own_max = lane < range.count ? __ldcg(maxima + lane * all_pairs) : -INFINITY;
  float high = fmaxf(own_max, other_sum > 0 ? other_max : -INFINITY);
  for (int i = lane + 32; i < range.count; i += 32) {
    high = fmaxf(high, __ldcg(maxima + i * all_pairs));
  }
  high = cuda::warp_max(high);
  const auto weight_of = [&](float max, float sum) { return sum > 0 ? exp2f(max - high) : 0; };
  const float own_weight = weight_of(own_max, own_sum);
  float total = own_weight * own_sum;
  for (int i = lane + 32; i < range.count; i += 32) {
    const float sum = __ldcg(sums + i * all_pairs);
    total += weight_of(__ldcg(maxima + i * all_pairs), sum) * sum;
  }
  total = cuda::warp_sum(total);
  float4 value{};
  const auto add = [&](float share, const float4& x) {
    value.x = fmaf(share, x.x, value.x);
    value.y = fmaf(share, x.y, value.y);
    value.z = fmaf(share, x.z, value.z);
    value.w = fmaf(share, x.w, value.w);
  };
  if (other_sum > 0) {  // its output is divided by its sum already
    const float other = exp2f(other_max - high) * other_sum;
    total += other;
    add(other / total, other_out);
  }
  const float own_share = total > 0 ? own_weight / total : 0;
#pragma unroll
  for (int i = 0; i < ahead; ++i) {
    const float share = __shfl_sync(0xffffffff, own_share, i);
    if (i < range.count) add(share, fetched[i]);
  }
  for (int first = 0; first < range.count; first += 32) {
    float mine = own_share;
    if (first > 0) {
      const int i = first + lane;
      mine = i < range.count && total > 0
                 ? weight_of(__ldcg(maxima + i * all_pairs), __ldcg(sums + i * all_pairs)) / total
                 : 0;
    }
    const int end = min(32, range.count - first);
#pragma unroll 8
    for (int i = first > 0 ? 0 : ahead; i < end; ++i) {
      add(__shfl_sync(0xffffffff, mine, i), out_of(first + i));
    }
  }
  if (lane < quads) {
    const int64_t at = token * a.out_stride + head * a.out_head_stride + lane * 4;
    store_value(a.out, a.out_f32, at, value.x);
    store_value(a.out, a.out_f32, at + 1, value.y);
    store_value(a.out, a.out_f32, at + 2, value.z);
    store_value(a.out, a.out_f32, at + 3, value.w);
  }
  if (lane == 0) store_state(a, place, high, total);
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
