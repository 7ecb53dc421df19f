// What the kernels for products of few rows share.
#pragma once

#include "base/cuda_support.h"

namespace kinora::cuda {

// Whether blocks can read each other's shared memory. Cards that can have barriers in it, too.
inline bool has_clusters(const Context& context) {
  int has = 0;
  check(cudaDeviceGetAttribute(&has, cudaDevAttrClusterLaunch, context.device.index),
        "reading the properties of a GPU");
  return has != 0;
}

// Only these cards multiply by warpgroups: later ones have other instructions for it.
inline bool is_hopper(const Context& context) {
  int major = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, context.device.index),
        "reading the properties of a GPU");
  return major == 9;
}

inline bool starts_at_sixteen_bytes(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

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

// sum[16 × 8] += left[16 × 16] · right[16 × 8]
__device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void load_four(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// What the block's outputs [first, first + count) are increased by, on its way from memory long
// before it is used; by a whole block.
__device__ __forceinline__ void fetch_bias(const void* bias, DType type, int64_t first, int count) {
  if (bias == nullptr) return;
  const int64_t bytes = type == DType::f32 ? 4 : 2;
  const auto* begin = static_cast<const char*>(bias) + first * bytes;
  for (int64_t at = int64_t{threadIdx.x} * 32; at < count * bytes; at += int64_t{blockDim.x} * 32) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(begin + at));
  }
}

__device__ __forceinline__ float number_at(const void* data, DType type, int64_t at) {
  switch (type) {
    case DType::bf16:
      return to_float(static_cast<const __nv_bfloat16*>(data)[at]);
    case DType::f16:
      return to_float(static_cast<const __half*>(data)[at]);
    default:
      return static_cast<const float*>(data)[at];
  }
}

__device__ __forceinline__ float bias_of(const void* bias, DType type, int64_t at) {
  return bias == nullptr ? 0.0f : number_at(bias, type, at);
}

}  // namespace kinora::cuda
