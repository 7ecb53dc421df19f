#include <cuda_fp8.h>

#include "attention/cuda/fp8/fp8_layout.h"
#include "attention/cuda/fp8/fp8_rows.h"
#include "base/cuda_support.h"

namespace kinora::fp8_attention {
namespace {

constexpr unsigned int threads = 256;
constexpr int parts = head_size / 16;  // threads of a row, each with sixteen columns
constexpr float least_scale = 1e-30f;  // of rows of zeros

// Rows of one tensor [rows, heads, 128].
template <typename T>
struct Rows {
  const T* data = nullptr;
  int64_t stride = 0;  // in elements
  int64_t head_stride = 0;

  __device__ const T* at(int64_t row, int64_t head) const {
    return data + row * stride + head * head_stride;
  }
};

__device__ inline void load_part(const __nv_bfloat16* from, float (&x)[16]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 bits = reinterpret_cast<const uint4*>(from)[half];
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[8 * half + 2 * i] = __uint_as_float(words[i] << 16);
      x[8 * half + 2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
}
__device__ inline void load_part(const float* from, float (&x)[16]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 four = reinterpret_cast<const float4*>(from)[i];
    x[4 * i] = four.x;
    x[4 * i + 1] = four.y;
    x[4 * i + 2] = four.z;
    x[4 * i + 3] = four.w;
  }
}

// Turns a row that eight neighbouring threads hold.
__device__ inline void turn(float (&x)[16], int part) {
  const uint32_t flips = flipped(part);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if ((flips >> i & 1u) != 0) x[i] = -x[i];
  }
#pragma unroll
  for (int step = 1; step < 16; step *= 2) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if ((i & step) != 0) continue;
      const float low = x[i], high = x[i + step];
      x[i] = low + high;
      x[i + step] = low - high;
    }
  }
#pragma unroll
  for (int step = 1; step < parts; step *= 2) {
    const bool second = (part & step) != 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float other = __shfl_xor_sync(0xffffffff, x[i], step);
      x[i] = second ? other - x[i] : x[i] + other;
    }
  }
}

__device__ inline float largest_of(const float (&x)[16]) {
  float high = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) high = fmaxf(high, fabsf(x[i]));
  return high;
}

__device__ inline uint4 round_part(const float (&x)[16], float factor) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t low = __nv_cvt_float2_to_fp8x2({x[4 * i] * factor, x[4 * i + 1] * factor},
                                                  __NV_SATFINITE, __NV_E4M3);
    const uint32_t high = __nv_cvt_float2_to_fp8x2({x[4 * i + 2] * factor, x[4 * i + 3] * factor},
                                                   __NV_SATFINITE, __NV_E4M3);
    words[i] = low | high << 16;
  }
  return {words[0], words[1], words[2], words[3]};
}

// The scale of numbers of which `largest` is the largest: finite and above zero whatever they are.
__device__ inline float scale_of(float largest) {
  return fminf(fmaxf(largest / largest_code, least_scale), 1e30f);
}

// Every row of queries: codes and a scale.  grid: any
template <typename T>
__global__ void round_queries(Rows<T> from, int64_t count, int32_t heads, uint8_t* codes,
                              float* scales) {
  const int part = static_cast<int>(threadIdx.x) % parts;
  const int64_t step = int64_t{gridDim.x} * (blockDim.x / parts);
  // All threads of a warp stay together: rows beyond the last one repeat it.
  for (int64_t first = int64_t{blockIdx.x} * (blockDim.x / parts); first < count; first += step) {
    const int64_t row = first + threadIdx.x / parts;
    const int64_t there = row < count ? row : count - 1;
    float x[16];
    load_part(from.at(there / heads, there % heads) + part * 16, x);
    turn(x, part);
    float high = largest_of(x);
#pragma unroll
    for (int other = 1; other < parts; other *= 2) {
      high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, other));
    }
    const float scale = scale_of(high);
    if (row >= count) continue;
    reinterpret_cast<uint4*>(codes)[row * parts + part] = round_part(x, 1 / scale);
    if (part == 0) scales[row] = scale;
  }
}

// The largest number among the keys and among the values of a kv head, as bits: those of numbers
// above zero are ordered like the numbers.  grid: (any, kv heads)
template <int = 0>
__global__ void find_largest(Rows<__nv_bfloat16> keys, Rows<__nv_bfloat16> values, int64_t count,
                             int32_t* largest) {
  const int part = static_cast<int>(threadIdx.x) % parts;
  const int64_t step = int64_t{gridDim.x} * (blockDim.x / parts);
  float high[2] = {0, 0};
  for (int64_t first = int64_t{blockIdx.x} * (blockDim.x / parts); first < count; first += step) {
    const int64_t row = min(first + threadIdx.x / parts, count - 1);
    float x[16];
    load_part(keys.at(row, blockIdx.y) + part * 16, x);
    turn(x, part);
    high[0] = fmaxf(high[0], largest_of(x));
    load_part(values.at(row, blockIdx.y) + part * 16, x);
    high[1] = fmaxf(high[1], largest_of(x));
  }
  for (int i = 0; i < 2; ++i) {
    for (int other = 16; other > 0; other /= 2) {
      high[i] = fmaxf(high[i], __shfl_xor_sync(0xffffffff, high[i], other));
    }
    if (threadIdx.x % 32 == 0) {
      atomicMax(largest + i * gridDim.y + blockIdx.y, __float_as_int(high[i]));
    }
  }
}

// A piece of keys and one of values; rows beyond the last one are zeros.
// grid: (pieces, kv heads), 256 threads
template <int = 0>
__global__ void round_pieces(Rows<__nv_bfloat16> keys, Rows<__nv_bfloat16> values, int64_t count,
                             const int32_t* largest, uint8_t* key_codes, uint8_t* value_codes,
                             float* scales) {
  static_assert(threads == piece_keys * parts && threads == 2 * head_size);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t first = int64_t{blockIdx.x} * piece_keys;
  const int64_t place = (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * piece_bytes;
  const float key_scale = scale_of(__int_as_float(largest[blockIdx.y]));
  const float value_scale = scale_of(__int_as_float(largest[gridDim.y + blockIdx.y]));
  if (blockIdx.x == 0 && thread == 0) {
    scales[blockIdx.y] = key_scale;
    scales[gridDim.y + blockIdx.y] = value_scale;
  }
  const int key = thread / parts, part = thread % parts;
  float x[16] = {};
  if (first + key < count) load_part(keys.at(first + key, blockIdx.y) + part * 16, x);
  turn(x, part);
  *reinterpret_cast<uint4*>(key_codes + place + key_byte(key, part * 16)) =
      round_part(x, 1 / key_scale);

  const int column = thread % head_size, half = thread / head_size;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int64_t row = first + key_of_slot(half * 16 + i);
    x[i] = row < count ? __bfloat162float(values.at(row, blockIdx.y)[column]) : 0.0f;
  }
  *reinterpret_cast<uint4*>(value_codes + place + value_byte(half * 16, column)) =
      round_part(x, 1 / value_scale);
}

template <typename T>
Rows<T> rows_of(const ConstTensorView& view) {
  return {reinterpret_cast<const T*>(view.raw()), view.stride(0), view.stride(1)};
}

template <typename T>
T* data_of(Tensor& tensor) {
  return reinterpret_cast<T*>(tensor.view().raw());
}

}  // namespace

Fp8Rows round_rows(const Context& context, const ConstTensorView& queries, const RowSet& rows) {
  const cudaStream_t stream = cuda::enter(context);
  const int64_t count = rows.keys.size(0), kv_heads = rows.keys.size(1), heads = queries.size(1);
  const int64_t pairs = queries.size(0) * heads;
  Fp8Rows out;
  out.pieces = piece_count(count);
  out.queries = Tensor(DType::u8, {queries.size(0), heads, head_size}, context.device);
  out.query_scales = Tensor(DType::f32, {queries.size(0), heads}, context.device);
  out.keys = Tensor(DType::u8, {kv_heads, out.pieces, piece_bytes}, context.device);
  out.values = Tensor(DType::u8, {kv_heads, out.pieces, piece_bytes}, context.device);
  out.scales = Tensor(DType::f32, {2, kv_heads}, context.device);
  Tensor largest(DType::i32, {2, kv_heads}, context.device);

  const auto grid = cuda::strided_blocks(context, pairs * parts, threads);
  const auto round = [&]<typename T>(T) {
    cuda::launch({grid, threads, 0, stream}, "rounding queries to FP8", round_queries<T>,
                 rows_of<T>(queries), pairs, static_cast<int32_t>(heads),
                 data_of<uint8_t>(out.queries), data_of<float>(out.query_scales));
  };
  queries.dtype() == DType::f32 ? round(float()) : round(__nv_bfloat16());

  const auto keys = rows_of<__nv_bfloat16>(rows.keys);
  const auto values = rows_of<__nv_bfloat16>(rows.values);
  cuda::check(cudaMemsetAsync(data_of<int32_t>(largest), 0,
                              static_cast<size_t>(2 * kv_heads) * sizeof(int32_t), stream),
              "clearing what FP8 rows are scaled by");
  cuda::launch({dim3(cuda::strided_blocks(context, count * parts, threads),
                     static_cast<unsigned int>(kv_heads)),
                threads, 0, stream},
               "scaling FP8 rows", find_largest<>, keys, values, count, data_of<int32_t>(largest));
  cuda::launch({dim3(static_cast<unsigned int>(out.pieces), static_cast<unsigned int>(kv_heads)),
                threads, 0, stream},
               "rounding rows to FP8", round_pieces<>, keys, values, count,
               data_of<int32_t>(largest), data_of<uint8_t>(out.keys), data_of<uint8_t>(out.values),
               data_of<float>(out.scales));
  return out;
}

}  // namespace kinora::fp8_attention
