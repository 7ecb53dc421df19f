#include <cstring>

#include "base/device_cuda.h"
#include "base/error.h"

// This build has no CUDA compiler: there is no CUDA device, so nothing can ask for its memory.
namespace kinora::cuda {

std::vector<CudaDeviceInfo> devices(std::string& why_none) {
  why_none = "this kinora was built without CUDA; build it where nvcc is installed";
  return {};
}

void* allocate(int, size_t) {
  throw Error(ErrorKind::unsupported, "this kinora was built without CUDA");
}

void release(int, void*) noexcept {}

void copy(void* target, const void* source, size_t bytes) { std::memcpy(target, source, bytes); }

}  // namespace kinora::cuda
