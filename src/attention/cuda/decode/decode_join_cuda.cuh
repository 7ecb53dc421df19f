// How the decode kernels (decode_cuda.h) join what warps and parts hold of a (token, head) pair.
//
// This code runs once in a kernel of some microseconds, and instructions that run once cost what it
// takes to fetch them, which is more than to run them. So loops that do not wait for memory are not
// unrolled, here and in decode_few.
#pragma once

#include "attention/cuda/decode/decode_batch_cuda.cuh"

namespace kinora::cuda_attention {

// The softmax state of a pair, which had its maximum in log2 units so far.
__device__ inline void store_state(const DecodeArguments& a, int64_t place, float max, float sum) {
  constexpr float ln_2 = 0.693147180559945f;
  if (a.state_max != nullptr) a.state_max[place] = max * ln_2;
  if (a.state_sum != nullptr) a.state_sum[place] = sum;
}

__device__ inline void add_scaled(float4& sum, float factor, const float4& x) {
  sum.x = fmaf(factor, x.x, sum.x);
  sum.y = fmaf(factor, x.y, sum.y);
  sum.z = fmaf(factor, x.z, sum.z);
  sum.w = fmaf(factor, x.w, sum.w);
}

// Four columns of a pair's output.
__device__ inline void put_quad(const DecodeArguments& a, const DecodePairs& pairs, int p,
                                int column, const float4& value) {
  const int64_t at = pairs.token(p) * a.out_stride + pairs.head(p) * a.out_head_stride + column;
  store_value(a.out, a.out_f32, at, value.x);
  store_value(a.out, a.out_f32, at + 1, value.y);
  store_value(a.out, a.out_f32, at + 2, value.z);
  store_value(a.out, a.out_f32, at + 3, value.w);
}

// Joins what the warps of a block hold of pairs [first, first + count): [warps, rows, pitch]
// outputs and [warps, rows] maxima and sums in shared memory. The result is that of part `part`, or
// the output where there is only one.
template <int Warps, int Rows, int HeadSize, int Pitch>
__device__ inline void join_warps(const DecodeArguments& a, const DecodePairs& pairs, int first,
                                  int count, int part, bool only, const float* warp_out,
                                  const float* warp_max, const float* warp_sum) {
  static_assert(HeadSize % 4 == 0 && Pitch % 4 == 0);
  constexpr int quads = HeadSize / 4;
  const int64_t all_pairs = int64_t{a.tokens} * a.heads;
  const int threads = static_cast<int>(blockDim.x);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < count * quads; i += threads) {
    const int row = i / quads, column = i % quads * 4;
    float high = -INFINITY;
#pragma unroll
    for (int w = 0; w < Warps; ++w) high = fmaxf(high, warp_max[w * Rows + row]);
    float all = 0;
    float4 total{};
#pragma unroll
    for (int w = 0; w < Warps; ++w) {
      const int slot = w * Rows + row;
      const float weight = warp_sum[slot] > 0 ? exp2_fast(warp_max[slot] - high) : 0;
      add_scaled(total, weight, *reinterpret_cast<const float4*>(warp_out + slot * Pitch + column));
      all += weight * warp_sum[slot];
    }
    const int64_t place = pairs.place(first + row);
    if (only) {
      const float share = all > 0 ? reciprocal(all) : 0;
      put_quad(a, pairs, first + row, column,
               {total.x * share, total.y * share, total.z * share, total.w * share});
      if (column == 0) store_state(a, place, high, all);
      continue;
    }
    const int64_t at = part * all_pairs + place;
    *reinterpret_cast<float4*>(a.part_out + at * HeadSize + column) = total;
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
  constexpr int quads = HeadSize / 4, rows_at_once = Threads / quads;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, parts = range.count;
  const int all_pairs = a.tokens * a.heads;
  const int each = parts * (HeadSize + 4);  // floats of a pair; 4: max, sum and more, rounded up
  const int at_once = min(pairs.count, static_cast<int>(RoomBytes / sizeof(float)) / each);
  float* max = room;                    // [at once, parts], then the weight of a part
  float* sum = room + at_once * parts;  // [at once, parts], the first then 1 / Σ weight · sum
  float* outs = room + at_once * parts * 4;  // [at once, parts, HeadSize]
  const float inverse = reciprocal(static_cast<float>(parts));
#pragma unroll 1
  for (int first = 0; first < pairs.count; first += at_once) {
    const int count = min(at_once, pairs.count - first);
    __syncthreads();
    // Half a warp or a whole one takes a row of a part.
#pragma unroll 1
    for (int p = 0; p < count; ++p) {
      const int64_t row =
          int64_t{range.first + thread / quads} * all_pairs + pairs.place(first + p);
      const float* from = a.part_out + row * HeadSize + thread % quads * 4;
      uint32_t to = address_of(outs + (p * parts + thread / quads) * HeadSize + thread % quads * 4);
#pragma unroll 1
      for (int part = thread / quads; part < parts; part += rows_at_once) {
        copy_piece(to, from, 16);
        from += int64_t{rows_at_once} * all_pairs * HeadSize;
        to += rows_at_once * HeadSize * sizeof(float);
      }
    }
    commit_copies();
    // Two items of a thread are on their way before either is used.
    const auto place_of = [&](int i) {
      const int p = small_quotient(i, inverse);
      return int64_t{range.first + i - p * parts} * all_pairs + pairs.place(first + p);
    };
#pragma unroll 1
    for (int i = thread; i < count * parts; i += 2 * Threads) {
      const bool two = i + Threads < count * parts;
      const int64_t at = place_of(i), next = two ? place_of(i + Threads) : at;
      const float max0 = __ldcg(a.part_max + at), sum0 = __ldcg(a.part_sum + at);
      const float max1 = __ldcg(a.part_max + next), sum1 = __ldcg(a.part_sum + next);
      max[i] = max0;
      sum[i] = sum0;
      if (two) {
        max[i + Threads] = max1;
        sum[i + Threads] = sum1;
      }
    }
    wait_copies<0>();
    __syncthreads();
#pragma unroll 1
    for (int p = thread / 32; p < count; p += Threads / 32) {
      float* own_max = max + p * parts;
      float* own_sum = sum + p * parts;
      float high = -INFINITY, total = 0;
#pragma unroll 1
      for (int i = lane; i < parts; i += 32) high = fmaxf(high, own_max[i]);
      high = cuda::warp_max(high);
#pragma unroll 1
      for (int i = lane; i < parts; i += 32) {  // a part that read nothing has sum 0
        const float weight = own_sum[i] > 0 ? exp2_fast(own_max[i] - high) : 0;
        own_max[i] = weight;
        total += weight * own_sum[i];
      }
      total = cuda::warp_sum(total);
      if (lane == 0) {
        own_sum[0] = total > 0 ? reciprocal(total) : 0;
        store_state(a, pairs.place(first + p), high, total);
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int i = thread; i < count * quads; i += Threads) {
      const int p = i / quads, column = i % quads * 4;
      const float* weights = max + p * parts;
      const float* from = outs + p * parts * HeadSize + column;
      float4 value{};
#pragma unroll 4
      for (int part = 0; part < parts; ++part) {
        add_scaled(value, weights[part], *reinterpret_cast<const float4*>(from + part * HeadSize));
      }
      const float factor = sum[p * parts];
      put_quad(a, pairs, first + p, column,
               {value.x * factor, value.y * factor, value.z * factor, value.w * factor});
    }
  }
}

// How a kernel without a join of its own has cut the pairs of a kv head into tiles, and the rows of
// a tile into parts. A part that is alone has written the output, unless `halves` is set: then
// every part has a slot, and two of them where the pairs of a tile are no more than half of `rows`.
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

// Joins the slots of every pair of the batch, and what it has of other rows; PairWarps warps for
// each, whose lanes share out quads of columns. Where a warp has more lanes than there are quads,
// and where there are more warps, they read different parts.
// grid: (tokens × heads of a kv head × PairWarps / warps, kv heads)
template <int HeadSize, int PairWarps>
__global__ void __launch_bounds__(join_warps_per_block * 32, 4)
    join_pairs(const __grid_constant__ DecodeArguments a, const __grid_constant__ PairTiles tiles) {
  constexpr int quads = HeadSize / 4;
  constexpr int readers = PairWarps * (32 / quads);
  static_assert(PairWarps == 1 || PairWarps == join_warps_per_block, "for the barrier");
  __shared__ SequenceStarts starts;
  cuda::let_next_start();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32 % PairWarps;
  const int reader = warp * (32 / quads) + lane / quads;
  const int group = a.heads / a.kv_heads;
  const int index =
      (static_cast<int>(blockIdx.x) * join_warps_per_block + static_cast<int>(threadIdx.x) / 32) /
      PairWarps;
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
    } else if (range.count == 1 && a.others.out == nullptr && !tiles.halves) {
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
  for (int k = 0; k < ahead; ++k) {
    if (reader + k * readers < range.count) fetched[k] = out_of(reader + k * readers);
  }
  float other_max = -INFINITY, other_sum = 0;
  float4 other_out{};
  if (joins_others) {
    other_max = __ldcg(a.others.max + place) * log2_e;
    other_sum = __ldcg(a.others.sum + place);
    other_out =
        __ldcg(reinterpret_cast<const float4*>(a.others.out + place * HeadSize + lane % quads * 4));
  }
  // A part that read nothing has sum 0. A lane keeps what it knows of the first parts, of which
  // some outputs are on their way.
  constexpr int known = (ahead * readers + 31) / 32;
  float own_sum[known], share[known];
  float high = other_sum > 0 ? other_max : -INFINITY;
#pragma unroll
  for (int k = 0; k < known; ++k) {
    const int i = lane + 32 * k;
    own_sum[k] = i < range.count ? __ldcg(sums + i * all_pairs) : 0;
    share[k] = i < range.count ? __ldcg(maxima + i * all_pairs) : -INFINITY;
    high = fmaxf(high, share[k]);
  }
#pragma unroll 1
  for (int i = lane + 32 * known; i < range.count; i += 32) {
    high = fmaxf(high, __ldcg(maxima + i * all_pairs));
  }
  high = cuda::warp_max(high);
  const auto weight_of = [&](float max, float sum) { return sum > 0 ? exp2_fast(max - high) : 0; };
  float total = 0;
#pragma unroll
  for (int k = 0; k < known; ++k) {
    share[k] = weight_of(share[k], own_sum[k]);
    total += share[k] * own_sum[k];
  }
#pragma unroll 1
  for (int i = lane + 32 * known; i < range.count; i += 32) {
    const float sum = __ldcg(sums + i * all_pairs);
    total += weight_of(__ldcg(maxima + i * all_pairs), sum) * sum;
  }
  total = cuda::warp_sum(total);
  float4 value{};
  const auto add = [&](float share, const float4& x) { add_scaled(value, share, x); };
  if (other_sum > 0) {  // its output is divided by its sum already
    const float other = exp2_fast(other_max - high) * other_sum;
    total += other;
    if (reader == 0) add(other * reciprocal(total), other_out);
  }
  const float factor = total > 0 ? reciprocal(total) : 0;
#pragma unroll
  for (int k = 0; k < known; ++k) share[k] *= factor;
#pragma unroll
  for (int k = 0; k < ahead; ++k) {
    const int i = reader + k * readers;  // readers divide 32
    const float of_part = __shfl_sync(0xffffffff, share[k * readers / 32], i % 32);
    if (i < range.count) add(of_part, fetched[k]);
  }
  constexpr int fetched_parts = ahead * readers;
#pragma unroll 1
  for (int first = fetched_parts / 32 * 32; first < range.count; first += 32) {
    float mine = share[0];
    if (first > 0) {
      const int i = first + lane;
      mine = i < range.count
                 ? weight_of(__ldcg(maxima + i * all_pairs), __ldcg(sums + i * all_pairs)) * factor
                 : 0;
    }
    const int end = min(32, range.count - first);
#pragma unroll 8
    for (int i = max(0, fetched_parts - first); i < end; i += readers) {
      const float of_part = __shfl_sync(0xffffffff, mine, i + reader);
      if (i + reader < end) add(of_part, out_of(first + i + reader));
    }
  }
  const auto add_other = [&](float4 x) { add(1, x); };
  if constexpr (quads < 32) {
    add_other(
        {__shfl_xor_sync(0xffffffff, value.x, quads), __shfl_xor_sync(0xffffffff, value.y, quads),
         __shfl_xor_sync(0xffffffff, value.z, quads), __shfl_xor_sync(0xffffffff, value.w, quads)});
  }
  if constexpr (PairWarps > 1) {  // a block has one pair
    __shared__ float4 of_warps[PairWarps][quads];
    if (lane < quads) of_warps[warp][lane] = value;
    __syncthreads();
    if (warp > 0) return;
    for (int other = 1; other < PairWarps; ++other) add_other(of_warps[other][lane % quads]);
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
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();  // what the whole block has written, which the barrier put before this
    const unsigned int before = atomicAdd(arrived, 1);
    last = before == static_cast<unsigned int>(parts) - 1;
    if (last) *arrived = 0;
    __threadfence();
  }
  __syncthreads();
  return last;
}

}  // namespace kinora::cuda_attention
