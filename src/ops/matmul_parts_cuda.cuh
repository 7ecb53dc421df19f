// What the kernels for products of few rows share.
#pragma once

#include "base/cuda_support.h"

namespace kinora::cuda {

// Weights pass through once: do not keep them in the first-level cache.
__device__ __forceinline__ uint4 load_once(const __nv_bfloat16* at) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(at));
  return value;
}

__device__ __forceinline__ uint32_t raw_of(__nv_bfloat162 value) {
  uint32_t raw;
  memcpy(&raw, &value, sizeof(raw));
  return raw;
}

__device__ __forceinline__ float bias_of(const void* bias, DType type, int64_t at) {
  if (bias == nullptr) return 0.0f;
  switch (type) {
    case DType::bf16:
      return to_float(static_cast<const __nv_bfloat16*>(bias)[at]);
    case DType::f16:
      return to_float(static_cast<const __half*>(bias)[at]);
    default:
      return static_cast<const float*>(bias)[at];
  }
}

}  // namespace kinora::cuda
