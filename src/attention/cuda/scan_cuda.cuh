// Totals over the threads of a block, running and whole.
#pragma once

#include <cstdint>

namespace kinora::cuda_attention {

// The sum of `value` over the threads before this one; `total` is that over all. At most 1024
// threads, whole warps; `scratch` is 33 numbers of shared memory, free again on return.
__device__ inline int32_t exclusive_scan(int32_t value, int32_t* scratch, int32_t& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  int32_t inclusive = value;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int32_t before = __shfl_up_sync(0xffffffffu, inclusive, distance);
    if (lane >= distance) inclusive += before;
  }
  if (lane == 31) scratch[warp] = inclusive;
  __syncthreads();
  if (warp == 0) {
    int32_t sum = lane < warps ? scratch[lane] : 0;
    for (int distance = 1; distance < 32; distance *= 2) {
      const int32_t before = __shfl_up_sync(0xffffffffu, sum, distance);
      if (lane >= distance) sum += before;
    }
    if (lane < warps) scratch[lane] = sum;
  }
  __syncthreads();
  const int32_t before = warp > 0 ? scratch[warp - 1] : 0;
  total = scratch[warps - 1];
  __syncthreads();
  return before + inclusive - value;
}

// The sum of `value` over all threads. Successive calls take turns with two halves of `scratch`, 64
// numbers of shared memory: no thread writes one that another may still read.
class BlockSum {
 public:
  __device__ explicit BlockSum(int32_t* scratch) : scratch_(scratch) {}
  __device__ int32_t operator()(int32_t value) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int warps = static_cast<int>(blockDim.x) / 32;
    value = __reduce_add_sync(0xffffffffu, value);
    int32_t* sums = scratch_ + (turn_ ^= 32);
    if (lane == 0) sums[warp] = value;
    __syncthreads();
    return __reduce_add_sync(0xffffffffu, lane < warps ? sums[lane] : 0);
  }

 private:
  int32_t* scratch_;
  int turn_ = 0;
};

}  // namespace kinora::cuda_attention
