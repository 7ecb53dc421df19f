// Kernels of the table of clusters (cluster_table.h): they find the nearest of thousands of
// clusters, and add up those that stand for others.
#include "base/cuda_support.h"
#include "memory/mosaic/cluster_table.h"

namespace kinora::cuda {
namespace {

// One block per cluster; it reads pinned host memory.
template <typename T>
__global__ void put_cluster(StagedClusters staged, int64_t width, T* keys, T* values,
                            int32_t* takers, float* lengths, float* spreads, int32_t* rows,
                            int32_t* partitions, int32_t* middles) {
  const int64_t place = staged.places[blockIdx.x];
  const float* from = staged.means + blockIdx.x * 2 * width;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    keys[place * width + i] = from_float<T>(from[i]);
    values[place * width + i] = from_float<T>(from[width + i]);
  }
  if (threadIdx.x > 0) return;
  takers[place] = staged.takers[blockIdx.x];
  lengths[place] = staged.lengths[blockIdx.x];
  spreads[place] = staged.spreads[blockIdx.x];
  rows[place] = staged.rows[blockIdx.x];
  partitions[place] = staged.partitions[blockIdx.x];
  middles[place] = staged.middles[blockIdx.x];
}

template <typename T>
__global__ void unit_row(const float* keys, int64_t width, T* out) {
  __shared__ float scratch[32];
  const float* key = keys + blockIdx.x * width;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) squares += key[i] * key[i];
  squares = block_sum(squares, scratch);
  const float share = squares > 0 ? rsqrtf(squares) : 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    out[blockIdx.x * width + i] = from_float<T>(key[i] * share);
  }
}

struct Nearest {
  float cosine = -INFINITY;
  int32_t place = -1;

  // Equal ones by place.
  __device__ void meet(float other, int32_t at) {
    if (at >= 0 && (other > cosine || (other == cosine && (place < 0 || at < place)))) {
      cosine = other;
      place = at;
    }
  }
};

// The nearest of all threads of a block of 256, in thread 0.
__device__ Nearest block_nearest(Nearest mine) {
  __shared__ Nearest parts[8];
  for (int distance = 16; distance > 0; distance /= 2) {
    const float cosine = __shfl_xor_sync(0xffffffffu, mine.cosine, distance);
    mine.meet(cosine, __shfl_xor_sync(0xffffffffu, mine.place, distance));
  }
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < 8; ++warp) mine.meet(parts[warp].cosine, parts[warp].place);
  }
  return mine;
}

__global__ void nearest_cluster(const float* products, const int32_t* partitions,
                                const int32_t* takers, const float* lengths, int64_t clusters,
                                int64_t first, float* best, int32_t* near) {
  const float* row = products + blockIdx.x * clusters;
  const int32_t partition = partitions[blockIdx.x];
  Nearest mine;
  for (int64_t i = threadIdx.x; i < clusters; i += blockDim.x) {
    if (takers[i] != partition + 1) continue;
    mine.meet(lengths[i] > 0 ? row[i] / lengths[i] : 0.0f, static_cast<int32_t>(first + i));
  }
  mine = block_nearest(mine);
  if (threadIdx.x > 0 || mine.place < 0 || mine.cosine <= best[blockIdx.x]) return;
  best[blockIdx.x] = mine.cosine;
  near[2 * blockIdx.x] = mine.place;
}

__global__ void nearest_row_before(const float* products, const int32_t* partitions, int64_t rows,
                                   int32_t* near) {
  Nearest mine;
  for (int64_t i = threadIdx.x; i < blockIdx.x; i += blockDim.x) {
    if (partitions[i] != partitions[blockIdx.x]) continue;
    mine.meet(products[blockIdx.x * rows + i], static_cast<int32_t>(i));
  }
  mine = block_nearest(mine);
  if (threadIdx.x == 0) near[2 * blockIdx.x + 1] = mine.place;
}

// One block per piece of a group and 128 columns: Σ weight × key, Σ weight × value and Σ weight.
template <typename T>
__global__ void sum_of_clusters(const int2* ranges, const int32_t* places, const float* weights,
                                const T* keys, const T* values, int64_t width, float* sums,
                                float* totals) {
  const int64_t column = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (column >= width) return;
  float key = 0, value = 0, total = 0;
  const int2 range = ranges[blockIdx.x];
  if (range.y == ClusterGroups::alone) {
    key = to_float(keys[range.x * width + column]);
    value = to_float(values[range.x * width + column]);
    total = 1;
  }
#pragma unroll 4
  for (int32_t i = range.x; i < range.y; ++i) {
    const int64_t place = places[i], at = place * width + column;
    const float weight = weights[place];
    key += weight * to_float(keys[at]);
    value += weight * to_float(values[at]);
    total += weight;
  }
  sums[blockIdx.x * 2 * width + column] = key;
  sums[(blockIdx.x * 2 + 1) * width + column] = value;
  if (column == 0) totals[blockIdx.x] = total;
}

// One block per group and 128 columns: its pieces are [pieces[group], pieces[group + 1]).
__global__ void mean_of_pieces(const int32_t* pieces, const float* totals, const float* sums,
                               int64_t width, float* mean_keys, float* mean_values) {
  const int64_t column = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (column >= width) return;
  float key = 0, value = 0, total = 0;
  for (int32_t i = pieces[blockIdx.x]; i < pieces[blockIdx.x + 1]; ++i) {
    key += sums[i * 2 * width + column];
    value += sums[(i * 2 + 1) * width + column];
    total += totals[i];
  }
  mean_keys[blockIdx.x * width + column] = key / total;
  mean_values[blockIdx.x * width + column] = value / total;
}

}  // namespace

void put_clusters(const Context& context, const StagedClusters& staged, const ClusterRows& to) {
  const Launch how{static_cast<unsigned int>(staged.count), 256, 0, enter(context)};
  with_activation(to.keys.dtype(), [&]<typename T>(T) {
    launch(how, "put_clusters", put_cluster<T>, staged, to.keys.size(1), device_data<T>(to.keys),
           device_data<T>(to.values), device_data<int32_t>(to.takers),
           device_data<float>(to.lengths), device_data<float>(to.spreads),
           device_data<int32_t>(to.rows), device_data<int32_t>(to.partitions),
           device_data<int32_t>(to.middles));
  });
}

void unit_rows(const Context& context, ConstTensorView keys, TensorView out) {
  const Launch how{static_cast<unsigned int>(out.size(0)), 128, 0, enter(context)};
  with_activation(out.dtype(), [&]<typename T>(T) {
    launch(how, "unit_rows", unit_row<T>, device_data<float>(keys), out.size(1),
           device_data<T>(out));
  });
}

void nearest_clusters(const Context& context, ConstTensorView products, ConstTensorView partitions,
                      ConstTensorView takers, ConstTensorView lengths, int64_t first,
                      TensorView best, TensorView near) {
  launch({static_cast<unsigned int>(products.size(0)), 256, 0, enter(context)}, "nearest_clusters",
         nearest_cluster, device_data<float>(products), device_data<int32_t>(partitions),
         device_data<int32_t>(takers), device_data<float>(lengths), products.size(1), first,
         device_data<float>(best), device_data<int32_t>(near));
}

void nearest_earlier(const Context& context, ConstTensorView products, ConstTensorView partitions,
                     TensorView near) {
  launch({static_cast<unsigned int>(products.size(0)), 256, 0, enter(context)}, "nearest_earlier",
         nearest_row_before, device_data<float>(products), device_data<int32_t>(partitions),
         products.size(0), device_data<int32_t>(near));
}

void cluster_means(const Context& context, const ClusterPieces& pieces, ConstTensorView keys,
                   ConstTensorView values, TensorView mean_keys, TensorView mean_values) {
  cudaStream_t stream = enter(context);
  const int64_t width = values.size(1), count = pieces.ranges.size(0);
  Tensor sums(DType::f32, {count, 2, width}, context.device);
  Tensor totals(DType::f32, {count}, context.device);
  const dim3 grid(static_cast<unsigned int>(count), blocks_for(width, 128));
  with_activation(keys.dtype(), [&]<typename T>(T) {
    launch({grid, 128, 0, stream}, "cluster_means", sum_of_clusters<T>,
           device_data<int2>(pieces.ranges), device_data<int32_t>(pieces.places),
           device_data<float>(pieces.weights), device_data<T>(keys), device_data<T>(values), width,
           device_data<float>(sums.view()), device_data<float>(totals.view()));
  });
  const dim3 groups(static_cast<unsigned int>(mean_keys.size(0)), blocks_for(width, 128));
  launch({groups, 128, 0, stream}, "cluster_means", mean_of_pieces,
         device_data<int32_t>(pieces.of_groups), device_data<float>(ConstTensorView(totals)),
         device_data<float>(ConstTensorView(sums)), width, device_data<float>(mean_keys),
         device_data<float>(mean_values));
}

}  // namespace kinora::cuda
