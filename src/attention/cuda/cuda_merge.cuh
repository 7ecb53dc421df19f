// Small kernels around a run: joining the parts of jobs that were split over their keys, by (max,
// sum), one warp per row; and output that no job writes.
#pragma once

#include "attention/cuda/cuda_problem.cuh"

namespace kinora::cuda_attention {

// grid: (merges, rows of the tallest job / warps of a block)
template <int = 0>
__global__ void merge_parts(const CudaMerge* merges, CudaPlanView plan, Parts parts, Output target,
                            int32_t head_size) {
  const CudaMerge& merge = merges[blockIdx.x];
  const int row = static_cast<int>(blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const CudaJob& job = merge.job;
  if (row >= job.rows) return;
  const RowPlace found = find_row(plan, job, row);
  const int64_t query = found.query, head = found.head;
  const int64_t place = query * target.heads + head;
  const int64_t first = job.partial + row;

  const float other_max = target.merge ? target.max[place] : -INFINITY;
  const float other_sum = target.merge ? target.sum[place] : 0.0f;
  float high = other_max;
  for (int part = lane; part < merge.parts; part += 32) {
    high = fmaxf(high, parts.max[first + int64_t{part} * job.rows]);
  }
  for (int step_mask = 16; step_mask > 0; step_mask /= 2) {
    high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, step_mask));
  }
  float sum = 0;
  for (int part = lane; part < merge.parts; part += 32) {
    const int64_t from = first + int64_t{part} * job.rows;
    sum += part_weight(parts.max[from], parts.sum[from], high);
  }
  for (int step_mask = 16; step_mask > 0; step_mask /= 2) {
    sum += __shfl_xor_sync(0xffffffff, sum, step_mask);
  }
  const float other_weight = part_weight(other_max, other_sum, high);
  sum += other_weight;
  // A part that is the whole has a share of exactly 1, so empty parts do not change a single bit.
  const int64_t offset = query * target.stride + head * target.head_stride;
  for (int column = lane; column < head_size; column += 32) {
    float total = 0;
    for (int part = 0; part < merge.parts; ++part) {
      const int64_t from = first + int64_t{part} * job.rows;
      const float weight = part_weight(parts.max[from], parts.sum[from], high);
      if (weight > 0) total += weight / sum * parts.out[from * head_size + column];
    }
    if (other_weight > 0) total += other_weight / sum * load_element(target, offset + column);
    store_element(target, offset + column, total);
  }
  if (lane == 0 && target.max != nullptr) {
    target.max[place] = high;
    target.sum[place] = sum;
  }
}

__device__ inline void clear_row(const Output& target, int64_t query, int64_t head,
                                 int32_t head_size) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t offset = query * target.stride + head * target.head_stride;
  for (int column = lane; column < head_size; column += 32) {
    store_element(target, offset + column, 0.0f);
  }
  if (lane == 0 && target.max != nullptr) {
    target.max[query * target.heads + head] = -INFINITY;
    target.sum[query * target.heads + head] = 0;
  }
}

// Zero output and empty state for every (query, head), one warp each.  grid: any
template <int = 0>
__global__ void clear_output(Output target, int64_t queries, int32_t head_size) {
  const int64_t pairs = queries * target.heads;
  const int64_t warps = blockDim.x / 32;
  for (int64_t pair = blockIdx.x * warps + threadIdx.x / 32; pair < pairs;
       pair += gridDim.x * warps) {
    clear_row(target, pair / target.heads, pair % target.heads, head_size);
  }
}

}  // namespace kinora::cuda_attention
