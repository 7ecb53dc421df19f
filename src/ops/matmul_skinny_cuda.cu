// Products with few rows, where reading the weights is all the work. A block takes 16 rows of the
// weights; its eight warps share the inner dimension and add up at the end. The tensor cores do
// the arithmetic even for one row: sixteen rows of weights times eight rows of a, most of them
// empty, cost nothing compared with reading. Each weight is loaded once, 16 bytes at a time.
#include "ops/matmul_cuda.h"
#include "ops/matmul_parts_cuda.cuh"

namespace kinora::cuda {
namespace {

constexpr int warps = 8;
constexpr int deep = 2;  // loads of a row that make one piece of work for a warp
constexpr int step = 32 * deep;

struct SkinnyShape {
  const __nv_bfloat16* a;
  const __nv_bfloat16* weight;
  const void* bias;  // of the type `bias_type`; null: none
  DType bias_type;
  bool accumulate;
  int m;
  int64_t n, k, a_stride, weight_stride, out_stride;
};

// sum[16 × 8] += left[16 × 16] · right[16 × 8]
__device__ __forceinline__ void multiply(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The order of the inner dimension does not matter as long as both factors have the same: a lane's
// eight consecutive elements stand for the columns that the instruction gives to that lane.
__device__ __forceinline__ void multiply_eights(float (&sum)[4], uint4 upper, uint4 lower,
                                                uint4 right) {
  multiply(sum, upper.x, lower.x, upper.y, lower.y, right.x, right.y);
  multiply(sum, upper.z, lower.z, upper.w, lower.w, right.z, right.w);
}

// gated: rows n and n + shape.n of the weights make one output. halves: eights of weight rows that
// a block takes, 1 or 2. Every warp keeps `stages` pieces of its part of the inner dimension in
// flight; the first ones are asked for before the kernel that makes `a` has ended.
template <bool gated, int halves, typename Out>
__global__ void __launch_bounds__(32 * warps, gated         ? 2
                                              : halves == 2 ? 3
                                                            : 4)
    skinny_kernel(SkinnyShape shape, Out* out) {
  constexpr int parts = gated ? 2 : 1;
  constexpr int stages = 2;
  constexpr int block_rows = 8 * halves;
  __shared__ float sums[warps][parts][8][block_rows];
  let_next_start();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int group = lane / 4, quad = lane % 4;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * block_rows;
  const __nv_bfloat16* rows[parts][halves];
#pragma unroll
  for (int part = 0; part < parts; ++part) {
#pragma unroll
    for (int half = 0; half < halves; ++half) {
      // Rows past the end read the last one; their results are not stored.
      const int64_t row = min(first + group + 8 * half, shape.n - 1);
      rows[part][half] = shape.weight + (part * shape.n + row) * shape.weight_stride + quad * 8;
    }
  }
  const auto columns = static_cast<int>(shape.k);
  const uint4 nothing = make_uint4(0, 0, 0, 0);
  uint4 left[stages][parts][halves][deep], right[stages][deep];
  const auto fetch_left = [&](int stage, int begin) {
#pragma unroll
    for (int i = 0; i < deep; ++i) {
      const int at = begin + i * 32;
      const bool inside = at + quad * 8 < columns;
#pragma unroll
      for (int part = 0; part < parts; ++part) {
#pragma unroll
        for (int half = 0; half < halves; ++half) {
          left[stage][part][half][i] = inside ? load_once(rows[part][half] + at) : nothing;
        }
      }
    }
  };
  const auto fetch_right = [&](int stage, int begin) {
#pragma unroll
    for (int i = 0; i < deep; ++i) {
      const int at = begin + i * 32 + quad * 8;
      const bool inside = group < shape.m && at < columns;
      const __nv_bfloat16* from = shape.a + group * shape.a_stride + at;
      right[stage][i] = inside ? *reinterpret_cast<const uint4*>(from) : nothing;
    }
  };
  const int begin = warp * step;
  constexpr int stride = warps * step;
#pragma unroll
  for (int stage = 0; stage < stages; ++stage) fetch_left(stage, begin + stage * stride);
  wait_for_previous();
#pragma unroll
  for (int stage = 0; stage < stages; ++stage) fetch_right(stage, begin + stage * stride);
  float sum[parts][4] = {};
  for (int at = begin; at < columns; at += stages * stride) {
#pragma unroll
    for (int stage = 0; stage < stages; ++stage) {
#pragma unroll
      for (int i = 0; i < deep; ++i) {
#pragma unroll
        for (int part = 0; part < parts; ++part) {
          const uint4 lower = halves == 2 ? left[stage][part][halves - 1][i] : nothing;
          multiply_eights(sum[part], left[stage][part][0][i], lower, right[stage][i]);
        }
      }
      fetch_left(stage, at + (stages + stage) * stride);
      fetch_right(stage, at + (stages + stage) * stride);
    }
  }
#pragma unroll
  for (int part = 0; part < parts; ++part) {
#pragma unroll
    for (int half = 0; half < halves; ++half) {
      sums[warp][part][quad * 2][group + 8 * half] = sum[part][2 * half];
      sums[warp][part][quad * 2 + 1][group + 8 * half] = sum[part][2 * half + 1];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 8 * block_rows; i += 32 * warps) {
    const int column = i % block_rows, row = i / block_rows;
    if (row >= shape.m || first + column >= shape.n) continue;
    float total[parts] = {};
    for (int part = 0; part < parts; ++part) {
      for (int w = 0; w < warps; ++w) total[part] += sums[w][part][row][column];
    }
    float value = total[0] + bias_of(shape.bias, shape.bias_type, first + column);
    if constexpr (gated) {
      const float up = total[1] + bias_of(shape.bias, shape.bias_type, shape.n + first + column);
      value = value / (1.0f + __expf(-value)) * up;
    }
    Out* target = out + row * shape.out_stride + first + column;
    if (shape.accumulate) value += to_float(*target);
    *target = from_float<Out>(value);
  }
}

struct FewShape {
  const float* a;
  const void* weight;
  const void* bias;  // null: none
  DType bias_type;
  bool accumulate;
  int m;
  int64_t n, k, a_stride, weight_stride, out_stride;
};

// One warp an output column; f32 throughout. gated: as in skinny_kernel.
template <bool gated, typename Weight>
__global__ void few_f32_kernel(FewShape shape, float* out) {
  constexpr int parts = gated ? 2 : 1;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (column >= shape.n) return;
  const auto* weight = static_cast<const Weight*>(shape.weight) + column * shape.weight_stride;
  float sum[parts][few_rows] = {};
  for (int64_t j = lane; j < shape.k; j += 32) {
    float value[parts];
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      value[part] = to_float(weight[part * shape.n * shape.weight_stride + j]);
    }
#pragma unroll
    for (int row = 0; row < few_rows; ++row) {
      if (row >= shape.m) continue;
      const float factor = shape.a[row * shape.a_stride + j];
#pragma unroll
      for (int part = 0; part < parts; ++part) sum[part][row] += factor * value[part];
    }
  }
  const auto bias = [&](int64_t at) { return bias_of(shape.bias, shape.bias_type, at); };
#pragma unroll
  for (int row = 0; row < few_rows; ++row) {
    if (row >= shape.m) break;
    float total = warp_sum(sum[0][row]) + bias(column);
    if constexpr (gated) {
      const float up = warp_sum(sum[1][row]) + bias(shape.n + column);
      total = total / (1.0f + expf(-total)) * up;
    }
    if (lane != 0) continue;
    float* target = out + row * shape.out_stride + column;
    *target = total + (shape.accumulate ? *target : 0.0f);
  }
}

bool rows_take_sixteen_bytes(const ConstTensorView& view) {
  return reinterpret_cast<uintptr_t>(view.raw()) % 16 == 0 && view.stride(0) % 8 == 0;
}

}  // namespace

bool skinny_fits(const MatmulWork& work) {
  return work.a.dtype() == DType::bf16 && work.weight.dtype() == DType::bf16 &&
         work.a.size(1) % 8 == 0 && rows_take_sixteen_bytes(work.a) &&
         rows_take_sixteen_bytes(work.weight);
}

namespace {

SkinnyShape skinny_shape(const MatmulWork& work) {
  SkinnyShape shape{};
  shape.a = device_data<__nv_bfloat16>(work.a);
  shape.weight = device_data<__nv_bfloat16>(work.weight);
  shape.bias = work.bias.raw();
  shape.bias_type = work.bias.dtype();
  shape.accumulate = work.accumulate;
  shape.m = static_cast<int>(work.out.size(0));
  shape.n = work.out.size(1);
  shape.k = work.a.size(1);
  shape.a_stride = work.a.stride(0);
  shape.weight_stride = work.weight.stride(0);
  shape.out_stride = work.out.stride(0);
  return shape;
}

}  // namespace

void matmul_skinny(const Context& context, const MatmulWork& work, bool gated) {
  const int64_t m = work.out.size(0), n = work.out.size(1);
  if (m == 0 || n == 0) return;
  const SkinnyShape shape = skinny_shape(work);
  const cudaStream_t stream = enter(context);
  // Few blocks spread unevenly over the device: then smaller ones.
  const bool small = !gated && blocks_for(n, 16) < 2u * static_cast<unsigned int>(
                                                            multiprocessors(context.device.index));
  const Launch how{blocks_for(n, small ? 8 : 16), 32 * warps, 0, stream};
  with_activation(work.out.dtype(), [&]<typename Out>(Out) {
    launch_early(how, "matmul",
                 gated   ? skinny_kernel<true, 2, Out>
                 : small ? skinny_kernel<false, 1, Out>
                         : skinny_kernel<false, 2, Out>,
                 shape, device_data<Out>(work.out));
  });
}

void matmul_few_f32(const Context& context, const MatmulWork& work, bool gated) {
  const int64_t m = work.out.size(0), n = work.out.size(1);
  if (m == 0 || n == 0) return;
  const FewShape shape{device_data<float>(work.a),
                       work.weight.raw(),
                       work.bias.raw(),
                       work.bias.dtype(),
                       work.accumulate,
                       static_cast<int>(m),
                       n,
                       work.a.size(1),
                       work.a.stride(0),
                       work.weight.stride(0),
                       work.out.stride(0)};
  const Launch how{blocks_for(n, 4), 128, 0, enter(context)};
  with_float(work.weight.dtype(), [&]<typename Weight>(Weight) {
    launch(how, "matmul", gated ? few_f32_kernel<true, Weight> : few_f32_kernel<false, Weight>,
           shape, device_data<float>(work.out));
  });
}

}  // namespace kinora::cuda
