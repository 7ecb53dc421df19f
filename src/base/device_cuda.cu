#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>

#include "base/cuda_support.h"
#include "base/device_cuda.h"
#include "base/gpu.h"
#include "base/gpu_account.h"

namespace kinora::cuda {
namespace {

std::string mebibytes(int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

// The pool of one device, made at first use. It keeps what it was given: memory goes back to the
// driver only when something else on the device runs short.
cudaMemPool_t pool_of(int device) {
  static std::array<std::once_flag, most_devices> once;
  static std::array<cudaMemPool_t, most_devices> pools{};
  const auto at = static_cast<size_t>(device);
  std::call_once(once.at(at), [&] {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = device;
    check(cudaMemPoolCreate(&pools[at], &properties), "making a pool of GPU memory");
    uint64_t keep = UINT64_MAX;
    check(cudaMemPoolSetAttribute(pools[at], cudaMemPoolAttrReleaseThreshold, &keep),
          "setting up a pool of GPU memory");
  });
  return pools[at];
}

}  // namespace

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw Error(status == cudaErrorMemoryAllocation ? ErrorKind::resource : ErrorKind::internal,
              std::string(what) + " failed: " + cudaGetErrorString(status));
}

cudaStream_t enter(const Context& context) {
  check(cudaSetDevice(context.device.index), "selecting a GPU");
  return static_cast<cudaStream_t>(context.stream);
}

int multiprocessors(int device) {
  static std::array<std::atomic<int>, most_devices> known{};
  std::atomic<int>& count = known.at(static_cast<size_t>(device));
  if (count.load() == 0) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device),
          "reading the properties of a GPU");
    count.store(value);
  }
  return count.load();
}

// KINORA_LAUNCHES=graphs and =plain are for tools that watch one kernel at a time.
bool starts_early() {
  static const bool wanted = std::getenv("KINORA_LAUNCHES") == nullptr;
  if (!wanted) return false;
  static std::array<std::atomic<int>, most_devices> known{};  // the major capability
  int device = 0;
  check(cudaGetDevice(&device), "asking for the GPU in use");
  std::atomic<int>& major = known.at(static_cast<size_t>(device));
  if (major.load() == 0) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, device),
          "reading the properties of a GPU");
    major.store(value);
  }
  return major.load() >= 9;
}

std::vector<CudaDeviceInfo> devices(std::string& why_none) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    why_none = status == cudaSuccess || status == cudaErrorNoDevice
                   ? "no NVIDIA GPU on this machine"
               : status == cudaErrorInsufficientDriver
                   ? "no NVIDIA driver, or one too old for this kinora; install a newer one"
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

GpuAccount& GpuAccount::of(int device) {
  static std::array<GpuAccount, most_devices> accounts;
  return accounts.at(static_cast<size_t>(device));
}

void GpuAccount::take(int device, int64_t bytes) {
  const int64_t now = used.fetch_add(bytes) + bytes;
  const int64_t limit = budget.load();
  if (limit > 0 && now > limit) {
    used.fetch_sub(bytes);
    throw Error(ErrorKind::resource, "the budget of " + mebibytes(limit) + " on " +
                                         to_string(Device::cuda(device)) +
                                         " is spent: " + mebibytes(bytes) +
                                         " more were needed; raise the budget or use fewer frames");
  }
  int64_t highest = peak.load();
  while (now > highest && !peak.compare_exchange_weak(highest, now)) {
  }
}

void GpuAccount::give_back(int64_t bytes) noexcept { used.fetch_sub(bytes); }

void refuse_memory(int device, size_t bytes) {
  size_t free = 0, total = 0;
  cudaGetLastError();
  cudaMemGetInfo(&free, &total);
  throw Error(ErrorKind::resource,
              "out of memory on " + to_string(Device::cuda(device)) + ": " +
                  mebibytes(static_cast<int64_t>(bytes)) + " more are needed, " +
                  mebibytes(static_cast<int64_t>(free)) + " of " +
                  mebibytes(static_cast<int64_t>(total)) +
                  " are free; use fewer or smaller frames, or the device cpu",
              ErrorHint::use_cpu);
}

void trim_pool(int device) noexcept {
  wait_for_device();
  drop_spare_ranges(Device::cuda(device));
  cudaMemPoolTrimTo(pool_of(device), 0);
}

void* allocate(int device, size_t bytes) {
  check(cudaSetDevice(device), "selecting a GPU");
  GpuAccount& account = GpuAccount::of(device);
  account.take(device, static_cast<int64_t>(bytes));
  void* data = nullptr;
  const size_t wanted = bytes == 0 ? 1 : bytes;
  cudaError_t status = cudaMallocFromPoolAsync(&data, wanted, pool_of(device), nullptr);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    trim_pool(device);
    status = cudaMallocFromPoolAsync(&data, wanted, pool_of(device), nullptr);
  }
  if (status != cudaSuccess) {
    account.give_back(static_cast<int64_t>(bytes));
    if (status == cudaErrorMemoryAllocation) refuse_memory(device, bytes);
    check(status, "allocating GPU memory");
  }
  return data;
}

void release(int device, void* data, size_t bytes) noexcept {
  GpuAccount::of(device).give_back(static_cast<int64_t>(bytes));
  cudaSetDevice(device);
  cudaFreeAsync(data, nullptr);
}

void copy(void* target, const void* source, size_t bytes) {
  check(cudaMemcpy(target, source, bytes, cudaMemcpyDefault), "copying to or from a GPU");
}

}  // namespace kinora::cuda
