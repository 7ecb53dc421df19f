#include "memory/mosaic/cluster_ranks.h"

#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "base/cuda_support.h"
#include "base/gpu.h"

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

// Grows with the mass. Clusters that do not count come last, those whose mass is no number right
// before them.
__device__ uint32_t rank_of(float mass, float log_weight) {
  if (!(log_weight > -INFINITY)) return 0;
  if (mass != mass) return 1;
  const uint32_t bits = __float_as_uint(mass + 0.0f);  // −0 becomes 0
  return bits >> 31 != 0 ? ~bits : bits | uint32_t{1} << 31;
}

__global__ void mass_keys(const float* mass, const float* log_weights, int64_t count,
                          uint32_t* keys, int32_t* places) {
  const int64_t place = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (place >= count) return;
  keys[place] = rank_of(mass[place], log_weights[place]);
  places[place] = static_cast<int32_t>(place);
}

// What one block chooses and sorts; more go through a sort of all.
constexpr int most_chosen = 1024;
constexpr int64_t most_seen = 65536;
constexpr int chooser_threads = 1024, chooser_warps = chooser_threads / 32;

// The ranks that a thread of the one block looks at, every chooser_threads-th. As many as `each` it
// keeps, so that it reads them once; 0: it reads them again whenever it looks.
template <int each>
class OwnRanks {
 public:
  __device__ OwnRanks(const float* mass, const float* log_weights, int count)
      : mass_(mass), log_weights_(log_weights), count_(count) {
#pragma unroll
    for (int k = 0; k < each; ++k) {
      const int i = static_cast<int>(threadIdx.x) + k * chooser_threads;
      if (i < count) kept_[k] = rank_of(mass[i], log_weights[i]);
    }
  }

  // body(number, rank) of each.
  template <class Body>
  __device__ void visit(const Body& body) const {
    if constexpr (each > 0) {
#pragma unroll
      for (int k = 0; k < each; ++k) {
        const int i = static_cast<int>(threadIdx.x) + k * chooser_threads;
        if (i < count_) body(i, kept_[k]);
      }
    } else {
      for (int i = static_cast<int>(threadIdx.x); i < count_; i += chooser_threads) {
        body(i, rank_of(mass_[i], log_weights_[i]));
      }
    }
  }

 private:
  const float* mass_;
  const float* log_weights_;
  int count_;
  uint32_t kept_[each > 0 ? each : 1];
};

// A whole vector: of 12 bytes the compiler would read 16, and with them a neighbour that others
// write meanwhile.
struct alignas(16) Cut {
  uint32_t rank = 0;  // clusters above it are chosen,
  int equal = 0;      // and this many of those with this rank …
  int alike = 0;      // … of so many
};

// The `wanted`-th largest rank, eight bits after eight bits from the highest.
template <int each>
__device__ Cut find_cut(const OwnRanks<each>& ranks, int wanted) {
  __shared__ int histogram[256];
  __shared__ Cut found;
  const int thread = static_cast<int>(threadIdx.x);
  Cut cut{0, wanted};
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (thread < 256) histogram[thread] = 0;
    __syncthreads();
    const uint32_t known = shift == 24 ? 0 : ~uint32_t{0} << (shift + 8);
    ranks.visit([&](int, uint32_t rank) {
      if ((rank & known) == cut.rank) atomicAdd(&histogram[rank >> shift & 255], 1);
    });
    __syncthreads();
    if (thread < 32) {  // every lane has eight digits, the largest first
      int own = 0;
      for (int k = 0; k < 8; ++k) own += histogram[255 - 8 * thread - k];
      int upto = own;
      for (int distance = 1; distance < 32; distance *= 2) {
        const int before = __shfl_up_sync(~0u, upto, distance);
        if (thread >= distance) upto += before;
      }
      int left = cut.equal - (upto - own);
      if (left > 0 && left <= own) {
        int digit = 255 - 8 * thread;
        for (; histogram[digit] < left; --digit) left -= histogram[digit];
        found = {cut.rank | static_cast<uint32_t>(digit) << shift, left, histogram[digit]};
      }
    }
    __syncthreads();
    cut = found;
  }
  return cut;
}

// A rank and the place, lower ones being larger.
__device__ SortKey key_of(uint32_t rank, int place) {
  return SortKey{rank} << 32 | ~static_cast<uint32_t>(place);
}

// Of clusters with the rank of the cut the first ones, where there are more than are wanted.
__device__ void first_of_equal(const float* mass, const float* log_weights, int count,
                               const Cut& cut, SortKey* keys) {
  __shared__ int equal_in[chooser_warps];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  int equal_before = 0;
  for (int begin = 0; begin < count && equal_before < cut.equal; begin += chooser_threads) {
    const int i = begin + thread;
    const bool equal = i < count && rank_of(mass[i], log_weights[i]) == cut.rank;
    const unsigned int all_equal = __ballot_sync(~0u, equal);
    if (lane == 0) equal_in[warp] = __popc(all_equal);
    __syncthreads();
    int place = equal_before + __popc(all_equal & ((1u << lane) - 1));
    for (int other = 0; other < chooser_warps; ++other) {
      if (other < warp) place += equal_in[other];
      equal_before += equal_in[other];
    }
    if (equal && place < cut.equal) keys[place] = key_of(cut.rank, i);
    __syncthreads();
  }
}

// One block.
template <int each>
__global__ void choose_best(const float* mass, const float* log_weights, int count, int wanted,
                            int size, int32_t* out) {
  __shared__ SortKey keys[most_chosen];
  __shared__ int chosen;
  const OwnRanks<each> ranks(mass, log_weights, count);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) chosen = 0;
  if (thread >= wanted && thread < size) keys[thread] = 0;
  const Cut cut = find_cut(ranks, wanted);
  // Nearly always all that are equal are chosen, and their order is made below.
  const bool all = cut.equal == cut.alike;
  ranks.visit([&](int i, uint32_t rank) {
    if (rank > cut.rank || (all && rank == cut.rank)) {
      keys[atomicAdd(&chosen, 1)] = key_of(rank, i);
    }
  });
  if (!all) first_of_equal(mass, log_weights, count, cut, keys + wanted - cut.equal);
  __syncthreads();
  for (int length = 2; length <= size; length *= 2) {
    for (int distance = length / 2; distance > 0; distance /= 2) {
      const int other = thread ^ distance;
      if (thread < size && other > thread) {
        const SortKey a = keys[thread], b = keys[other];
        if ((a < b) == ((thread & length) == 0)) {
          keys[thread] = b;
          keys[other] = a;
        }
      }
      __syncthreads();
    }
  }
  if (thread < wanted) out[thread] = static_cast<int32_t>(~static_cast<uint32_t>(keys[thread]));
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

void best_clusters(const Context& context, ConstTensorView mass, ConstTensorView log_weights,
                   TensorView out) {
  cudaStream_t stream = enter(context);
  const int64_t count = mass.size(0), wanted = out.size(0);
  if (wanted <= most_chosen && count <= most_seen) {
    const auto size = static_cast<int>(std::bit_ceil(static_cast<uint64_t>(wanted)));
    const auto choose = [&](auto kernel) {
      launch({1, chooser_threads, 0, stream}, "best_clusters", kernel, device_data<float>(mass),
             device_data<float>(log_weights), static_cast<int>(count), static_cast<int>(wanted),
             size, device_data<int32_t>(out));
    };
    const int64_t each = (count + chooser_threads - 1) / chooser_threads;
    if (each <= 2) return choose(choose_best<2>);
    if (each <= 8) return choose(choose_best<8>);
    return each <= 16 ? choose(choose_best<16>) : choose(choose_best<0>);
  }
  Tensor keys(DType::i32, {2, count}, context.device),
      places(DType::i32, {2, count}, context.device);
  auto* own_keys = reinterpret_cast<uint32_t*>(keys.view().raw());
  auto* own_places = device_data<int32_t>(places.view());
  launch({blocks_for(count, threads), threads, 0, stream}, "best_clusters", mass_keys,
         device_data<float>(mass), device_data<float>(log_weights), count, own_keys, own_places);
  sorted(context, [&](void* scratch, size_t& bytes) {
    return cub::DeviceRadixSort::SortPairsDescending(scratch, bytes, own_keys, own_keys + count,
                                                     own_places, own_places + count,
                                                     static_cast<int>(count), 0, 32, stream);
  });
  copy_async(context, out.raw(), own_places + count, static_cast<size_t>(wanted) * sizeof(int32_t));
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
