#include "memory/mosaic/cluster_ranks.h"

#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "base/cuda_support.h"

namespace kinora::cuda {
namespace {

using SortKey = unsigned long long;

constexpr int threads = 256;

__device__ float counted(int32_t rows, bool logarithms) {
  if (!logarithms) return static_cast<float>(rows);
  return rows > 0 ? logf(static_cast<float>(rows)) : -INFINITY;
}

__global__ void count_all(const int32_t* rows, const int32_t* partitions, const int32_t* searched,
                          int64_t count, bool logarithms, float* out) {
  const int64_t place = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (place >= count) return;
  const bool counts = rows[place] > 0 && (searched == nullptr || searched[partitions[place]] != 0);
  out[place] = counted(counts ? rows[place] : 0, logarithms);
}

__global__ void count_changed(const int32_t* changed, const int32_t* partitions,
                              const int32_t* searched, int64_t count, bool logarithms, float* out) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= count) return;
  const int32_t place = changed[i];
  const bool counts = searched == nullptr || searched[partitions[place]] != 0;
  out[place] = counted(counts ? changed[count + i] : 0, logarithms);
}

// Clusters that do not count come last, those whose mass is no number right before them.
__global__ void mass_keys(const float* mass, const float* log_weights, int64_t count, float* keys,
                          int32_t* places) {
  const int64_t place = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (place >= count) return;
  const float own = mass[place] == mass[place] ? fmaxf(mass[place], -3.4e38f) : -3.4e38f;
  keys[place] = log_weights[place] > -INFINITY ? own : -INFINITY;
  places[place] = static_cast<int32_t>(place);
}

__global__ void time_keys(const int32_t* rows, const int32_t* partitions, const int32_t* middles,
                          int64_t count, SortKey partitions_in_all, int token_bits, SortKey* keys,
                          int32_t* places) {
  const int64_t place = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (place >= count) return;
  const bool free = rows[place] == 0;
  const SortKey partition = free ? partitions_in_all : static_cast<SortKey>(partitions[place]);
  const SortKey token = free ? 0 : static_cast<SortKey>(middles[place]);
  keys[place] = partition << token_bits | token;
  places[place] = static_cast<int32_t>(place);
}

__global__ void invert(const int32_t* places, int64_t count, int32_t* positions) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i < count) positions[places[i]] = static_cast<int32_t>(i);
}

const int32_t* numbers_or_null(ConstTensorView numbers) {
  return numbers.raw() == nullptr ? nullptr : device_data<int32_t>(numbers);
}

// Runs one of CUB's sorts, which say first how much memory they need.
template <typename Sort>
void sorted(const Context& context, const Sort& sort) {
  size_t bytes = 0;
  check(sort(nullptr, bytes), "cluster order");
  Tensor scratch(DType::i32, {static_cast<int64_t>(bytes / sizeof(int32_t) + 1)}, context.device);
  check(sort(scratch.view().raw(), bytes), "cluster order");
}

}  // namespace

void count_rows(const Context& context, const ClusterEntries& clusters, const CountedRows& given,
                bool logarithms, TensorView out) {
  cudaStream_t stream = enter(context);
  const int64_t count = out.size(0);
  const int32_t* searched = numbers_or_null(given.searched);
  const int32_t* partitions = device_data<int32_t>(clusters.partitions);
  launch({blocks_for(count, threads), threads, 0, stream}, "count_rows", count_all,
         device_data<int32_t>(clusters.rows), partitions, searched, count, logarithms,
         device_data<float>(out));
  if (given.changed.raw() == nullptr) return;
  const int64_t changed = given.changed.size(1);
  launch({blocks_for(changed, threads), threads, 0, stream}, "count_rows", count_changed,
         device_data<int32_t>(given.changed), partitions, searched, changed, logarithms,
         device_data<float>(out));
}

void rank_clusters(const Context& context, ConstTensorView mass, ConstTensorView log_weights,
                   TensorView out) {
  cudaStream_t stream = enter(context);
  const int64_t count = out.size(0);
  Tensor keys(DType::f32, {2, count}, context.device), places(DType::i32, {count}, context.device);
  float* own_keys = device_data<float>(keys.view());
  launch({blocks_for(count, threads), threads, 0, stream}, "rank_clusters", mass_keys,
         device_data<float>(mass), device_data<float>(log_weights), count, own_keys,
         device_data<int32_t>(places.view()));
  sorted(context, [&](void* scratch, size_t& bytes) {
    return cub::DeviceRadixSort::SortPairsDescending(
        scratch, bytes, own_keys, own_keys + count, device_data<int32_t>(places.view()),
        device_data<int32_t>(out), static_cast<int>(count), 0, 32, stream);
  });
}

void order_clusters(const Context& context, const ClusterEntries& clusters, int64_t partitions,
                    int64_t tokens, TensorView places, TensorView positions) {
  cudaStream_t stream = enter(context);
  const int64_t count = places.size(0);
  const int token_bits = std::bit_width(static_cast<uint64_t>(tokens));
  const int bits = token_bits + std::bit_width(static_cast<uint64_t>(partitions));
  // Pairs of 32-bit numbers hold the keys, there being no wider type of tensor.
  Tensor keys(DType::i32, {2, count, 2}, context.device), own(DType::i32, {count}, context.device);
  auto* own_keys = reinterpret_cast<SortKey*>(keys.view().raw());
  launch({blocks_for(count, threads), threads, 0, stream}, "order_clusters", time_keys,
         device_data<int32_t>(clusters.rows), device_data<int32_t>(clusters.partitions),
         device_data<int32_t>(clusters.middles), count, static_cast<SortKey>(partitions),
         token_bits, own_keys, device_data<int32_t>(own.view()));
  sorted(context, [&](void* scratch, size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(
        scratch, bytes, own_keys, own_keys + count, device_data<int32_t>(own.view()),
        device_data<int32_t>(places), static_cast<int>(count), 0, bits, stream);
  });
  launch({blocks_for(count, threads), threads, 0, stream}, "order_clusters", invert,
         device_data<int32_t>(ConstTensorView(places)), count, device_data<int32_t>(positions));
}

}  // namespace kinora::cuda
