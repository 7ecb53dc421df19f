// The CUDA runtime calls that plain C++ needs, kept behind plain types so that only .cu files see
// the CUDA headers. Without a CUDA compiler no_cuda.cc takes their place. Other code uses
// base/gpu.h; buffers and gpu.h are built on this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/device.h"

namespace kinora::cuda {

std::vector<CudaDeviceInfo> devices(std::string& why_none);

// Stream-ordered memory of the device's pool. Throws a resource error when the budget or the
// device has no more.
void* allocate(int device, size_t bytes);
void release(int device, void* data, size_t bytes) noexcept;
void copy(void* target, const void* source, size_t bytes);  // any direction, waits for the end

}  // namespace kinora::cuda
