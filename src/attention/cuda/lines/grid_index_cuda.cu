// The stride and the phases of grids, found on the device: grid_search.h of the same probe.
#include <algorithm>

#include "attention/cuda/lines/grid_plan_cuda.h"
#include "attention/search/grid_search.h"
#include "base/cuda_support.h"

namespace kinora::cuda_attention {
namespace {

constexpr int fold_threads = 256;
constexpr int fold_warps = fold_threads / 32;

struct Peak {
  float weight;
  int32_t phase;
};

struct FoldRoom {
  float columns[most_grid_stride];
  float diagonals[most_grid_stride];
  float parts[fold_threads];
  uint32_t taken[most_grid_stride / 32];
  Peak best[fold_warps + 1];
};

__device__ inline int32_t largest_of(const GridLook& grid, int32_t row_count) {
  return min(max(row_count / 4, least_stride), grid.most_stride);
}

// sums[p] = Σ weights[i] over (i + shift) mod stride = p; all threads of the block.
__device__ inline void fold(const float* weights, int32_t size, int32_t shift, int32_t stride,
                            FoldRoom& room, float* sums) {
  const int thread = static_cast<int>(threadIdx.x);
  const int32_t start = shift % stride;
  const int32_t rows = (size + start + stride - 1) / stride;  // of `stride` numbers
  const int32_t groups = max(1, fold_threads / stride);       // that share the rows
  for (int32_t at = thread; at < groups * stride; at += fold_threads) {
    const int32_t group = at / stride, phase = at % stride;
    const int32_t end = static_cast<int32_t>(int64_t{rows} * (group + 1) / groups);
    float sum = 0;
#pragma unroll 8
    for (int32_t row = static_cast<int32_t>(int64_t{rows} * group / groups); row < end; ++row) {
      const int32_t i = row * stride + phase - start;
      if (i >= 0 && i < size) sum += weights[i];
    }
    if (groups == 1) {
      sums[phase] = sum;
    } else {
      room.parts[at] = sum;
    }
  }
  __syncthreads();
  if (groups > 1 && thread < stride) {
    float sum = 0;
    for (int32_t group = 0; group < groups; ++group) sum += room.parts[group * stride + thread];
    sums[thread] = sum;
  }
  __syncthreads();
}

__device__ inline bool above(const Peak& a, const Peak& b) {
  return a.weight > b.weight || (a.weight == b.weight && a.phase < b.phase);
}

// The largest of `sums` that is not taken, the first of equals; all threads get it.
__device__ inline Peak find_peak(const float* sums, int32_t stride, FoldRoom& room) {
  const int thread = static_cast<int>(threadIdx.x);
  Peak best{-1.0f, 0x7fffffff};
  for (int32_t phase = thread; phase < stride; phase += fold_threads) {
    const Peak own{sums[phase], phase};
    if ((room.taken[phase / 32] >> phase % 32 & 1u) == 0 && above(own, best)) best = own;
  }
  const auto join = [&](int distance) {
    const Peak other{__shfl_xor_sync(0xffffffffu, best.weight, distance),
                     __shfl_xor_sync(0xffffffffu, best.phase, distance)};
    if (above(other, best)) best = other;
  };
  for (int distance = 16; distance > 0; distance /= 2) join(distance);
  if (thread % 32 == 0) room.best[thread / 32] = best;
  __syncthreads();
  if (thread == 0) {
    for (int warp = 1; warp < fold_warps; ++warp) {
      if (above(room.best[warp], best)) best = room.best[warp];
    }
    room.best[fold_warps] = best;
  }
  __syncthreads();
  return room.best[fold_warps];
}

// Calls take(phase) for the `count` strongest phases; returns their weight.
template <class Take>
__device__ inline double strongest(const float* sums, int32_t stride, int32_t count, FoldRoom& room,
                                   const Take& take) {
  for (int i = static_cast<int>(threadIdx.x); i < (stride + 31) / 32; i += fold_threads) {
    room.taken[i] = 0;
  }
  __syncthreads();
  double total = 0;
  for (int32_t i = 0; i < count; ++i) {
    const Peak peak = find_peak(sums, stride, room);
    if (peak.phase >= stride) break;  // only where weights are no numbers
    total += static_cast<double>(peak.weight);
    if (threadIdx.x == 0) {
      room.taken[peak.phase / 32] |= 1u << peak.phase % 32;
      take(peak.phase);
    }
    __syncthreads();
  }
  return total;
}

// The gain of every stride of a head. A block folds by one stride of the upper half and halves what
// it has while that is even: every stride is met once, and most of them cost little.
//   grid: (strides of the upper half, heads)
__global__ void __launch_bounds__(fold_threads)
    weigh_strides(const __grid_constant__ GridProbe a, double* gains) {
  __shared__ FoldRoom room;
  const int head = static_cast<int>(blockIdx.y);
  const LineHead& told = a.heads[head];
  if (told.has_grid == 0 || told.grid.stride > 0) return;
  const int32_t high = largest_of(told.grid, a.row_count);
  int32_t stride = high - static_cast<int32_t>(blockIdx.x);
  if (stride < least_stride || 2 * stride <= high) return;
  fold(a.columns + int64_t{head} * a.column_size, a.column_size, a.first_row, stride, room,
       room.columns);
  fold(a.diagonals + int64_t{head} * a.diagonal_size, a.diagonal_size, 0, stride, room,
       room.diagonals);
  const auto ignore = [](int32_t) {};
  while (true) {
    const int32_t phases = min(max(told.grid.phases, 1), stride);
    const double even = static_cast<double>(phases) / stride;
    double gain = 0;
    if (told.grid.vertical != 0 || told.grid.slash == 0) {
      gain += strongest(room.columns, stride, phases, room, ignore) / a.queries - even;
    }
    if (told.grid.slash != 0) {
      gain += strongest(room.diagonals, stride, phases, room, ignore) / a.queries - even;
    }
    if (threadIdx.x == 0) gains[int64_t{head} * most_stride + stride - 1] = gain;
    if (stride % 2 != 0 || stride / 2 < least_stride) return;
    stride /= 2;
    __syncthreads();
    for (int32_t phase = static_cast<int32_t>(threadIdx.x); phase < stride; phase += fold_threads) {
      room.columns[phase] += room.columns[phase + stride];
      room.diagonals[phase] += room.diagonals[phase + stride];
    }
    __syncthreads();
  }
}

// The best stride, where it was searched, and its phases.  grid: heads
__global__ void __launch_bounds__(fold_threads)
    settle_grids(const __grid_constant__ GridProbe a, const double* gains, FoundGrid* grids) {
  __shared__ FoldRoom room;
  __shared__ double best_gain[fold_threads];
  __shared__ int32_t best[fold_threads];
  __shared__ FoundGrid found;
  const int head = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const LineHead& told = a.heads[head];
  if (thread == 0) found = FoundGrid{};
  int32_t chosen = told.grid.stride;
  if (told.has_grid != 0 && chosen == 0) {
    // The first of equals: among a thread's own, then among all.
    const double* own = gains + int64_t{head} * most_stride - 1;
    const int32_t high = largest_of(told.grid, a.row_count);
    best[thread] = 0;
    for (int32_t stride = least_stride + thread; stride <= high; stride += fold_threads) {
      if (best[thread] == 0 || own[stride] > best_gain[thread]) {
        best[thread] = stride;
        best_gain[thread] = own[stride];
      }
    }
    __syncthreads();
    chosen = best[0];
    double gain = best_gain[0];
    for (int i = 1; i < fold_threads && best[i] != 0; ++i) {
      if (best_gain[i] > gain || (best_gain[i] == gain && best[i] < chosen)) {
        chosen = best[i];
        gain = best_gain[i];
      }
    }
  }
  __syncthreads();
  if (told.has_grid != 0) {
    const int32_t stride = chosen;
    const int32_t phases = min(max(told.grid.phases, 1), stride);
    const auto into = [](int32_t* list, int32_t& count, int32_t phase) {
      int32_t at = count++;
      for (; at > 0 && list[at - 1] > phase; --at) list[at] = list[at - 1];
      list[at] = phase;
    };
    fold(a.columns + int64_t{head} * a.column_size, a.column_size, a.first_row, stride, room,
         room.columns);
    strongest(room.columns, stride, phases, room,
              [&](int32_t phase) { into(found.vertical, found.vertical_count, phase); });
    if (told.grid.slash != 0) {
      fold(a.diagonals + int64_t{head} * a.diagonal_size, a.diagonal_size, 0, stride, room,
           room.diagonals);
      strongest(room.diagonals, stride, phases, room,
                [&](int32_t phase) { into(found.slash, found.slash_count, phase); });
    }
    if (thread == 0) {
      found.stride = stride;
      found.local = told.grid.local > 0 || told.grid.slash != 0 ? told.grid.local : stride;
    }
  }
  __syncthreads();
  if (thread == 0) grids[head] = found;
}

}  // namespace

Tensor find_grids(const Context& context, const GridProbe& probe, std::span<const LineHead> heads) {
  const cudaStream_t stream = cuda::enter(context);
  const auto count = static_cast<int64_t>(heads.size());
  int64_t upper = 0;  // strides that some head folds by
  for (const LineHead& head : heads) {
    if (head.has_grid == 0 || head.grid.stride > 0) continue;
    const int64_t high =
        std::clamp<int64_t>(probe.row_count / 4, least_stride, head.grid.most_stride);
    upper = std::max(upper, high - high / 2);
  }
  Tensor gains(DType::u8, {count, most_stride, static_cast<int64_t>(sizeof(double))},
               context.device);
  Tensor grids(DType::u8, {count, static_cast<int64_t>(sizeof(FoundGrid))}, context.device);
  const auto head_grid = static_cast<unsigned int>(count);
  if (upper > 0) {
    cuda::launch({dim3(static_cast<unsigned int>(upper), head_grid), fold_threads, 0, stream},
                 "searching attention grids", weigh_strides, probe,
                 cuda::device_data<double>(gains.view()));
  }
  cuda::launch({head_grid, fold_threads, 0, stream}, "searching attention grids", settle_grids,
               probe, static_cast<const double*>(cuda::device_data<double>(gains.view())),
               cuda::device_data<FoundGrid>(grids.view()));
  return grids;
}

}  // namespace kinora::cuda_attention
