// The few CUDA runtime calls that base/ needs, kept behind plain C++ so that only device_cuda.cu
// sees the CUDA headers. Without a CUDA compiler device_no_cuda.cc stands in its place.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/device.h"

namespace kinora::cuda {

std::vector<CudaDeviceInfo> devices(std::string& why_none);
void* allocate(int device, size_t bytes);  // throws a resource error
void release(int device, void* data) noexcept;
void copy(void* target, const void* source, size_t bytes);  // any direction, waits for the end

}  // namespace kinora::cuda
