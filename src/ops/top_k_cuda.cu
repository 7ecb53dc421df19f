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
  const auto blocks = static_cast<unsigned int>(rows);
  launch({blocks, 1024, 0, enter(context)}, "top_k", select_kernel, device_data<float>(x),
         x.stride(0), static_cast<int32_t>(x.size(1)), static_cast<int32_t>(k), pairs, taken);
  launch({blocks, 1024, 0, enter(context)}, "top_k", mass_kernel, device_data<float>(x),
         x.stride(0), x.size(1), static_cast<int32_t>(k), pairs, taken, mass);
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
