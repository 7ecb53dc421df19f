// The largest entries of a row of logits, without moving the row to the host.
#include <algorithm>
#include <cstring>

#include "ops/cuda_kernels.h"
#include "ops/rows_cuda.h"

namespace kinora::cuda {
namespace {

constexpr int64_t most_selected = 4096;  // beyond this the row goes to the host

// Orders like the value; NaN is 0, below everything. −0 counts as 0.
__device__ __forceinline__ uint32_t order_of(float value) {
  if (isnan(value)) return 0;
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The largest of (order, the complement of the index): the first of equals.  grid: (parts, rows)
__global__ void argmax_kernel(const float* x, int64_t stride, int64_t count,
                              unsigned long long* best) {
  x += blockIdx.y * stride;
  best += blockIdx.y;
  __shared__ unsigned long long parts[32];
  unsigned long long own = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const uint32_t order = order_of(x[i]);
    const unsigned long long key =
        order == 0 ? 0
                   : (static_cast<unsigned long long>(order) << 32) | (~static_cast<uint32_t>(i));
    own = max(own, key);
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    own = max(own, __shfl_xor_sync(0xffffffffu, own, distance));
  }
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned int warp = 1; warp < blockDim.x / 32; ++warp) own = max(own, parts[warp]);
  atomicMax(best, own);
}

// One block a row. Finds the order of the k-th largest entry digit by digit, then takes all above
// it and the first of those equal to it. found[0 … *taken) of the row's k holds (index, value) in
// no order.
__global__ void select_kernel(const float* x, int64_t stride, int32_t count, int32_t k, int2* found,
                              int32_t* taken) {
  x += blockIdx.x * stride;
  found += static_cast<int64_t>(blockIdx.x) * k;
  taken += blockIdx.x;
  __shared__ uint32_t histogram[256];
  __shared__ uint32_t prefix, digit_left, equal_taken;
  __shared__ uint32_t warp_counts[32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int32_t rounded = (count + static_cast<int32_t>(blockDim.x) - 1) /
                          static_cast<int32_t>(blockDim.x) * static_cast<int32_t>(blockDim.x);
  if (threadIdx.x == 0) {
    prefix = 0;
    digit_left = static_cast<uint32_t>(k);
    equal_taken = 0;
    *taken = 0;
  }
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) histogram[threadIdx.x] = 0;
    __syncthreads();
    const uint32_t known = shift == 24 ? 0 : 0xffffffffu << (shift + 8);
    const uint32_t wanted = prefix;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < rounded;
         i += static_cast<int32_t>(blockDim.x)) {
      const uint32_t order = i < count ? order_of(x[i]) : 0;
      const bool counts = order != 0 && (order & known) == wanted;
      const uint32_t digit = (order >> shift) & 255u;
      // Logits share their upper digits: one addition for all lanes of a warp with the same one.
      const unsigned int peers = __match_any_sync(0xffffffffu, counts ? digit : 256u);
      if (counts && lane == __ffs(static_cast<int>(peers)) - 1) {
        atomicAdd(&histogram[digit], static_cast<uint32_t>(__popc(peers)));
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      uint32_t left = digit_left;
      int digit = 255;
      while (digit > 0 && histogram[digit] < left) left -= histogram[digit--];
      prefix |= static_cast<uint32_t>(digit) << shift;
      digit_left = left;
    }
    __syncthreads();
  }
  // Fewer than k numbers: prefix ends at 0 and everything that is a number lies above or at it.
  const uint32_t threshold = prefix;
  const uint32_t equal_wanted = digit_left;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < rounded;
       i += static_cast<int32_t>(blockDim.x)) {
    const float value = i < count ? x[i] : 0.0f;
    const uint32_t order = i < count ? order_of(value) : 0;
    if (order > threshold && order != 0) {
      found[atomicAdd(taken, 1)] = make_int2(i, __float_as_int(value));
    }
    const bool equal = order == threshold && order != 0;
    const unsigned int votes = __ballot_sync(0xffffffffu, equal);
    if (lane == 0) warp_counts[warp] = static_cast<uint32_t>(__popc(votes));
    __syncthreads();
    uint32_t before = equal_taken;
    for (int w = 0; w < warp; ++w) before += warp_counts[w];
    before += static_cast<uint32_t>(__popc(votes & ((1u << lane) - 1u)));
    if (equal && before < equal_wanted) {
      found[atomicAdd(taken, 1)] = make_int2(i, __float_as_int(value));
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (unsigned int w = 0; w < blockDim.x / 32; ++w) equal_taken += warp_counts[w];
    }
    __syncthreads();
  }
}

// Few of many: every block takes the largest of a part of a row (rank_parts), then one block a row
// those of the parts (rank_joined). A key orders like (value, the complement of the index), so the
// first of equals comes first; 0 is no number.
//
// A decoding step runs these once between two products, so latency is what counts: few
// instructions, which no cache holds any more, and comparisons of 32 bits where keys have 64.
using Key = unsigned long long;
constexpr int rank_threads = 512;
constexpr int rank_warps = rank_threads / 32;
constexpr int rank_part = 4096;
constexpr int most_ranked = 64;

__device__ __forceinline__ Key key_of(float value, int32_t index) {
  const uint32_t order = order_of(value);
  return order == 0 ? 0 : (static_cast<Key>(order) << 32) | (~static_cast<uint32_t>(index));
}
__device__ __forceinline__ int32_t index_of(Key key) {
  return static_cast<int32_t>(~static_cast<uint32_t>(key));
}
__device__ __forceinline__ float value_of(Key key) {
  const auto order = static_cast<uint32_t>(key >> 32);
  return __uint_as_float((order & 0x80000000u) != 0 ? order ^ 0x80000000u : ~order);
}

// Bytes on their way into shared memory; whoever asked waits for them with wait_copies.
template <typename T>
__device__ __forceinline__ void copy_value(T* target, const T* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(target))),
               "l"(source), "n"(sizeof(T))
               : "memory");
}
__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// What take_largest works in.
struct Picking {
  static constexpr int named = 64;  // orders of a warp, two of every lane
  static constexpr int near_keys = rank_warps * named / 2;
  union {
    uint4 tops[rank_warps][named / 4];
    Key near[near_keys];  // later: the first keys that are left, for these are read most
  };
  uint4 floors[rank_warps / 4];
  uint16_t left[rank_part];  // places of keys
  int count;
  Key largest;  // of all; 0: there is none
};
static_assert(most_ranked <= Picking::named && rank_part <= 65536);

// The k largest of a block's keys, of which none comes twice, largest first, into `best`; 0 where
// there are fewer. order_at and key_at of 0 … places − 1: each has been copied by thread place %
// rank_threads. Lanes name their largest order, or their two largest: the k-th of what a warp names
// is a floor under the k largest of all. What reaches the highest floor is little, and gets its
// place by counting.
template <typename OrderAt, typename KeyAt>
__device__ inline void take_largest(int places, const OrderAt& order_at, const KeyAt& key_at, int k,
                                    Picking& room, Key* best) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32;
  uint32_t first = 0, second = 0;
#pragma unroll 4
  for (int place = thread; place < places; place += rank_threads) {
    const uint32_t order = order_at(place);
    second = max(second, min(first, order));
    first = max(first, order);
  }
  auto* named = reinterpret_cast<uint32_t*>(room.tops[warp]);
  named[lane] = first;
  named[32 + lane] = second;
  if (thread == 0) {
    room.count = 0;
    room.largest = 0;
  }
  __syncwarp();
  const bool one_each = k <= 16;
  // The order, if fewer than k of those named are larger.
  const auto if_high = [&](uint32_t own) {
    int above = 0;
#pragma unroll 4
    for (int i = 0; i < (one_each ? 8 : 16); ++i) {
      const uint4 other = room.tops[warp][i];
      above += (other.x > own) + (other.y > own) + (other.z > own) + (other.w > own);
    }
    return above < k ? own : ~0u;
  };
  uint32_t high = if_high(first);
  if (!one_each) high = min(high, if_high(second));
  high = __reduce_min_sync(0xffffffffu, high);
  if (lane == 0) reinterpret_cast<uint32_t*>(room.floors)[warp] = high;
  __syncthreads();
  uint32_t floor = 1;  // 0 is no number
#pragma unroll
  for (const uint4 other : room.floors) {
    floor = max(max(max(floor, other.x), max(other.y, other.z)), other.w);
  }
#pragma unroll 1
  for (int place = thread; place < places; place += rank_threads) {
    if (order_at(place) < floor) continue;
    const int at = atomicAdd(&room.count, 1);
    room.left[at] = static_cast<uint16_t>(place);
    if (at < Picking::near_keys) room.near[at] = key_at(place);
  }
  __syncthreads();
  const int count = room.count;
  for (int i = count + thread; i < k; i += rank_threads) best[i] = 0;
#pragma unroll 1
  for (int i = thread; i < count; i += rank_threads) {
    const Key own = key_at(room.left[i]);
    int above = 0;
#pragma unroll 4
    for (int other = 0; other < min(count, Picking::near_keys); ++other) {
      above += room.near[other] > own;
    }
#pragma unroll 1
    for (int other = Picking::near_keys; other < count; ++other) {
      above += key_at(room.left[other]) > own;
    }
    if (above < k) best[above] = own;
    if (above == 0) room.largest = own;
  }
  __syncthreads();
}

// Σ over the block; the first thread has it.
__device__ inline double sum_of_block(double own) {
  __shared__ double parts[rank_warps];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto sum_of_warp = [&](double value) {
#pragma unroll 1
    for (int distance = 16; distance > 0; distance /= 2) {
      value += __shfl_xor_sync(0xffffffffu, value, distance);
    }
    return value;
  };
  own = sum_of_warp(own);
  if (lane == 0) parts[warp] = own;
  __syncthreads();
  return warp == 0 ? sum_of_warp(lane < rank_warps ? parts[lane] : 0) : 0;
}

struct Ranked {
  int2* found;     // [rows, k] (index, value), largest first, …
  int32_t* taken;  // … this many of a row's
  double* mass;    // [rows] Σ exp(x[i] − the largest)
};

// A row, by all threads of a block; the first one has the mass.
__device__ inline void write_row(const Ranked& out, int64_t row, int k, const Key* largest,
                                 double mass) {
  const int thread = static_cast<int>(threadIdx.x);
  const bool there = thread < k && largest[thread] != 0;
  if (there) {
    const Key key = largest[thread];
    out.found[row * k + thread] = make_int2(index_of(key), __float_as_int(value_of(key)));
  }
  const int count = __syncthreads_count(there);
  if (thread != 0) return;
  out.taken[row] = count;
  out.mass[row] = count > 0 ? mass : 0;
}

// A part of a row: best [rows, parts, k]; share [rows, parts]: Σ exp(x[i] − the part's largest). Or
// all of it.  grid: (parts, rows)
template <bool whole>
__global__ void __launch_bounds__(rank_threads)
    rank_parts(const float* x, int64_t stride, int32_t count, int k, Key* best, double* share,
               const __grid_constant__ Ranked out) {
  __shared__ Picking room;
  __shared__ float values[rank_part];
  __shared__ Key largest[whole ? most_ranked : 1];
  let_next_start();
  wait_for_previous();
  x += blockIdx.y * stride;
  const int64_t part = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
  const int32_t first = static_cast<int32_t>(blockIdx.x) * rank_part;
  const int places = min(rank_part, count - first);
  const int thread = static_cast<int>(threadIdx.x);
  x += first;
#pragma unroll 1
  for (int place = thread; place < places; place += rank_threads) {
    copy_value(values + place, x + place);
  }
  wait_copies();
  const auto order_at = [&](int place) { return order_of(values[place]); };
  const auto key_at = [&](int place) { return key_of(values[place], first + place); };
  take_largest(places, order_at, key_at, k, room, whole ? largest : best + part * k);
  const float highest = value_of(room.largest);
  double own = 0;
#pragma unroll 4
  for (int place = thread; place < places; place += rank_threads) {
    const float value = values[place];
    if (!isnan(value)) own += expf(value - highest);
  }
  own = sum_of_block(own);
  if constexpr (whole) {
    write_row(out, blockIdx.y, k, largest, own);
  } else if (threadIdx.x == 0) {
    share[part] = own;
  }
}

// What rank_parts found, together.  grid: rows
__global__ void __launch_bounds__(rank_threads)
    rank_joined(int32_t parts, int k, const Key* best, const double* share,
                const __grid_constant__ Ranked out) {
  __shared__ Picking room;
  __shared__ Key keys[rank_part];
  __shared__ Key largest[most_ranked];
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  best += row * parts * k;
  share += row * parts;
  const auto top_of = [&](int part) { return part < parts ? best[part * k] : 0; };
  const auto share_of = [&](int part) { return part < parts ? share[part] : 0; };
  const int places = parts * k;
#pragma unroll 1
  for (int place = thread; place < places; place += rank_threads) {
    copy_value(keys + place, best + place);
  }
  const auto order_at = [&](int place) { return static_cast<uint32_t>(keys[place] >> 32); };
  const auto key_at = [&](int place) { return keys[place]; };
  const Key own_top = top_of(thread);
  const double own_share = share_of(thread);
  wait_copies();
  take_largest(places, order_at, key_at, k, room, largest);
  const float highest = value_of(room.largest);
  const auto mass_of = [&](Key top, double part_share) {
    return top == 0 ? 0 : part_share * double{expf(value_of(top) - highest)};
  };
  double own = mass_of(own_top, own_share);
  for (int part = thread + rank_threads; part < parts; part += rank_threads) {
    own += mass_of(top_of(part), share_of(part));
  }
  write_row(out, row, k, largest, sum_of_block(own));
}

// mass = Σ exp(x[i] − the largest of what select_kernel found). One block a row.
__global__ void mass_kernel(const float* x, int64_t stride, int64_t count, int32_t k,
                            const int2* found, const int32_t* taken, double* mass) {
  __shared__ double parts[32];
  x += blockIdx.x * stride;
  found += static_cast<int64_t>(blockIdx.x) * k;
  double highest = -INFINITY;
  for (int32_t i = 0; i < taken[blockIdx.x]; ++i) {
    highest = fmax(highest, static_cast<double>(__int_as_float(found[i].y)));
  }
  double own = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    const double value = x[i];
    if (!isnan(value)) own += exp(value - highest);
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    own += __shfl_xor_sync(0xffffffffu, own, distance);
  }
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned int warp = 1; warp < blockDim.x / 32; ++warp) own += parts[warp];
  mass[blockIdx.x] = taken[blockIdx.x] > 0 ? own : 0;
}

void download(const Context& context, void* target, const Tensor& source, size_t bytes) {
  const cudaStream_t stream = enter(context);
  check(cudaMemcpyAsync(target, source.view().raw(), bytes, cudaMemcpyDeviceToHost, stream),
        "copying from a GPU");
  check(cudaStreamSynchronize(stream), "choosing the largest logits");
}

// (index, value) pairs, largest first.
std::vector<Candidate> sorted(const int32_t* raw, int32_t count) {
  std::vector<Candidate> best(static_cast<size_t>(count));
  for (size_t i = 0; i < best.size(); ++i) {
    best[i] = {raw[2 * i], std::bit_cast<float>(raw[2 * i + 1])};
  }
  std::sort(best.begin(), best.end(), [](const Candidate& a, const Candidate& b) {
    return a.value != b.value ? a.value > b.value : a.index < b.index;
  });
  return best;
}

}  // namespace

std::vector<int64_t> argmax_rows(const Context& context, ConstTensorView x) {
  const cudaStream_t stream = enter(context);
  const auto rows = static_cast<size_t>(x.size(0));
  Tensor best(DType::u8, {x.size(0) * 8}, context.device);
  auto* keys = reinterpret_cast<unsigned long long*>(best.view().raw());
  check(cudaMemsetAsync(keys, 0, rows * 8, stream), "argmax");
  const dim3 grid(static_cast<unsigned int>(strided_blocks(context, x.size(1), 1024)),
                  static_cast<unsigned int>(rows));
  launch({grid, 256, 0, stream}, "argmax", argmax_kernel, device_data<float>(x), x.stride(0),
         x.size(1), keys);
  std::vector<unsigned long long> found(rows);
  download(context, found.data(), best, rows * 8);
  std::vector<int64_t> result;
  for (const unsigned long long key : found) {
    result.push_back(key == 0 ? -1 : static_cast<int64_t>(~static_cast<uint32_t>(key)));
  }
  return result;
}

std::vector<Candidate> top_k(const Context& context, ConstTensorView x, int64_t k) {
  const int64_t wanted = std::clamp<int64_t>(k, 0, x.size(0));
  if (wanted == 0) return {};
  if (wanted > most_selected) {
    Tensor host(DType::f32, {x.size(0)});
    check(cudaMemcpyAsync(host.data<float>(), x.raw(), static_cast<size_t>(x.bytes()),
                          cudaMemcpyDeviceToHost, enter(context)),
          "copying from a GPU");
    check(cudaStreamSynchronize(enter(context)), "top_k");
    return kinora::top_k(Context(*context.threads), host, k);
  }
  Tensor found(DType::i32, {2 * wanted + 1}, context.device);
  auto* pairs = device_data<int2>(found.view());
  launch({1, 1024, 0, enter(context)}, "top_k", select_kernel, device_data<float>(x), int64_t{0},
         static_cast<int32_t>(x.size(0)), static_cast<int32_t>(wanted), pairs,
         device_data<int32_t>(found.view()) + 2 * wanted);
  std::vector<int32_t> raw(static_cast<size_t>(2 * wanted + 1));
  download(context, raw.data(), found, raw.size() * sizeof(int32_t));
  return sorted(raw.data(), raw.back());
}

int64_t rank_room(int64_t columns, int64_t k) {
  const int64_t parts = (columns + rank_part - 1) / rank_part;
  if (k < 1 || k > most_ranked || parts < 1 || parts * k > rank_part) return 0;
  return parts * (k * static_cast<int64_t>(sizeof(Key)) + static_cast<int64_t>(sizeof(double)));
}

void rank_rows(const Context& context, const RankWork& work) {
  static_assert(sizeof(Candidate) == sizeof(int2) && alignof(Key) == alignof(double));
  const auto rows = static_cast<unsigned int>(work.x.size(0));
  const int64_t parts = (work.x.size(1) + rank_part - 1) / rank_part;
  const auto k = static_cast<int>(work.k);
  auto* best = reinterpret_cast<Key*>(work.room);
  auto* share = reinterpret_cast<double*>(best + work.x.size(0) * parts * k);
  const Ranked out{reinterpret_cast<int2*>(work.best), work.taken, work.mass};
  const cudaStream_t stream = enter(context);
  launch_early({dim3(static_cast<unsigned int>(parts), rows), rank_threads, 0, stream}, "top_k",
               parts == 1 ? rank_parts<true> : rank_parts<false>, device_data<float>(work.x),
               work.x.stride(0), static_cast<int32_t>(work.x.size(1)), k, best, share, out);
  if (parts == 1) return;
  launch_early({rows, rank_threads, 0, stream}, "top_k", rank_joined, static_cast<int32_t>(parts),
               k, best, share, out);
}

std::vector<RankedRow> top_k_rows(const Context& context, ConstTensorView x, int64_t k) {
  const int64_t rows = x.size(0);
  // The masses, then the pairs, then how many there are of each row.
  const auto pairs_at = static_cast<size_t>(rows) * sizeof(double);
  const size_t taken_at = pairs_at + static_cast<size_t>(rows * k) * sizeof(int2);
  const size_t bytes = taken_at + static_cast<size_t>(rows) * sizeof(int32_t);
  Tensor results(DType::u8, {static_cast<int64_t>(bytes)}, context.device);
  std::byte* there = results.view().raw();
  auto* mass = reinterpret_cast<double*>(there);
  auto* pairs = reinterpret_cast<int2*>(there + pairs_at);
  auto* taken = reinterpret_cast<int32_t*>(there + taken_at);
  const int64_t room = rank_room(x.size(1), k);
  Tensor found;
  if (room > 0) {
    found = Tensor(DType::u8, {rows * room}, context.device);
    rank_rows(context,
              {x, k, found.view().raw(), mass, reinterpret_cast<Candidate*>(pairs), taken});
  } else {
    const auto* values = device_data<float>(x);
    const auto blocks = static_cast<unsigned int>(rows);
    const auto wanted = static_cast<int32_t>(k);
    const cudaStream_t stream = enter(context);
    launch({blocks, 1024, 0, stream}, "top_k", select_kernel, values, x.stride(0),
           static_cast<int32_t>(x.size(1)), wanted, pairs, taken);
    launch({blocks, 1024, 0, stream}, "top_k", mass_kernel, values, x.stride(0), x.size(1), wanted,
           pairs, taken, mass);
  }
  std::vector<std::byte> raw(bytes);
  download(context, raw.data(), results, bytes);
  std::vector<RankedRow> result(static_cast<size_t>(rows));
  for (size_t row = 0; row < result.size(); ++row) {
    int32_t count = 0;
    std::memcpy(&result[row].mass, raw.data() + row * sizeof(double), sizeof(double));
    std::memcpy(&count, raw.data() + taken_at + row * sizeof(int32_t), sizeof(int32_t));
    std::vector<int32_t> own(2 * static_cast<size_t>(k));
    std::memcpy(own.data(), raw.data() + pairs_at + row * own.size() * sizeof(int32_t),
                own.size() * sizeof(int32_t));
    result[row].best = sorted(own.data(), count);
  }
  return result;
}

}  // namespace kinora::cuda
