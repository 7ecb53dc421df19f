#include "ops/cuda_kernels.h"
#include "ops/rows_cuda.h"

namespace kinora::cuda {
namespace {

// Angles in double precision: positions far into a long video stay exact.
__global__ void rope_table_kernel(const int64_t* positions, int64_t axes, const double* frequencies,
                                  const int32_t* column_axes, int64_t rows, int64_t columns,
                                  double factor, float* cos_out, float* sin_out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * columns) return;
  const int64_t row = i / columns, column = i - row * columns;
  const double turn =
      static_cast<double>(positions[row * axes + column_axes[column]]) * frequencies[column];
  double sine = 0, cosine = 0;
  sincos(turn, &sine, &cosine);
  cos_out[i] = static_cast<float>(cosine * factor);
  sin_out[i] = static_cast<float>(sine * factor);
}

// One thread a pair (i, i + half) of one head.
template <typename X>
__global__ void apply_rope_kernel(const float* cos, int64_t cos_stride, const float* sin,
                                  int64_t sin_stride, X* x, int64_t row_stride, int64_t head_stride,
                                  int64_t rows, int64_t heads, int64_t half) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * heads * half) return;
  const int64_t column = i % half, head = i / half % heads, row = i / half / heads;
  const float c = cos[row * cos_stride + column], s = sin[row * sin_stride + column];
  X* first = x + row * row_stride + head * head_stride + column;
  X* second = first + half;
  const float x1 = to_float(*first), x2 = to_float(*second);
  *first = from_float<X>(x1 * c - x2 * s);
  *second = from_float<X>(x2 * c + x1 * s);
}

struct TurnedColumns {
  double frequencies[most_turned_pairs];
  int8_t axes[most_turned_pairs];
};

// One thread a pair (i, i + half) of all heads of a row.
template <typename X>
__global__ void rerotate_kernel(const __grid_constant__ TurnedColumns columns,
                                const int32_t* differences, X* x, int64_t row_stride,
                                int64_t head_stride, int64_t rows, int64_t heads, int64_t half) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * half) return;
  const int64_t column = i % half, row = i / half;
  const int32_t difference = differences[3 * row + columns.axes[column]];
  if (difference == 0) return;
  double sine = 0, cosine = 0;
  sincos(difference * columns.frequencies[column], &sine, &cosine);
  const auto c = static_cast<float>(cosine), s = static_cast<float>(sine);
  X* first = x + row * row_stride + column;
  for (int64_t head = 0; head < heads; ++head, first += head_stride) {
    const float x1 = to_float(*first), x2 = to_float(first[half]);
    *first = from_float<X>(x1 * c - x2 * s);
    first[half] = from_float<X>(x2 * c + x1 * s);
  }
}

struct SplitShape {
  int64_t qkv_stride, cos_stride, sin_stride;
  int64_t heads, kv_heads, half;
  int64_t query_row, query_head, key_row, key_head, value_row, value_head;
};

// One block per row: rotates queries and keys, copies values, each to its place.
template <int pack, typename X, typename Row>
__global__ void rope_split_kernel(const X* qkv, const float* cos, const float* sin, X* queries,
                                  Row* keys, Row* values, SplitShape shape) {
  const int64_t row = blockIdx.x;
  const X* source = qkv + row * shape.qkv_stride;
  const auto half = static_cast<int>(shape.half);
  const int packs = half / pack;  // of half a head
  const auto heads = static_cast<int>(shape.heads), kv_heads = static_cast<int>(shape.kv_heads);
  for (int i = static_cast<int>(threadIdx.x); i < (heads + 2 * kv_heads) * packs;
       i += static_cast<int>(blockDim.x)) {
    const int head = i / packs, column = (i - head * packs) * pack;
    const X* at = source + head * 2 * half + column;
    const auto x1 = Pack<X, pack>::load(at), x2 = Pack<X, pack>::load(at + half);
    const auto put = [&](auto* target, const float* first, const float* second) {
      using Target = std::remove_pointer_t<decltype(target)>;
      Pack<Target, pack> y1, y2;
#pragma unroll
      for (int k = 0; k < pack; ++k) {
        y1.values[k] = first[k];
        y2.values[k] = second[k];
      }
      y1.store(target + column);
      y2.store(target + half + column);
    };
    if (head >= heads + kv_heads) {
      put(values + row * shape.value_row + (head - heads - kv_heads) * shape.value_head, x1.values,
          x2.values);
      continue;
    }
    const auto c = Pack<float, pack>::load(cos + row * shape.cos_stride + column);
    const auto s = Pack<float, pack>::load(sin + row * shape.sin_stride + column);
    float y1[pack], y2[pack];
#pragma unroll
    for (int k = 0; k < pack; ++k) {
      y1[k] = x1.values[k] * c.values[k] - x2.values[k] * s.values[k];
      y2[k] = x2.values[k] * c.values[k] + x1.values[k] * s.values[k];
    }
    if (head < heads) {
      put(queries + row * shape.query_row + head * shape.query_head, y1, y2);
    } else {
      put(keys + row * shape.key_row + (head - heads) * shape.key_head, y1, y2);
    }
  }
}

}  // namespace

void rope_table(const Context& context, const RopeColumns& columns, TensorView cos,
                TensorView sin) {
  const int64_t count = cos.elements();
  if (count == 0) return;
  const cudaStream_t stream = enter(context);
  const Tensor positions = upload(context, columns.positions);
  const Tensor frequencies = upload(context, columns.frequencies);
  const Tensor axes = upload(context, columns.column_axes);
  launch({blocks_for(count, 256), 256, 0, stream}, "rope_table", rope_table_kernel,
         reinterpret_cast<const int64_t*>(positions.view().raw()), columns.axes,
         reinterpret_cast<const double*>(frequencies.view().raw()),
         reinterpret_cast<const int32_t*>(axes.view().raw()), cos.size(0), cos.size(1),
         columns.factor, device_data<float>(cos), device_data<float>(sin));
}

void apply_rope(const Context& context, ConstTensorView cos, ConstTensorView sin, TensorView x) {
  const int64_t count = x.elements() / 2;
  if (count == 0) return;
  const cudaStream_t stream = enter(context);
  with_activation(x.dtype(), [&]<typename X>(X) {
    launch({blocks_for(count, 256), 256, 0, stream}, "apply_rope", apply_rope_kernel<X>,
           device_data<float>(cos), cos.stride(0), device_data<float>(sin), sin.stride(0),
           device_data<X>(x), x.stride(0), x.stride(1), x.size(0), x.size(1), x.size(2) / 2);
  });
}

void rerotate(const Context& context, std::span<const double> frequencies,
              std::span<const int32_t> column_axes,
              std::span<const std::array<int32_t, 3>> differences, TensorView x) {
  const int64_t half = x.size(2) / 2, count = x.size(0) * half;
  if (count == 0) return;
  TurnedColumns columns{};
  for (size_t i = 0; i < frequencies.size(); ++i) {
    columns.frequencies[i] = frequencies[i];
    columns.axes[i] = static_cast<int8_t>(column_axes[i]);
  }
  const cudaStream_t stream = enter(context);
  const Tensor there = upload(context, differences);
  with_activation(x.dtype(), [&]<typename X>(X) {
    launch({blocks_for(count, 256), 256, 0, stream}, "rerotate", rerotate_kernel<X>, columns,
           reinterpret_cast<const int32_t*>(there.view().raw()), device_data<X>(x), x.stride(0),
           x.stride(1), x.size(0), x.size(1), half);
  });
}

void rope_split(const Context& context, ConstTensorView cos, ConstTensorView sin,
                ConstTensorView qkv, TensorView queries, TensorView keys, TensorView values) {
  const int64_t rows = qkv.size(0);
  if (rows == 0) return;
  const SplitShape shape{qkv.stride(0),  cos.stride(0),       sin.stride(0),     queries.size(1),
                         keys.size(1),   queries.size(2) / 2, queries.stride(0), queries.stride(1),
                         keys.stride(0), keys.stride(1),      values.stride(0),  values.stride(1)};
  const cudaStream_t stream = enter(context);
  const Launch how{static_cast<unsigned int>(rows), 256, 0, stream};
  const bool fours = shape.half % 4 == 0 && all_take_fours({cos, sin, qkv, queries, keys, values});
  with_activation(qkv.dtype(), [&]<typename X>(X) {
    with_activation(keys.dtype(), [&]<typename Row>(Row) {
      launch(how, "rope_split", fours ? rope_split_kernel<4, X, Row> : rope_split_kernel<1, X, Row>,
             device_data<X>(qkv), device_data<float>(cos), device_data<float>(sin),
             device_data<X>(queries), device_data<Row>(keys), device_data<Row>(values), shape);
    });
  });
}

}  // namespace kinora::cuda
