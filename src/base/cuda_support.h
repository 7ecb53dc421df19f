// What every .cu file needs: errors as kinora::Error, the stream of a context, launches that are
// checked, and the few device functions that all kernels share. Only .cu files include this.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "base/context.h"
#include "base/cuda_host.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/tensor.h"

namespace kinora::cuda {

// Blocks of `threads` that cover `count` items, at least one.
inline unsigned int blocks_for(int64_t count, int64_t threads) {
  const int64_t blocks = (count + threads - 1) / threads;
  return static_cast<unsigned int>(blocks < 1 ? 1 : blocks);
}

// A grid for a loop that strides over `count` items: enough blocks to fill the device.
inline unsigned int strided_blocks(const Context& context, int64_t count, int64_t threads) {
  const int64_t most = int64_t{multiprocessors(context.device.index)} * 16;
  const unsigned int needed = blocks_for(count, threads);
  return needed < most ? needed : static_cast<unsigned int>(most);
}

// Bytes of shared memory that a block can have at most.
inline size_t most_shared_memory(const Context& context) {
  int bytes = 0;
  check(
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, context.device.index),
      "reading the properties of a GPU");
  return static_cast<size_t>(bytes);
}

struct Launch {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  unsigned int cluster = 1;  // blocks that can read each other's shared memory (launch_early)
};

template <typename... Parameters, typename... Arguments>
void launch(const Launch& how, const char* what, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  kernel<<<how.grid, how.block, how.shared_bytes, how.stream>>>(
      std::forward<Arguments>(arguments)...);
  check(cudaGetLastError(), what);
}

// The same for kernels that begin with `wait_for_previous` and whose work before it does not
// depend on the kernel before: on cards that can, they start while that one still runs.
template <typename... Parameters, typename... Arguments>
void launch_early(const Launch& how, const char* what, void (*kernel)(Parameters...),
                  Arguments&&... arguments) {
  cudaLaunchAttribute attributes[2]{};
  unsigned int used = 0;
  if (starts_early()) {
    attributes[used].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[used++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (how.cluster > 1) {
    attributes[used].id = cudaLaunchAttributeClusterDimension;
    attributes[used++].val.clusterDim = {how.cluster, 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = how.grid;
  config.blockDim = how.block;
  config.dynamicSmemBytes = how.shared_bytes;
  config.stream = how.stream;
  config.attrs = attributes;
  config.numAttrs = used;
  // Kernels share a multiprocessor only if they want its memory divided in the same way.
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        what);
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), what);
}

// Lets the next kernel of the stream start (if it was launched early) once all blocks got here.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// Everything that earlier kernels of the stream wrote is there after this.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The types of base/dtype.h as the device computes with them.
template <typename T>
struct device_type {
  using type = T;
};
template <>
struct device_type<bf16> {
  using type = __nv_bfloat16;
};
template <>
struct device_type<f16> {
  using type = __half;
};

// Calls body(T()) with the device type that a floating-point dtype names.
template <class Body>
void with_float(DType type, const Body& body) {
  switch (type) {
    case DType::bf16:
      return body(__nv_bfloat16());
    case DType::f16:
      return body(__half());
    default:
      return body(float());
  }
}
// The types that activations have on a GPU.
template <class Body>
void with_activation(DType type, const Body& body) {
  if (type == DType::bf16) return body(__nv_bfloat16());
  return body(float());
}

template <typename T>
T* device_data(TensorView view) {
  return reinterpret_cast<T*>(view.raw());
}
template <typename T>
const T* device_data(ConstTensorView view) {
  return reinterpret_cast<const T*>(view.raw());
}

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }

template <typename T>
__device__ __forceinline__ T from_float(float value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return __float2bfloat16_rn(value);
  if constexpr (std::is_same_v<T, __half>) return __float2half_rn(value);
  if constexpr (std::is_same_v<T, float>) return value;
}

__device__ __forceinline__ float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

// Sum or maximum over a block of at most 1024 threads, the same in every thread. `scratch` is 32
// floats of shared memory; a barrier stands before and after its use.
template <class Join>
__device__ __forceinline__ float block_join(float value, float neutral, float* scratch,
                                            const Join& join) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = (static_cast<int>(blockDim.x) + 31) / 32;
  for (int distance = 16; distance > 0; distance /= 2) {
    value = join(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  __syncthreads();
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  value = lane < warps ? scratch[lane] : neutral;
  for (int distance = 16; distance > 0; distance /= 2) {
    value = join(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}
__device__ __forceinline__ float block_sum(float value, float* scratch) {
  return block_join(value, 0.0f, scratch, [](float a, float b) { return a + b; });
}
__device__ __forceinline__ float block_max(float value, float* scratch) {
  return block_join(value, -INFINITY, scratch, [](float a, float b) { return fmaxf(a, b); });
}

}  // namespace kinora::cuda
