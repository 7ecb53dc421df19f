#include <algorithm>

#include "ops/cuda_kernels.h"
#include "ops/rows_cuda.h"

namespace kinora::cuda {
namespace {

// Which rows: in device memory, or as an argument where they are few, as in decoding; that spares a
// copy.
struct ManyPlaces {
  const int32_t* rows;
  __device__ int64_t operator[](int64_t i) const { return rows[i]; }
};
struct FewPlaces {
  static constexpr size_t most = 64;
  int32_t rows[most];
  __device__ int64_t operator[](int64_t i) const { return rows[i]; }
};

// out[i] = x[rows[i]], or out[rows[i]] = x[i] when it scatters. A block takes one row.
template <int pack, bool scatters, typename X, typename Out, typename Places>
__global__ void move_rows_kernel(const X* x, int64_t x_stride, const __grid_constant__ Places rows,
                                 Out* out, int64_t out_stride, int64_t width) {
  const int64_t i = blockIdx.x;
  const int64_t named = rows[i];
  const X* source = x + (scatters ? i : named) * x_stride;
  Out* target = out + (scatters ? named : i) * out_stride;
  for (int64_t at = static_cast<int64_t>(threadIdx.x) * pack; at < width;
       at += static_cast<int64_t>(blockDim.x) * pack) {
    const auto value = Pack<X, pack>::load(source + at);
    Pack<Out, pack> result;
    for (int k = 0; k < pack; ++k) result.values[k] = value.values[k];
    result.store(target + at);
  }
}

template <bool scatters>
void move_rows(const Context& context, const char* what, ConstTensorView x,
               std::span<const int32_t> rows, TensorView out) {
  const int64_t width = out.size(1);
  if (rows.empty() || width == 0) return;
  const cudaStream_t stream = enter(context);
  const bool fours = all_take_fours({x, out});
  const auto threads = static_cast<unsigned int>(std::clamp<int64_t>(width / 4, 32, 256));
  const Launch how{static_cast<unsigned int>(rows.size()), threads, 0, stream};
  const auto move = [&]<typename Places>(const Places& places) {
    with_float(x.dtype(), [&]<typename X>(X) {
      with_activation(out.dtype(), [&]<typename Out>(Out) {
        launch(how, what,
               fours ? move_rows_kernel<4, scatters, X, Out, Places>
                     : move_rows_kernel<1, scatters, X, Out, Places>,
               device_data<X>(x), x.stride(0), places, device_data<Out>(out), out.stride(0), width);
      });
    });
  };
  if (rows.size() <= FewPlaces::most) {
    FewPlaces few{};
    std::copy(rows.begin(), rows.end(), few.rows);
    move(few);
  } else {
    const Tensor places = upload(context, rows);
    move(ManyPlaces{reinterpret_cast<const int32_t*>(places.view().raw())});
  }
}

// out[rows[i]] += x[i]. A block takes one row.
template <int pack>
__global__ void add_rows_kernel(const float* x, int64_t x_stride, const int32_t* rows, float* out,
                                int64_t out_stride, int64_t width) {
  const int64_t i = blockIdx.x;
  const float* source = x + i * x_stride;
  float* target = out + rows[i] * out_stride;
  for (int64_t at = static_cast<int64_t>(threadIdx.x) * pack; at < width;
       at += static_cast<int64_t>(blockDim.x) * pack) {
    const auto value = Pack<float, pack>::load(source + at);
    auto result = Pack<float, pack>::load(target + at);
    for (int k = 0; k < pack; ++k) result.values[k] += value.values[k];
    result.store(target + at);
  }
}

}  // namespace

void gather_rows(const Context& context, ConstTensorView table, std::span<const int32_t> rows,
                 TensorView out) {
  move_rows<false>(context, "gather_rows", table, rows, out);
}

void scatter_rows(const Context& context, ConstTensorView x, std::span<const int32_t> rows,
                  TensorView out) {
  move_rows<true>(context, "scatter_rows", x, rows, out);
}

void add_rows(const Context& context, ConstTensorView x, std::span<const int32_t> rows,
              TensorView out) {
  const int64_t width = out.size(1);
  if (rows.empty() || width == 0) return;
  const cudaStream_t stream = enter(context);
  const Tensor places = upload(context, rows);
  const auto threads = static_cast<unsigned int>(std::clamp<int64_t>(width / 4, 32, 256));
  launch({static_cast<unsigned int>(rows.size()), threads, 0, stream}, "add_rows",
         all_take_fours({x, out}) ? add_rows_kernel<4> : add_rows_kernel<1>, device_data<float>(x),
         x.stride(0), reinterpret_cast<const int32_t*>(places.view().raw()),
         device_data<float>(out), out.stride(0), width);
}

}  // namespace kinora::cuda
