#include "ops/cuda_kernels.h"
#include "ops/rows_cuda.h"

namespace kinora::cuda {
namespace {

// A grid [frames, h, w, c], whether or not the view has frames.
struct Grid {
  int64_t frames, height, width, channels;
  int64_t frame_stride, row_stride, token_stride;
  explicit Grid(const ConstTensorView& view) {
    const int base = view.rank() - 3;
    frames = base == 0 ? 1 : view.size(0);
    frame_stride = base == 0 ? 0 : view.stride(0);
    height = view.size(base);
    width = view.size(base + 1);
    channels = view.size(base + 2);
    row_stride = view.stride(base);
    token_stride = view.stride(base + 1);
  }
  __host__ __device__ int64_t offset(int64_t frame, int64_t y, int64_t x) const {
    return frame * frame_stride + y * row_stride + x * token_stride;
  }
  int64_t elements() const { return frames * height * width * channels; }
};

struct Place {
  int64_t frame, y, x, channel;
  __device__ Place(const Grid& grid, int64_t i) {
    channel = i % grid.channels;
    i /= grid.channels;
    x = i % grid.width;
    i /= grid.width;
    y = i % grid.height;
    frame = i / grid.height;
  }
};

struct Between {
  int64_t first, second;
  float share;
  // In f32 and in this order, as torch computes it; fused steps would round differently.
  __device__ Between(int64_t out, int64_t in_size, int64_t out_size) {
    const float ratio = static_cast<float>(in_size) / static_cast<float>(out_size);
    const float place =
        fmaxf(0.0f, __fsub_rn(__fmul_rn(ratio, __fadd_rn(static_cast<float>(out), 0.5f)), 0.5f));
    first = min(static_cast<int64_t>(place), in_size - 1);
    second = min(first + 1, in_size - 1);
    share = fminf(1.0f, fmaxf(0.0f, place - static_cast<float>(first)));
  }
};

template <typename X, typename Out>
__global__ void bilinear_kernel(const X* in, Grid from, Out* out, Grid to, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const Place at(to, i);
  const Between y(at.y, from.height, to.height), x(at.x, from.width, to.width);
  const auto read = [&](int64_t row, int64_t column) {
    return to_float(in[from.offset(at.frame, row, column) + at.channel]);
  };
  const float top = read(y.first, x.first) * (1.0f - x.share) + read(y.first, x.second) * x.share;
  const float bottom =
      read(y.second, x.first) * (1.0f - x.share) + read(y.second, x.second) * x.share;
  out[to.offset(at.frame, at.y, at.x) + at.channel] =
      from_float<Out>(top * (1.0f - y.share) + bottom * y.share);
}

template <typename X, typename Out>
__global__ void window_kernel(const X* in, Grid from, Out* out, Grid to, int64_t window,
                              bool takes_max, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const Place at(to, i);
  float joined = takes_max ? -INFINITY : 0.0f;
  for (int64_t k = 0; k < window * window; ++k) {
    const float value =
        to_float(in[from.offset(at.frame, at.y * window + k / window, at.x * window + k % window) +
                    at.channel]);
    joined = takes_max ? fmaxf(joined, value) : joined + value;
  }
  if (!takes_max) joined *= 1.0f / static_cast<float>(window * window);
  out[to.offset(at.frame, at.y, at.x) + at.channel] = from_float<Out>(joined);
}

}  // namespace

void bilinear_pool(const Context& context, ConstTensorView x, TensorView out) {
  const Grid from(x), to(out);
  const int64_t count = to.elements();
  if (count == 0) return;
  const Launch how{blocks_for(count, 256), 256, 0, enter(context)};
  with_activation(x.dtype(), [&]<typename X>(X) {
    with_activation(out.dtype(), [&]<typename Out>(Out) {
      launch(how, "bilinear_pool", bilinear_kernel<X, Out>, device_data<X>(x), from,
             device_data<Out>(out), to, count);
    });
  });
}

void window_pool(const Context& context, ConstTensorView x, int64_t window, cpu::PoolKind kind,
                 TensorView out) {
  const Grid from(x), to(out);
  const int64_t count = to.elements();
  if (count == 0) return;
  const Launch how{blocks_for(count, 256), 256, 0, enter(context)};
  with_activation(x.dtype(), [&]<typename X>(X) {
    with_activation(out.dtype(), [&]<typename Out>(Out) {
      launch(how, "window_pool", window_kernel<X, Out>, device_data<X>(x), from,
             device_data<Out>(out), to, window, kind == cpu::PoolKind::max, count);
    });
  });
}

}  // namespace kinora::cuda
