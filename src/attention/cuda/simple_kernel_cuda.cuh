// Attention over a plan in plain f32 arithmetic, any head size up to 1024, any mixture of f32 and
// bf16, any alignment: the reference mode that reproduces the CPU, and whatever the other kernels
// cannot do. A warp takes one row of a job; its lanes divide up the keys of a block of 32, then the
// columns.
#pragma once

#include "attention/cuda/cuda_problem.cuh"
#include "base/cuda_support.h"

namespace kinora::cuda_attention {

constexpr int simple_rows = 8;
constexpr int simple_keys = 32;

__device__ inline float load_any(const void* data, bool f32, int64_t at) {
  return f32 ? static_cast<const float*>(data)[at]
             : __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
}

// Columns: of one lane; head size ≤ 32 · Columns. Shared memory: simple_rows · head size floats.
template <int Columns, bool Weighted>
__global__ void __launch_bounds__(simple_rows * 32)
    attend_simple(const __grid_constant__ Problem a) {
  extern __shared__ float queries[];
  CudaJob job = a.plan.jobs[blockIdx.x];
  job.head += static_cast<int32_t>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(threadIdx.x) / 32;
  if (row >= job.rows) return;
  const RowPlace place = find_row(a.plan, job, row);
  float* query = queries + row * a.head_size;
  for (int c = lane; c < a.head_size; c += 32) {
    query[c] = load_any(a.queries, a.queries_f32,
                        place.query * a.query_stride + place.head * a.query_head_stride + c);
  }
  __syncwarp();
  const int64_t kv_head = job.head / a.group;

  float out[Columns] = {};
  float max = -INFINITY;
  float sum = 0;
  Cursor<simple_keys> cursor(a.plan, job);
  for (int32_t block = 0; block < job.blocks; ++block, cursor.advance()) {
    const BlockInfo info = cursor.info();
    const int64_t key = cursor.row_of(a.plan, info, lane);
    const bool seen = cursor.compared(a.plan, info, lane) < place.limit;
    float score = -INFINITY;
    if (seen) {
      const int64_t from = key * a.key_stride + kv_head * a.key_head_stride;
      float dot = 0;
      for (int c = 0; c < a.head_size; ++c) {
        dot = fmaf(query[c], load_any(a.keys, a.rows_f32, from + c), dot);
      }
      score = dot * a.scale;
      if constexpr (Weighted) score += logf(a.weights[key]);
    }
    if (a.scores != nullptr) {
      const float top = cuda::warp_max(score);
      const float sum = cuda::warp_sum(top == -INFINITY ? 0.0f : expf(score - top));
      const int32_t at = job.first_block + block;
      if (lane == 0 && at < a.score_stride) {
        a.scores[(int64_t{place.query} * a.target.heads + place.head) * a.score_stride + at] =
            top * 1.44269504088896f + log2f(sum);
      }
    }
    float high = fmaxf(max, score);
    for (int step = 16; step > 0; step /= 2) {
      high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, step));
    }
    if (high == -INFINITY) continue;
    const float correction = expf(max - high);
    const float weight = seen ? expf(score - high) : 0;
    max = high;
    float part = weight;
    for (int step = 16; step > 0; step /= 2) part += __shfl_xor_sync(0xffffffff, part, step);
    sum = sum * correction + part;
    for (int c = 0; c < Columns; ++c) out[c] *= correction;
    for (int i = 0; i < info.valid; ++i) {
      const float w = __shfl_sync(0xffffffff, weight, i);
      if (w == 0) continue;
      const int64_t from =
          __shfl_sync(0xffffffff, key, i) * a.value_stride + kv_head * a.value_head_stride + lane;
#pragma unroll
      for (int c = 0; c < Columns; ++c) {
        if (c * 32 + lane < a.head_size) {
          out[c] = fmaf(w, load_any(a.values, a.rows_f32, from + c * 32), out[c]);
        }
      }
    }
  }
  if (job.partial >= 0) {
    const int64_t at = job.partial + row;
    const float share = sum > 0 ? 1 / sum : 0;
#pragma unroll
    for (int c = 0; c < Columns; ++c) {
      if (c * 32 + lane < a.head_size)
        a.parts.out[at * a.head_size + c * 32 + lane] = out[c] * share;
    }
    if (lane == 0) {
      a.parts.max[at] = max;
      a.parts.sum[at] = sum;
    }
    return;
  }
  const int64_t at = int64_t{place.query} * a.target.heads + place.head;
  const int64_t offset = place.query * a.target.stride + place.head * a.target.head_stride + lane;
  const RowShares shares = join_row(a.target, at, max, sum);
#pragma unroll
  for (int c = 0; c < Columns; ++c) {
    if (c * 32 + lane >= a.head_size) continue;
    float value = out[c] * shares.share;
    if (shares.other > 0) value += shares.other * load_element(a.target, offset + c * 32);
    store_element(a.target, offset + c * 32, value);
  }
  __syncwarp();
  if (lane == 0 && a.target.max != nullptr) {
    a.target.max[at] = max;
    a.target.sum[at] = sum;
  }
}

}  // namespace kinora::cuda_attention
