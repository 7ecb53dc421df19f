// Products with few rows, where reading the weights is all the work. A block takes up to 16 or 32
// rows of the weights and streams them, with the same columns of a, through a ring in shared
// memory; its eight or sixteen warps share the columns and add up at the end. The tensor cores do
// the arithmetic: sixteen rows of weights times eight rows of a, some of them empty, cost nothing
// compared with reading. Where all blocks run at once, each takes the same number of rows, whatever
// it is.
#include "ops/matmul_cuda.h"
#include "ops/matmul_parts_cuda.cuh"

namespace kinora::cuda {
namespace {

constexpr int chunk = 256;         // columns of a stage
constexpr int pieces = chunk / 8;  // of 16 bytes, in a row of a stage
constexpr int row_bytes = chunk * 2;

struct SkinnyShape {
  const __nv_bfloat16* a;
  const __nv_bfloat16* weight;
  const void* bias;  // of the type `bias_type`; null: none
  DType bias_type;
  bool accumulate;
  int m;
  int outputs;  // of a block
  int64_t n, k, a_stride, weight_stride, out_stride;
};

// 16 bytes to shared memory, zeros where `bytes` is 0.
__device__ __forceinline__ void copy_sixteen(uint32_t target, const void* source, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
               "r"(bytes)
               : "memory");
}

// Where piece `piece` of row `row` of a stage lies: eight rows of one piece meet eight banks.
__device__ __forceinline__ uint32_t place(int row, int piece) {
  return static_cast<uint32_t>(row * row_bytes + ((piece ^ (row & 7)) << 4));
}

// How a block works. Width: rows of a, 8 or 16. Two blocks share a multiprocessor and take less
// than 99 KiB, which every card from sm_80 on has; or one `alone` has all of it, so that the rows
// of a are read half as often.
template <int Rows_, int Width_, bool alone>
struct Skinny {
  static constexpr int Rows = Rows_, Width = Width_;
  static constexpr int warps = alone ? 16 : 8;
  static constexpr int blocks = alone ? 1 : 2;  // of a multiprocessor
  static constexpr int stages = alone ? 8 : Rows == 32 ? 4 : Width == 8 ? 8 : 6;
  static constexpr size_t stage_bytes = size_t{Rows + Width} * row_bytes;
  static constexpr size_t shared_bytes = stages * stage_bytes;
};

// gated: half of the rows are those of gate, the others the same rows of up. The first
// stages of the weights are asked for before the kernel that makes `a` has ended.
template <typename Way, bool gated, typename Out>
__global__ void __launch_bounds__(32 * Way::warps, Way::blocks)
    skinny_kernel(SkinnyShape shape, Out* out) {
  constexpr int Rows = Way::Rows, Width = Way::Width;
  constexpr int warps = Way::warps, stages = Way::stages;
  constexpr int row_tiles = Rows / 16;
  constexpr int groups = warps / row_tiles;      // warps that share the columns of a row tile
  constexpr int steps = chunk / 16 / groups;     // products of a warp in a stage
  constexpr int most = gated ? Rows / 2 : Rows;  // outputs of a block
  extern __shared__ __align__(128) char memory[];
  let_next_start();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int tile = warp % row_tiles, group = warp / row_tiles;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * shape.outputs;
  const auto columns = static_cast<int>(shape.k);
  const int chunks = (columns + chunk - 1) / chunk;
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const auto stage_at = [&](int number) {
    return shared +
           static_cast<uint32_t>(number % stages) * static_cast<uint32_t>(Way::stage_bytes);
  };
  // A warp brings whole rows: lane by lane the pieces of row `warp`, of the one eight below it, …
  static_assert(pieces == 32);
  const __nv_bfloat16* row_start[Rows / warps];  // null: there is none
#pragma unroll
  for (int i = 0; i < Rows / warps; ++i) {
    const int row = warp + i * warps;
    const int64_t own = first + row % most;
    const bool inside = row % most < shape.outputs && own < shape.n;
    const int64_t from = row / most * shape.n + own;
    row_start[i] = inside ? shape.weight + from * shape.weight_stride : nullptr;
  }
  const auto fetch_weights = [&](int number) {
    if (number >= chunks) return;
    const int column = number * chunk + lane * 8;
#pragma unroll
    for (int i = 0; i < Rows / warps; ++i) {
      const bool inside = row_start[i] != nullptr && column < columns;
      copy_sixteen(stage_at(number) + place(warp + i * warps, lane),
                   inside ? row_start[i] + column : shape.weight, inside ? 16 : 0);
    }
  };
  const auto fetch_rows = [&](int number) {
    if (number < chunks) {
#pragma unroll
      for (int i = thread; i < Width * pieces; i += 32 * warps) {
        const int row = i / pieces, piece = i % pieces, column = number * chunk + piece * 8;
        const bool inside = row < shape.m && column < columns;
        copy_sixteen(stage_at(number) + Rows * row_bytes + place(row, piece),
                     shape.a + (inside ? row * shape.a_stride + column : 0), inside ? 16 : 0);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  for (int i = 0; i < stages - 1; ++i) fetch_weights(i);
  for (int part = 0; part < (gated ? 2 : 1); ++part) {
    fetch_bias(shape.bias, shape.bias_type, part * shape.n + first,
               static_cast<int>(min(int64_t{shape.outputs}, shape.n - first)));
  }
  wait_for_previous();
  for (int i = 0; i < stages - 1; ++i) fetch_rows(i);
  // What the thread's first sum is added to comes while the sum is made.
  const auto target_of = [&](int i) {  // null: there is none
    const int column = i % shape.outputs, row = i / shape.outputs;
    const bool inside = row < shape.m && first + column < shape.n;
    return inside ? out + row * shape.out_stride + first + column : nullptr;
  };
  Out* const own = target_of(thread);
  const float base = shape.accumulate && own != nullptr ? to_float(*own) : 0;

  float sum[Width / 8][4] = {};
  for (int number = 0; number < chunks; ++number) {
    asm volatile("cp.async.wait_group %0;" ::"n"(stages - 2) : "memory");
    __syncthreads();  // all have the stage, and all are through with the one before it
    fetch_weights(number + stages - 1);
    fetch_rows(number + stages - 1);
    const uint32_t weights = stage_at(number), rows = weights + Rows * row_bytes;
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      const int piece = (group * steps + step) * 2;
      uint32_t left[4], right[4];
      load_four(left, weights + place(tile * 16 + lane % 16, piece + lane / 16));
      // Lanes 0 to 15 name the two matrices of eight rows of a; the others those of the next eight,
      // or the same again.
      load_four(right, rows + place((lane / 16 * 8 + lane % 8) % Width, piece + lane / 8 % 2));
      multiply(sum[0], left, right[0], right[1]);
      if constexpr (Width == 16) multiply(sum[1], left, right[2], right[3]);
    }
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  auto* sums = reinterpret_cast<float*>(memory);  // [groups, Width, Rows]
#pragma unroll
  for (int j = 0; j < Width / 2; ++j) {
    const int row = tile * 16 + lane / 4 + j / 2 % 2 * 8;
    const int column = j / 4 * 8 + lane % 4 * 2 + j % 2;
    sums[(group * Width + column) * Rows + row] = sum[j / 4][j % 4];
  }
  __syncthreads();
  for (int i = thread; i < Width * shape.outputs; i += 32 * warps) {
    const int column = i % shape.outputs, row = i / shape.outputs;
    Out* const target = i == thread ? own : target_of(i);
    if (target == nullptr) continue;
    const auto total = [&](int at) {
      float all = 0;
#pragma unroll
      for (int g = 0; g < groups; ++g) all += sums[(g * Width + row) * Rows + at];
      return all;
    };
    float value = total(column) + bias_of(shape.bias, shape.bias_type, first + column);
    if constexpr (gated) {
      const float up =
          total(most + column) + bias_of(shape.bias, shape.bias_type, shape.n + first + column);
      value = value / (1.0f + __expf(-value)) * up;
    }
    if (shape.accumulate) value += i == thread ? base : to_float(*target);
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

bool skinny_fits(const Context& context, const MatmulWork& work) {
  // With more than eight rows and so many columns the library is faster.
  const int64_t m = work.out.size(0), n = work.out.size(1);
  if (m > skinny_rows || (m > 8 && n > 32768)) return false;
  return Skinny<32, 16, false>::shared_bytes <= most_shared_memory(context) &&
         work.a.dtype() == DType::bf16 && work.weight.dtype() == DType::bf16 &&
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
  SkinnyShape shape = skinny_shape(work);
  const cudaStream_t stream = enter(context);
  const auto run = [&]<typename Way, bool Gated, typename Out>(Way, Out) {
    constexpr size_t bytes = Way::shared_bytes;
    const auto kernel = skinny_kernel<Way, Gated, Out>;
    check(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "preparing a product");
    launch_early({blocks_for(n, shape.outputs), 32 * Way::warps, bytes, stream}, "matmul", kernel,
                 shape, device_data<Out>(work.out));
  };
  const int64_t processors = multiprocessors(context.device.index);
  const bool alone = !gated && m > 8 && n > 16 * processors && n <= 32 * processors &&
                     Skinny<32, 16, true>::shared_bytes <= most_shared_memory(context);
  const int64_t slots = (alone ? 1 : 2) * processors;  // blocks that run at once
  const int most = alone ? 32 : gated || n <= 16 * slots ? 16 : 32;
  shape.outputs = static_cast<int>(blocks_for(n, slots * blocks_for(n, most * slots)));
  with_activation(work.out.dtype(), [&]<typename Out>(Out type) {
    const auto wide = [&]<int Width>() {
      if (gated) return run.template operator()<Skinny<32, Width, false>, true>({}, type);
      if (most == 16) return run.template operator()<Skinny<16, Width, false>, false>({}, type);
      run.template operator()<Skinny<32, Width, false>, false>({}, type);
    };
    if (alone) return run.template operator()<Skinny<32, 16, true>, false>({}, type);
    m <= 8 ? wide.template operator()<8>() : wide.template operator()<16>();
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
