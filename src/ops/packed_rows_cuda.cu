#include "ops/cuda_kernels.h"
#include "ops/packed_rows_cuda.cuh"
#include "ops/rows_cuda.h"

namespace kinora::cuda {
namespace {

// Rows of heads; strides in elements.
struct HeadRows {
  int64_t rows, heads, size;
  int64_t wide_row, wide_head;      // of the numbers
  int64_t packed_row, packed_head;  // of codes and scales
};

HeadRows shape_of(const ConstTensorView& wide, const ConstTensorView& packed) {
  return {wide.size(0),   wide.size(1),     wide.size(2),    wide.stride(0),
          wide.stride(1), packed.stride(0), packed.stride(1)};
}

// A warp takes the columns that share a scale.
template <typename T, typename X>
__global__ void pack_kernel(const X* x, uint8_t* out, HeadRows shape) {
  const int64_t blocks = (shape.size + columns_per_scale - 1) / columns_per_scale;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x / 32;
  const int64_t lane = threadIdx.x % 32;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
       i < shape.rows * shape.heads * blocks; i += step) {
    const int64_t block = i % blocks, head = i / blocks % shape.heads,
                  row = i / blocks / shape.heads;
    const int64_t first = block * columns_per_scale;
    const auto count = static_cast<int>(min(columns_per_scale, shape.size - first));
    const X* from = x + row * shape.wide_row + head * shape.wide_head + first;
    uint8_t* to = out + row * shape.packed_row + head * shape.packed_head;
    pack_columns<T>(lane < count ? to_float(from[lane]) : 0, count, to + first,
                    to + shape.size + block * static_cast<int64_t>(sizeof(bf16)));
  }
}

// A thread takes `pack` columns, which share a scale.
template <int pack, typename T, typename Out>
__global__ void widen_kernel(const uint8_t* rows, Out* out, HeadRows shape) {
  const int64_t packs = shape.size / pack;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < shape.rows * shape.heads * packs; i += step) {
    const int64_t column = i % packs * pack;
    const int64_t head = i / packs % shape.heads, row = i / packs / shape.heads;
    const uint8_t* from = rows + row * shape.packed_row + head * shape.packed_head;
    const float scale = load_scale(from + shape.size +
                                   column / columns_per_scale * static_cast<int64_t>(sizeof(bf16)));
    uint8_t codes[pack];
    if constexpr (pack == 4) {
      const uint32_t word = *reinterpret_cast<const uint32_t*>(from + column);
      memcpy(codes, &word, sizeof(word));
    } else {
      codes[0] = from[column];
    }
    Pack<Out, pack> values;
#pragma unroll
    for (int k = 0; k < pack; ++k) values.values[k] = __fmul_rn(code_value(codes[k], T()), scale);
    values.store(out + row * shape.wide_row + head * shape.wide_head + column);
  }
}

}  // namespace

void pack_rows(const Context& context, ConstTensorView x, TensorView out) {
  if (x.elements() == 0) return;
  const int64_t blocks = (x.size(2) + columns_per_scale - 1) / columns_per_scale;
  const int64_t threads = x.size(0) * x.size(1) * blocks * 32;
  const Launch how{strided_blocks(context, threads, 256), 256, 0, enter(context)};
  with_codes(out.dtype(), [&]<typename T>(T) {
    with_activation(x.dtype(), [&]<typename X>(X) {
      launch(how, "pack_rows", pack_kernel<T, X>, device_data<X>(x), device_data<uint8_t>(out),
             shape_of(x, out));
    });
  });
}

void widen_rows(const Context& context, ConstTensorView rows, TensorView out) {
  if (out.elements() == 0) return;
  const bool fours = out.size(2) % 4 == 0 && takes_packs(out, 4) &&
                     reinterpret_cast<uintptr_t>(rows.raw()) % 4 == 0 && rows.stride(0) % 4 == 0 &&
                     rows.stride(1) % 4 == 0;
  const Launch how{strided_blocks(context, out.elements() / (fours ? 4 : 1), 256), 256, 0,
                   enter(context)};
  with_codes(rows.dtype(), [&]<typename T>(T) {
    with_activation(out.dtype(), [&]<typename Out>(Out) {
      launch(how, "widen_rows", fours ? widen_kernel<4, T, Out> : widen_kernel<1, T, Out>,
             device_data<uint8_t>(rows), device_data<Out>(out), shape_of(out, rows));
    });
  });
}

}  // namespace kinora::cuda
