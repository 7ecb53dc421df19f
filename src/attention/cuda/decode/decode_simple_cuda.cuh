// The decode kernel for rows and head sizes that tensor cores are not used for: the f32 mode that
// reproduces the CPU, and odd sizes.
#pragma once

#include "attention/cuda/decode/decode_join_cuda.cuh"

namespace kinora::cuda_attention {

// Any head size up to 256 and type of rows, in f32 arithmetic; the rows of a token's sequence are
// divided among all parts.  grid: (parts, heads, tokens)
template <int = 0>
__global__ void __launch_bounds__(decode_warps * 32)
    decode_simple(const __grid_constant__ DecodeArguments a, RowReader reader) {
  extern __shared__ float scratch[];
  __shared__ float query[256];
  __shared__ float warp_out[decode_warps][256];
  __shared__ float warp_max[decode_warps], warp_sum[decode_warps];
  const int part = static_cast<int>(blockIdx.x), parts = static_cast<int>(gridDim.x);
  const int head = static_cast<int>(blockIdx.y), token = static_cast<int>(blockIdx.z);
  const int group = a.heads / a.kv_heads, kv_head = head / group;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int head_size = reader.head_size;
  const int64_t from = token * a.query_stride + head * a.query_head_stride;
  cuda::let_next_start();
  const int32_t which = sequence_of_token(a.sequences, a.sequence_count, token, lane);
  cuda::wait_for_previous();
  if (which < 0) return;
  for (int c = static_cast<int>(threadIdx.x); c < head_size; c += decode_warps * 32) {
    query[c] = load_value(a.queries, a.queries_f32, from + c) * a.factor;
  }
  __syncthreads();
  const DeviceSequence& sequence = a.sequences[which];
  const int32_t shares = shares_of(sequence);
  const int32_t begin = first_share(shares, part, parts) * decode_share;
  const int32_t end = first_share(shares, part + 1, parts) * decode_share;
  const int own_token = token - sequence.first_token;
  const uint64_t mask = a.masks[token];
  float out[8] = {};
  float max = -INFINITY, sum = 0;
  SetCursor at_set;
  for (int32_t first = begin + warp * 32; first < end; first += decode_warps * 32) {
    at_set.seek(sequence, first);
    const DeviceRowSet& set = sequence.sets[at_set.index];
    const bool seen = (rows_seen(sequence, at_set, first, own_token, mask) >> lane & 1) != 0;
    const int32_t left = static_cast<int32_t>(set.count) - (first - at_set.begin);
    int64_t row = first - at_set.begin + lane;
    if (set.list != nullptr && lane < left) row = set.list[row];
    const int64_t place = row * a.kv_heads + kv_head;
    float score = -INFINITY;
    if (seen) {
      score = 0;
      for (int c = 0; c < head_size; ++c) {
        score = fmaf(query[c], reader.load(set.keys, place, c), score);
      }
      if (set.weights != nullptr) score += row_weight(sequence, at_set, first, lane);
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
    for (int i = 0; i < 32 && i < left; ++i) {
      const float w = __shfl_sync(0xffffffff, weight, i);
      const int64_t at = __shfl_sync(0xffffffff, place, i);
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        if (lane + 32 * c < head_size) {
          out[c] = fmaf(w, reader.load(set.values, at, lane + 32 * c), out[c]);
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
    join_parts(a, DecodePairs(a, sequence, kv_head), own_token * group + head % group, 1,
               {0, parts}, head_size, scratch);
  }
}

}  // namespace kinora::cuda_attention
