// Walking over the rows of strided views on a GPU, four elements at a time where all views allow
// it. Only the .cu files of ops/ include this.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>

#include "base/cuda_support.h"

namespace kinora::cuda {

// Where each row of a view starts, in elements; a plain struct that goes to kernels by value.
struct DeviceRows {
  int64_t sizes[Shape::max_rank] = {};
  int64_t strides[Shape::max_rank] = {};
  int outer = 0;

  DeviceRows() = default;
  explicit DeviceRows(const ConstTensorView& view) : outer(std::max(0, view.rank() - 1)) {
    for (int axis = 0; axis < outer; ++axis) {
      sizes[axis] = view.size(axis);
      strides[axis] = view.stride(axis);
    }
  }
  __device__ __forceinline__ int64_t offset(int64_t row) const {
    int64_t sum = 0;
    // Constant indexes keep the arrays out of local memory.
#pragma unroll
    for (int axis = Shape::max_rank - 2; axis > 0; --axis) {
      if (axis >= outer) continue;
      const int64_t outside = row / sizes[axis];
      sum += (row - outside * sizes[axis]) * strides[axis];
      row = outside;
    }
    return sum + row * strides[0];
  }
};

inline int64_t width_of(const ConstTensorView& view) {
  return view.rank() == 0 ? 1 : view.size(view.rank() - 1);
}
inline int64_t rows_of(const ConstTensorView& view) {
  int64_t rows = 1;
  for (int axis = 0; axis + 1 < view.rank(); ++axis) rows *= view.size(axis);
  return rows;
}

// Whether `pack` elements can be loaded at once anywhere in a view.
inline bool takes_packs(const ConstTensorView& view, int64_t pack, bool one_row = false) {
  const auto bytes = static_cast<uintptr_t>(pack * dtype_size(view.dtype()));
  if (reinterpret_cast<uintptr_t>(view.raw()) % bytes != 0) return false;
  if (one_row) return view.elements() % pack == 0;
  if (width_of(view) % pack != 0) return false;
  bool fits = true;
  for (int axis = 0; axis + 1 < Shape::max_rank; ++axis) {
    fits = fits && (axis + 1 >= view.rank() || view.stride(axis) % pack == 0);
  }
  return fits;
}
inline bool all_take_fours(std::initializer_list<ConstTensorView> views) {
  return std::all_of(views.begin(), views.end(),
                     [](const ConstTensorView& view) { return takes_packs(view, 4); });
}

// `width` elements (1, 4, or 8 of a 16-bit type) from memory to f32 and back.
template <typename T, int width>
struct Pack {
  float values[width];

  __device__ __forceinline__ static Pack load(const T* at) {
    Pack pack;
    if constexpr (width == 1) {
      pack.values[0] = to_float(*at);
    } else if constexpr (sizeof(T) == 4) {
      const float4 raw = *reinterpret_cast<const float4*>(at);
      pack.values[0] = raw.x;
      pack.values[1] = raw.y;
      pack.values[2] = raw.z;
      pack.values[3] = raw.w;
    } else {
      using Raw = std::conditional_t<width == 8, uint4, uint2>;
      const Raw raw = *reinterpret_cast<const Raw*>(at);
      T parts[width];
      memcpy(parts, &raw, sizeof(raw));
      for (int i = 0; i < width; ++i) pack.values[i] = to_float(parts[i]);
    }
    return pack;
  }
  __device__ __forceinline__ void store(T* at) const {
    if constexpr (width == 1) {
      *at = from_float<T>(values[0]);
    } else if constexpr (sizeof(T) == 4) {
      *reinterpret_cast<float4*>(at) = make_float4(values[0], values[1], values[2], values[3]);
    } else {
      using Raw = std::conditional_t<width == 8, uint4, uint2>;
      T parts[width];
      for (int i = 0; i < width; ++i) parts[i] = from_float<T>(values[i]);
      Raw raw;
      memcpy(&raw, parts, sizeof(raw));
      *reinterpret_cast<Raw*>(at) = raw;
    }
  }
};

// out[i] = function(a[i], b[i]), over rows of `width` elements; blockIdx.y counts rows.
template <int pack, typename A, typename B, typename Out, class Function>
__global__ void map_kernel(const A* a, DeviceRows a_rows, const B* b, DeviceRows b_rows, Out* out,
                           DeviceRows out_rows, int64_t rows, int64_t width, Function function) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * pack;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * pack;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const A* a_row = a + a_rows.offset(row);
    const B* b_row = b + b_rows.offset(row);
    Out* out_row = out + out_rows.offset(row);
    for (int64_t at = first; at < width; at += step) {
      const auto left = Pack<A, pack>::load(a_row + at);
      const auto right = Pack<B, pack>::load(b_row + at);
      Pack<Out, pack> result;
#pragma unroll
      for (int k = 0; k < pack; ++k) result.values[k] = function(left.values[k], right.values[k]);
      result.store(out_row + at);
    }
  }
}

// out = function(a, b) element by element; a and b may be the same view.
template <typename A, typename B, typename Out, class Function>
void map_elements(const Context& context, const char* what, ConstTensorView a, ConstTensorView b,
                  TensorView out, const Function& function) {
  int64_t rows = rows_of(out), width = width_of(out);
  DeviceRows a_rows(a), b_rows(b), out_rows(out);
  if (rows == 0 || width == 0) return;
  const bool one_row = a.contiguous() && b.contiguous() && ConstTensorView(out).contiguous();
  if (one_row) {
    width *= rows;
    rows = 1;
    a_rows = b_rows = out_rows = DeviceRows();
  }
  const cudaStream_t stream = enter(context);
  const auto all_take = [&](int64_t pack) {
    return takes_packs(a, pack, one_row) && takes_packs(b, pack, one_row) &&
           takes_packs(out, pack, one_row);
  };
  const auto run = [&]<int pack>(std::integral_constant<int, pack>) {
    const auto threads =
        static_cast<unsigned int>(std::clamp<int64_t>((width / pack + 31) / 32 * 32, 32, 256));
    const dim3 grid(strided_blocks(context, width / pack, threads),
                    static_cast<unsigned int>(std::min<int64_t>(rows, 65535)));
    launch({grid, threads, 0, stream}, what, map_kernel<pack, A, B, Out, Function>,
           device_data<A>(a), a_rows, device_data<B>(b), b_rows, device_data<Out>(out), out_rows,
           rows, width, function);
  };
  if constexpr (sizeof(A) == 2 && sizeof(B) == 2 && sizeof(Out) == 2) {
    if (all_take(8)) return run(std::integral_constant<int, 8>());
  }
  if (all_take(4)) return run(std::integral_constant<int, 4>());
  run(std::integral_constant<int, 1>());
}

// A host array on the device, in stream order.
template <typename T>
Tensor upload(const Context& context, std::span<const T> values, DType bytes_as = DType::u8) {
  Tensor target(bytes_as, {static_cast<int64_t>(values.size_bytes())}, context.device);
  // In pieces that the driver takes along at once: with larger ones the host would wait for all
  // work before them.
  constexpr size_t piece = 64 * 1024;
  for (size_t begin = 0; begin < values.size_bytes(); begin += piece) {
    check(cudaMemcpyAsync(target.view().raw() + begin,
                          reinterpret_cast<const std::byte*>(values.data()) + begin,
                          std::min(piece, values.size_bytes() - begin), cudaMemcpyHostToDevice,
                          enter(context)),
          "copying to a GPU");
  }
  return target;
}

}  // namespace kinora::cuda
