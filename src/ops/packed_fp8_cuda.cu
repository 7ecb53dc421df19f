// Products of e4m3 by e4m3 through cuBLASLt. Weights come out of their strips row by row, some at a
// time; rows of activations are rounded with scales that make their largest value 448.
#include <cuda_fp8.h>

#include <algorithm>

#include "ops/matmul_cuda.h"
#include "ops/packed_codes_cuda.cuh"
#include "ops/packed_cuda.h"

namespace kinora::cuda {
namespace {

constexpr int warps = 8;
constexpr int threads = 32 * warps;
constexpr int block_columns = 128;
constexpr float largest_e4m3 = 448;
constexpr int64_t elements_at_once = int64_t{96} << 20;
constexpr int64_t least_rows = 128;  // fewer do not repay the rounding

struct CodesShape {
  StripCodes packed;
  int first;   // strip
  int second;  // the row of out where the second rows of pairs begin
  int64_t columns;
};

// A warp takes a piece: its codes go through shared memory, so that rows are written whole.
__global__ void codes_kernel(CodesShape shape, uint8_t* out) {
  constexpr int row_bytes = strip_piece + 16;  // rows start in other banks
  __shared__ __align__(16) uint8_t tile[warps][16][row_bytes];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int at = static_cast<int>(blockIdx.x) * warps + warp;
  if (at >= shape.packed.pieces) return;
  const uint4* from =
      shape.packed.piece_of<PackedKind::fp8>(shape.first + static_cast<int>(blockIdx.y), at) + lane;
  uint32_t words[8];
  read_piece<PackedKind::fp8>(words, from);
#pragma unroll
  for (int word = 0; word < 8; ++word) {
    const int column = word / 2 * 16 + word % 2 * 8 + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto both = static_cast<uint16_t>(words[word] >> (16 * half));
      memcpy(&tile[warp][lane / 4 + half * 8][column], &both, sizeof(both));
    }
  }
  __syncwarp();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = half * 8 + lane / 4, column = at * strip_piece + lane % 4 * 16;
    if (column >= shape.columns) continue;
    const auto strip = static_cast<int64_t>(blockIdx.y);
    const int64_t to = shape.packed.paired ? half * int64_t{shape.second} + strip * 8 + lane / 4
                                           : strip * 16 + row;
    *reinterpret_cast<uint4*>(out + to * shape.columns + column) =
        *reinterpret_cast<const uint4*>(&tile[warp][row][lane % 4 * 16]);
  }
}

struct RowsShape {
  const __nv_bfloat16* a;
  int64_t a_stride;
  int m, k;            // k is a multiple of eight
  bool whole_vectors;  // rows can be read sixteen bytes at a time
};

__device__ __forceinline__ float scale_for(float largest) {
  return largest > 0 ? largest / largest_e4m3 : 1.0f;
}

struct Eight {
  float values[8];

  __device__ __forceinline__ Eight(const RowsShape& shape, int64_t row, int64_t column) {
    const __nv_bfloat16* from = shape.a + row * shape.a_stride + column;
    if (shape.whole_vectors) {
      const uint4 raw = __ldg(reinterpret_cast<const uint4*>(from));
      const uint32_t pairs[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        values[i] = __uint_as_float(i % 2 == 0 ? pairs[i / 2] << 16 : pairs[i / 2] & 0xffff0000u);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] = to_float(from[i]);
    }
  }
  __device__ __forceinline__ float largest() const {
    float found = 0;
#pragma unroll
    for (const float value : values) found = fmaxf(found, fabsf(value));
    return found;
  }
  __device__ __forceinline__ void write(uint8_t* out, float inverse) const {
    uint16_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = __nv_cvt_float2_to_fp8x2(
          make_float2(values[2 * i] * inverse, values[2 * i + 1] * inverse), __NV_SATFINITE,
          __NV_E4M3);
    }
    memcpy(out, pairs, sizeof(pairs));
  }
};

// Half a warp takes 128 columns of a row.
__global__ void round_blocks_kernel(RowsShape shape, uint8_t* out, float* scales) {
  const int lane = static_cast<int>(threadIdx.x) % 16;
  const int blocks = shape.k / block_columns;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * (2 * warps) + threadIdx.x / 16;
  const int64_t row = at / blocks, block = at % blocks;
  const bool inside = row < shape.m;
  const int64_t column = block * block_columns + lane * 8;
  const Eight eight(shape, inside ? row : 0, inside ? column : 0);
  float largest = eight.largest();
  for (int step = 1; step < 16; step *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, step));
  }
  if (!inside) return;
  const float scale = scale_for(largest);
  eight.write(out + row * shape.k + column, 1.0f / scale);
  if (lane == 0) scales[block * shape.m + row] = scale;
}

// A block takes a row.
__global__ void round_rows_kernel(RowsShape shape, uint8_t* out, float* scales) {
  __shared__ float scratch[32];
  const auto row = static_cast<int64_t>(blockIdx.x);
  float largest = 0;
  for (int j = static_cast<int>(threadIdx.x) * 8; j < shape.k; j += 8 * threads) {
    largest = fmaxf(largest, Eight(shape, row, j).largest());
  }
  const float scale = scale_for(block_max(largest, scratch));
  for (int j = static_cast<int>(threadIdx.x) * 8; j < shape.k; j += 8 * threads) {
    Eight(shape, row, j).write(out + row * shape.k + j, 1.0f / scale);
  }
  if (threadIdx.x == 0) scales[row] = scale;
}

}  // namespace

bool packed_by_fp8(const Context& context, const MatmulWork& work, const PackedStrips& weight) {
  const int64_t m = work.a.size(0), n = work.out.size(1), k = weight.columns();
  const bool blocks = weight.block_scales().raw() != nullptr;
  // Ada has only one scale for a whole matrix, and cards after Hopper want other ones.
  if (m < least_rows || n % 16 != 0 || k % 16 != 0 || !is_hopper(context) ||
      (!blocks && weight.row_scales().raw() == nullptr)) {
    return false;
  }
  // Columns of out that one product makes, and where their weights begin: whole blocks of 128 rows.
  const int64_t halves = weight.paired() ? 2 : 1, in_strip = weight.paired() ? 8 : 16;
  if (blocks && n % block_columns != 0) return false;
  const int64_t step =
      std::min(n, std::max<int64_t>(block_columns, elements_at_once / (halves * k) / block_columns *
                                                       block_columns));
  // Scales and numbers of the rows, and room for the weights.
  Tensor rounded(DType::u8, {m, k}, context.device);
  Tensor scales(DType::f32, {blocks ? k / block_columns : 1, m}, context.device);
  Tensor codes(DType::u8, {halves * step, k}, context.device);
  Tensor both = weight.paired() ? Tensor(DType::bf16, {m, 2 * step}, context.device) : Tensor();
  const cudaStream_t stream = enter(context);
  const RowsShape rows{
      device_data<__nv_bfloat16>(work.a), work.a.stride(0), static_cast<int>(m),
      static_cast<int>(k),
      work.a.stride(0) % 8 == 0 && reinterpret_cast<uintptr_t>(work.a.raw()) % 16 == 0};
  if (blocks) {
    launch({blocks_for(m * (k / block_columns), 2 * warps), threads, 0, stream}, "rounding rows",
           round_blocks_kernel, rows, device_data<uint8_t>(rounded.view()),
           device_data<float>(scales.view()));
  } else {
    launch({static_cast<unsigned int>(m), threads, 0, stream}, "rounding rows", round_rows_kernel,
           rows, device_data<uint8_t>(rounded.view()), device_data<float>(scales.view()));
  }
  Fp8Scales factors;
  factors.kind = blocks ? Fp8Scales::Kind::blocks : Fp8Scales::Kind::rows;
  factors.a = device_data<float>(scales.view());
  const float* weight_scales =
      device_data<float>(blocks ? weight.block_scales() : weight.row_scales());
  const auto scales_at = [&](int64_t row) {
    return weight_scales + (blocks ? row / block_columns * weight.block_scales().size(1) : row);
  };
  for (int64_t column = 0; column < n; column += step) {
    const int64_t columns = std::min(step, n - column);
    CodesShape shape{codes_of(weight), static_cast<int>(column / in_strip),
                     static_cast<int>(columns), k};
    const auto strips = static_cast<unsigned int>((columns + in_strip - 1) / in_strip);
    launch({dim3(blocks_for(weight.pieces(), warps), strips), threads, 0, stream}, "matmul",
           codes_kernel, shape, device_data<uint8_t>(codes.view()));
    const auto product = [&](int64_t half, TensorView out, ConstTensorView bias, bool accumulate) {
      factors.weight = scales_at(half * n + column);
      const ConstTensorView part = codes.view().rows(half * columns, columns);
      return matmul_blas(context, {rounded, part, bias, out, accumulate}, factors);
    };
    const auto bias_at = [&](int64_t first) {
      return work.bias.raw() != nullptr ? work.bias.rows(first, columns) : work.bias;
    };
    if (!weight.paired()) {
      // The first part tells whether the library does this at all.
      if (!product(0, work.out.columns(column, columns), bias_at(column), work.accumulate)) {
        if (column == 0) return false;
        throw Error(ErrorKind::internal, "cuBLASLt multiplies a part of a matrix and not the rest");
      }
      continue;
    }
    const TensorView gate = both.view().columns(0, columns),
                     up = both.view().columns(step, columns);
    if (!product(0, gate, bias_at(column), false) || !product(1, up, bias_at(n + column), false)) {
      if (column == 0) return false;
      throw Error(ErrorKind::internal, "cuBLASLt multiplies a part of a matrix and not the rest");
    }
    silu_mul(context, gate, up, work.out.columns(column, columns));
  }
  return true;
}

}  // namespace kinora::cuda
