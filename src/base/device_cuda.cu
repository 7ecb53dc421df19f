#include <cuda_runtime.h>

#include "base/device_cuda.h"
#include "base/error.h"

namespace kinora::cuda {
namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw Error(status == cudaErrorMemoryAllocation ? ErrorKind::resource : ErrorKind::internal,
              std::string(what) + " failed: " + cudaGetErrorString(status));
}

}  // namespace

std::vector<CudaDeviceInfo> devices(std::string& why_none) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    why_none = status == cudaSuccess || status == cudaErrorNoDevice
                   ? "no NVIDIA GPU on this machine"
                   : std::string("the NVIDIA driver says: ") + cudaGetErrorString(status);
    return {};
  }
  std::vector<CudaDeviceInfo> found;
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, index), "reading the properties of a GPU");
    found.push_back({properties.name, properties.major, properties.minor,
                     static_cast<int64_t>(properties.totalGlobalMem)});
  }
  return found;
}

void* allocate(int device, size_t bytes) {
  check(cudaSetDevice(device), "selecting a GPU");
  void* data = nullptr;
  check(cudaMalloc(&data, bytes), "allocating GPU memory");
  return data;
}

void release(int device, void* data) noexcept {
  cudaSetDevice(device);
  cudaFree(data);
}

void copy(void* target, const void* source, size_t bytes) {
  check(cudaMemcpy(target, source, bytes, cudaMemcpyDefault), "copying to or from a GPU");
}

}  // namespace kinora::cuda
