// Descriptions of tensors for the copy engine of Hopper cards.
#pragma once

#include <cuda.h>

#include <string>

#include "base/cuda_support.h"

namespace kinora::hopper {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, found at run time: programs do not link with the driver.
inline Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  cuda::check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                               cudaEnableDefault, &found),
              "looking for cuTensorMapEncodeTiled");
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    throw Error(ErrorKind::unsupported, "the NVIDIA driver is too old for tensor maps (CUDA 12)");
  }
  return reinterpret_cast<Encode>(function);
}

// A tensor of bf16 whose boxes arrive with rows of 128 bytes, swizzled as the tensor cores want
// them; what lies outside is read as zeros. Sizes and box begin with the innermost axis, strides
// (bytes) with the one after it.
inline CUtensorMap describe(const std::byte* data, uint32_t rank, const cuuint64_t* sizes,
                            const cuuint64_t* strides, const cuuint32_t* box) {
  static const Encode encode = find_encode();
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const CUresult status =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, const_cast<std::byte*>(data), sizes,
             strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw Error(ErrorKind::internal, "describing a matrix to the GPU failed with code " +
                                         std::to_string(static_cast<int>(status)));
  }
  return map;
}

}  // namespace kinora::hopper
