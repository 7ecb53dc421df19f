// RMS norm and layer norm: a block or, where there are many narrow rows, a warp per row, sums in
// f32.
#include <bit>

#include "ops/cuda_kernels.h"
#include "ops/rows_cuda.h"

namespace kinora::cuda {
namespace {

// A weight vector of any floating-point type, read as f32.
struct Weights {
  const void* data;
  DType type;

  template <int pack>
  __device__ __forceinline__ Pack<float, pack> load(int64_t at) const {
    const auto as_f32 = [&]<typename T>(const T* values) {
      return std::bit_cast<Pack<float, pack>>(Pack<T, pack>::load(values + at));
    };
    if (type == DType::bf16) return as_f32(static_cast<const __nv_bfloat16*>(data));
    if (type == DType::f16) return as_f32(static_cast<const __half*>(data));
    return as_f32(static_cast<const float*>(data));
  }
};

struct NormShape {
  DeviceRows x, out;
  int64_t width;
  float epsilon;
};

// Packs of a row that a thread keeps in registers between the two passes.
constexpr int kept_packs = 4;

// `few`: rows that all run at once, as in decoding, where each kernel waits for the one before.
constexpr int64_t few_rows = 256;

template <int pack, bool few, typename X, typename Out>
__global__ void rms_norm_kernel(const X* x, Weights weight, Out* out, NormShape shape) {
  __shared__ float scratch[32];
  let_next_start();
  const int64_t row = blockIdx.x;
  const X* source = x + shape.x.offset(row);
  Out* target = out + shape.out.offset(row);
  const int step = static_cast<int>(blockDim.x) * pack;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * pack;
  // For few rows the weights come from memory, as much else was read since the last time, and they
  // wait for nobody. For many rows they are in a cache, and registers are better left to more rows.
  Pack<float, pack> scales[kept_packs];
#pragma unroll
  for (int k = 0; few && k < kept_packs; ++k) {
    if (first + k * step < shape.width) scales[k] = weight.load<pack>(first + k * step);
  }
  wait_for_previous();
  float held[kept_packs][pack];
  float squares = 0;
  const auto take = [&](int64_t at, float* values) {
    const auto value = Pack<X, pack>::load(source + at);
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      values[i] = value.values[i];
      squares += values[i] * values[i];
    }
  };
#pragma unroll
  for (int k = 0; k < kept_packs; ++k) {
    if (first + k * step < shape.width) take(first + k * step, held[k]);
  }
  for (int64_t at = first + kept_packs * step; at < shape.width; at += step) {
    float ignored[pack];
    take(at, ignored);
  }
  squares = block_sum(squares, scratch);
  const float factor = 1.0f / sqrtf(squares / static_cast<float>(shape.width) + shape.epsilon);
  const auto give = [&](int64_t at, const float* values, const Pack<float, pack>& scale) {
    Pack<Out, pack> result;
#pragma unroll
    for (int i = 0; i < pack; ++i) result.values[i] = values[i] * factor * scale.values[i];
    result.store(target + at);
  };
#pragma unroll
  for (int k = 0; k < kept_packs; ++k) {
    const int64_t at = first + k * step;
    if (at < shape.width) give(at, held[k], few ? scales[k] : weight.load<pack>(at));
  }
  for (int64_t at = first + kept_packs * step; at < shape.width; at += step) {
    const auto value = Pack<X, pack>::load(source + at);
    float values[pack];
#pragma unroll
    for (int i = 0; i < pack; ++i) values[i] = value.values[i];
    give(at, values, weight.load<pack>(at));
  }
}

// Many rows that a warp can keep in registers: warps do not wait for one another.
constexpr int row_warps = 8;
template <int packs>
constexpr int64_t most_width = int64_t{packs} * 32 * 4;

template <int packs, typename X, typename Out>
__global__ void __launch_bounds__(32 * row_warps)
    rms_norm_warp_kernel(const X* x, Weights weight, Out* out, NormShape shape, int64_t rows) {
  let_next_start();
  wait_for_previous();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * row_warps + threadIdx.x / 32;
  if (row >= rows) return;
  const X* source = x + shape.x.offset(row);
  Out* target = out + shape.out.offset(row);
  const auto width = static_cast<int>(shape.width), first = static_cast<int>(threadIdx.x) % 32 * 4;
  Pack<X, 4> held[packs];
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    if (first + k * 128 < width) held[k] = Pack<X, 4>::load(source + first + k * 128);
  }
  float squares = 0;
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    if (first + k * 128 >= width) continue;
#pragma unroll
    for (const float value : held[k].values) squares += value * value;
  }
  const float factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(width) + shape.epsilon);
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    const int at = first + k * 128;
    if (at >= width) continue;
    const auto scale = weight.load<4>(at);
    Pack<Out, 4> result;
#pragma unroll
    for (int i = 0; i < 4; ++i) result.values[i] = held[k].values[i] * factor * scale.values[i];
    result.store(target + at);
  }
}

template <int pack, typename X, typename Out>
__global__ void layer_norm_kernel(const X* x, Weights weight, Weights bias, Out* out,
                                  NormShape shape) {
  __shared__ float scratch[32];
  const int64_t row = blockIdx.x;
  const X* source = x + shape.x.offset(row);
  Out* target = out + shape.out.offset(row);
  const int step = static_cast<int>(blockDim.x) * pack;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * pack;
  const auto width = static_cast<float>(shape.width);
  float sum = 0;
  for (int64_t at = first; at < shape.width; at += step) {
    const auto value = Pack<X, pack>::load(source + at);
    for (int i = 0; i < pack; ++i) sum += value.values[i];
  }
  const float mean = block_sum(sum, scratch) / width;
  float squares = 0;
  for (int64_t at = first; at < shape.width; at += step) {
    const auto value = Pack<X, pack>::load(source + at);
    for (int i = 0; i < pack; ++i) {
      squares += (value.values[i] - mean) * (value.values[i] - mean);
    }
  }
  const float factor = 1.0f / sqrtf(block_sum(squares, scratch) / width + shape.epsilon);
  for (int64_t at = first; at < shape.width; at += step) {
    const auto value = Pack<X, pack>::load(source + at);
    const auto scale = weight.load<pack>(at);
    const auto shift = bias.load<pack>(at);
    Pack<Out, pack> result;
    for (int i = 0; i < pack; ++i) {
      result.values[i] = (value.values[i] - mean) * factor * scale.values[i] + shift.values[i];
    }
    result.store(target + at);
  }
}

// Calls body(pack, X, Out) for the types that models use.
template <class Body>
void with_norm_types(DType x, DType out, bool fours, const Body& body) {
  const auto pick_out = [&]<typename X>(X) {
    with_activation(out, [&]<typename Out>(Out) {
      if (fours) {
        body(std::integral_constant<int, 4>(), X(), Out());
      } else {
        body(std::integral_constant<int, 1>(), X(), Out());
      }
    });
  };
  with_activation(x, pick_out);
}

unsigned int threads_for(int64_t width, int pack) {
  const int64_t wanted = (width / pack / kept_packs + 31) / 32 * 32;
  return static_cast<unsigned int>(std::clamp<int64_t>(wanted, 32, 512));
}

}  // namespace

void rms_norm(const Context& context, ConstTensorView x, ConstTensorView weight, float epsilon,
              TensorView out) {
  const int64_t rows = rows_of(x), width = width_of(x);
  if (rows * width == 0) return;
  const NormShape shape{DeviceRows(x), DeviceRows(out), width, epsilon};
  const cudaStream_t stream = enter(context);
  with_norm_types(
      x.dtype(), out.dtype(), all_take_fours({x, out, weight}),
      [&]<int pack, typename X, typename Out>(std::integral_constant<int, pack>, X, Out) {
        if (pack == 4 && rows > few_rows && width <= most_width<16>) {
          return launch_early({blocks_for(rows, row_warps), 32 * row_warps, 0, stream}, "rms_norm",
                              width <= most_width<4> ? rms_norm_warp_kernel<4, X, Out>
                                                     : rms_norm_warp_kernel<16, X, Out>,
                              device_data<X>(x), Weights{weight.raw(), weight.dtype()},
                              device_data<Out>(out), shape, rows);
        }
        launch_early(
            {static_cast<unsigned int>(rows), threads_for(width, pack), 0, stream}, "rms_norm",
            rows <= few_rows ? rms_norm_kernel<pack, true, X, Out>
                             : rms_norm_kernel<pack, false, X, Out>,
            device_data<X>(x), Weights{weight.raw(), weight.dtype()}, device_data<Out>(out), shape);
      });
}

void layer_norm(const Context& context, ConstTensorView x, ConstTensorView weight,
                ConstTensorView bias, float epsilon, TensorView out) {
  const int64_t rows = rows_of(x), width = width_of(x);
  if (rows * width == 0) return;
  const NormShape shape{DeviceRows(x), DeviceRows(out), width, epsilon};
  const cudaStream_t stream = enter(context);
  with_norm_types(
      x.dtype(), out.dtype(), all_take_fours({x, out, weight, bias}),
      [&]<int pack, typename X, typename Out>(std::integral_constant<int, pack>, X, Out) {
        launch({static_cast<unsigned int>(rows), threads_for(width, pack), 0, stream}, "layer_norm",
               layer_norm_kernel<pack, X, Out>, device_data<X>(x),
               Weights{weight.raw(), weight.dtype()}, Weights{bias.raw(), bias.dtype()},
               device_data<Out>(out), shape);
      });
}

}  // namespace kinora::cuda
