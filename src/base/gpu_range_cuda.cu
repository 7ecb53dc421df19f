// Memory that grows in place. On a device by CUDA's virtual memory calls, which belong to the
// driver; they are asked of it at run time, so that the program starts where there is none. On the
// host by addresses that are reserved once and pinned chunk by chunk.
#include <cuda.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>
#include <vector>

#include "base/cuda_support.h"
#include "base/gpu.h"
#include "base/gpu_account.h"

namespace kinora {
namespace {

struct Driver {
  CUresult (*granularity)(size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags);
  CUresult (*reserve)(CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long);
  CUresult (*release_addresses)(CUdeviceptr, size_t);
  CUresult (*create)(CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*,
                     unsigned long long);
  CUresult (*release)(CUmemGenericAllocationHandle);
  CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
  CUresult (*unmap)(CUdeviceptr, size_t);
  CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t);

  static const Driver& get() {
    static const Driver driver;
    return driver;
  }

 private:
  Driver() {
    find("cuMemGetAllocationGranularity", granularity);
    find("cuMemAddressReserve", reserve);
    find("cuMemAddressFree", release_addresses);
    find("cuMemCreate", create);
    find("cuMemRelease", release);
    find("cuMemMap", map);
    find("cuMemUnmap", unmap);
    find("cuMemSetAccess", set_access);
  }
  template <typename Function>
  static void find(const char* name, Function*& function) {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult result{};
    cuda::check(cudaGetDriverEntryPointByVersion(name, &address, 11000, cudaEnableDefault, &result),
                "asking the NVIDIA driver for its virtual memory calls");
    if (result != cudaDriverEntryPointSuccess) {
      throw Error(ErrorKind::unsupported,
                  std::string("the NVIDIA driver has no ") + name + "; install a newer one");
    }
    function = reinterpret_cast<Function*>(address);
  }
};

void check_driver(CUresult status, const char* what) {
  if (status == CUDA_SUCCESS) return;
  throw Error(ErrorKind::internal, std::string(what) + " failed: CUDA driver error " +
                                       std::to_string(static_cast<int>(status)));
}

CUmemAllocationProp properties_of(Device device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device.index;
  return properties;
}

size_t granularity_of(Device device) {
  const CUmemAllocationProp properties = properties_of(device);
  size_t bytes = 0;
  check_driver(Driver::get().granularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
               "asking for the unit of GPU memory");
  return bytes;
}

constexpr int populate_write = 23;  // MADV_POPULATE_WRITE, since Linux 5.14

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

CUdeviceptr address(const std::byte* data) { return reinterpret_cast<CUdeviceptr>(data); }

}  // namespace

struct GpuRange::Chunks {
  struct Chunk {
    CUmemGenericAllocationHandle handle;
    size_t bytes;
  };
  size_t unit = 0;
  std::vector<Chunk> list;
  size_t used = 0;  // chunks within the range's capacity; those behind wait to be used again

  size_t mapped() const {
    size_t bytes = 0;
    for (const Chunk& chunk : list) bytes += chunk.bytes;
    return bytes;
  }
};

// Ranges that nobody has, with their memory. Every fork of a memory takes two for each layer, and
// the driver needs some tenths of a millisecond to make one.
class GpuRange::Spares {
 public:
  static Spares& of(int device) {
    static auto& all = *new std::array<Spares, cuda::most_devices>;  // outlives CUDA's end
    return all.at(static_cast<size_t>(device));
  }

  // Of those with room for this many addresses: the smallest with `likely` bytes, else the largest.
  bool take(size_t limit, size_t likely, GpuRange& out) {
    const std::lock_guard lock(turn_);
    size_t best = spare_.size(), best_bytes = 0;
    for (size_t i = 0; i < spare_.size(); ++i) {
      if (spare_[i].limit_ != limit) continue;
      const size_t bytes = spare_[i].chunks_->mapped();
      const bool better =
          best_bytes < likely ? bytes > best_bytes : bytes >= likely && bytes < best_bytes;
      if (best < spare_.size() && !better) continue;
      best = i;
      best_bytes = bytes;
    }
    if (best == spare_.size()) return false;
    out = std::move(spare_[best]);
    spare_.erase(spare_.begin() + static_cast<int64_t>(best));
    return true;
  }

  // True: it has been taken. All work with it has ended.
  bool keep(GpuRange& range) {
    const std::lock_guard lock(turn_);
    size_t bytes = range.chunks_->mapped();
    for (const GpuRange& other : spare_) bytes += other.chunks_->mapped();
    if (bytes > most_bytes(range.device_)) return false;
    spare_.push_back(std::move(range));
    return true;
  }

  void drop() {
    const std::lock_guard lock(turn_);
    for (GpuRange& range : spare_) range.unmap();
    spare_.clear();
  }

 private:
  // A sixty-fourth of the GPU's memory.
  size_t most_bytes(Device device) {
    if (most_ == 0) most_ = static_cast<size_t>(gpu_memory(device).total) / 64;
    return most_;
  }

  std::mutex turn_;
  std::vector<GpuRange> spare_;
  size_t most_ = 0;
};

GpuRange::GpuRange(Device device, size_t limit, size_t likely) : device_(device) {
  cuda::check(cudaSetDevice(device.index), "selecting a GPU");
  cuda::check(cudaFree(nullptr), "starting the GPU");
  const size_t unit = granularity_of(device);
  const size_t rounded = round_up(std::max<size_t>(limit, 1), unit);
  if (Spares::of(device.index).take(rounded, likely, *this)) return;
  CUdeviceptr start = 0;
  check_driver(Driver::get().reserve(&start, rounded, 0, 0, 0), "reserving GPU addresses");
  data_ = reinterpret_cast<std::byte*>(start);
  limit_ = rounded;
  chunks_ = new Chunks{unit, {}};
}

GpuRange::~GpuRange() { release(); }

GpuRange::GpuRange(GpuRange&& other) noexcept
    : device_(other.device_),
      data_(std::exchange(other.data_, nullptr)),
      limit_(std::exchange(other.limit_, 0)),
      capacity_(std::exchange(other.capacity_, 0)),
      chunks_(std::exchange(other.chunks_, nullptr)) {}

GpuRange& GpuRange::operator=(GpuRange&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(limit_, other.limit_);
  std::swap(capacity_, other.capacity_);
  std::swap(chunks_, other.chunks_);
  return *this;
}

void GpuRange::release() noexcept {
  if (data_ == nullptr) return;
  if (capacity_ > 0) {
    cudaSetDevice(device_.index);
    cuda::wait_for_device();
    cuda::GpuAccount::of(device_.index).give_back(static_cast<int64_t>(capacity_));
    capacity_ = chunks_->used = 0;
  }
  if (!chunks_->list.empty() && Spares::of(device_.index).keep(*this)) return;
  unmap();
}

// Of a range without capacity.
void GpuRange::unmap() noexcept {
  drop_unused();
  Driver::get().release_addresses(address(data_), limit_);
  delete chunks_;
  data_ = nullptr;
  chunks_ = nullptr;
}

void GpuRange::drop_unused() noexcept {
  const Driver& driver = Driver::get();
  for (size_t end = chunks_->mapped(); chunks_->list.size() > chunks_->used;) {
    const Chunks::Chunk last = chunks_->list.back();
    end -= last.bytes;
    driver.unmap(address(data_) + end, last.bytes);
    driver.release(last.handle);
    chunks_->list.pop_back();
  }
}

void GpuRange::reserve(size_t bytes) {
  if (bytes <= capacity_) return;
  if (bytes > limit_) {
    throw Error(ErrorKind::resource, "a row store on a GPU has reached its limit of " +
                                         std::to_string(limit_) + " bytes in one layer");
  }
  cuda::check(cudaSetDevice(device_.index), "selecting a GPU");
  cuda::GpuAccount& account = cuda::GpuAccount::of(device_.index);
  for (; chunks_->used < chunks_->list.size() && capacity_ < bytes; ++chunks_->used) {
    const size_t ready = chunks_->list[chunks_->used].bytes;
    account.take(device_.index, static_cast<int64_t>(ready));
    capacity_ += ready;
  }
  if (bytes <= capacity_) return;
  const size_t more = round_up(bytes - capacity_, chunks_->unit);
  account.take(device_.index, static_cast<int64_t>(more));
  const Driver& driver = Driver::get();
  const CUmemAllocationProp properties = properties_of(device_);
  CUmemGenericAllocationHandle handle = 0;
  CUresult status = driver.create(&handle, more, &properties, 0);
  if (status == CUDA_ERROR_OUT_OF_MEMORY) {
    cuda::trim_pool(device_.index);
    status = driver.create(&handle, more, &properties, 0);
  }
  if (status == CUDA_SUCCESS) {
    status = driver.map(address(data_) + capacity_, more, 0, handle, 0);
    if (status != CUDA_SUCCESS) driver.release(handle);
  }
  if (status != CUDA_SUCCESS) {
    account.give_back(static_cast<int64_t>(more));
    if (status == CUDA_ERROR_OUT_OF_MEMORY) cuda::refuse_memory(device_.index, more);
    check_driver(status, "growing GPU memory");
  }
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  chunks_->list.push_back({handle, more});
  ++chunks_->used;
  capacity_ += more;
  check_driver(driver.set_access(address(data_) + capacity_ - more, more, &access, 1),
               "opening GPU memory");
}

void GpuRange::shrink(size_t bytes) {
  if (capacity_ == 0 || capacity_ - chunks_->list[chunks_->used - 1].bytes < bytes) return;
  cudaSetDevice(device_.index);
  cuda::wait_for_device();
  while (capacity_ > 0 && capacity_ - chunks_->list[chunks_->used - 1].bytes >= bytes) {
    const size_t last = chunks_->list[--chunks_->used].bytes;
    capacity_ -= last;
    cuda::GpuAccount::of(device_.index).give_back(static_cast<int64_t>(last));
  }
  drop_unused();
}

void drop_spare_ranges(Device device) noexcept { GpuRange::Spares::of(device.index).drop(); }

PinnedRange::PinnedRange(size_t limit) : limit_(round_up(std::max<size_t>(limit, 1), chunk)) {
  void* room = ::mmap(nullptr, limit_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) {
    throw Error(ErrorKind::resource,
                "out of memory: there are no addresses for " + std::to_string(limit_) + " bytes");
  }
  data_ = static_cast<std::byte*>(room);
  ::madvise(data_, limit_, MADV_HUGEPAGE);
}

PinnedRange::~PinnedRange() {
  if (data_ == nullptr) return;
  shrink(0);
  ::munmap(data_, limit_);
}

PinnedRange::PinnedRange(PinnedRange&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      limit_(std::exchange(other.limit_, 0)),
      capacity_(std::exchange(other.capacity_, 0)) {}

PinnedRange& PinnedRange::operator=(PinnedRange&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(limit_, other.limit_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

void PinnedRange::reserve(size_t bytes) {
  if (bytes > limit_) {
    throw Error(ErrorKind::resource, "rows in the computer's memory have reached their limit of " +
                                         std::to_string(limit_) + " bytes in one layer");
  }
  // The kernel clears new pages for several threads at the same time, while the driver pins for one
  // after another. Where this is not known it happens while pinning.
  if (capacity_ < bytes) {
    ::madvise(data_ + capacity_, round_up(bytes, chunk) - capacity_, populate_write);
  }
  while (capacity_ < bytes) {
    const cudaError_t status = cudaHostRegister(data_ + capacity_, chunk, cudaHostRegisterPortable);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw Error(ErrorKind::resource,
                  "out of memory: the computer has none left that a GPU could read");
    }
    cuda::check(status, "pinning host memory");
    capacity_ += chunk;
  }
}

void PinnedRange::shrink(size_t bytes) {
  const size_t kept = round_up(bytes, chunk);
  if (capacity_ <= kept) return;
  cuda::wait_for_device();
  for (; capacity_ > kept; capacity_ -= chunk) {
    cudaHostUnregister(data_ + capacity_ - chunk);
    ::madvise(data_ + capacity_ - chunk, chunk, MADV_DONTNEED);
  }
}

bool gpu_reads(const Context& context, const void* host) {
  cuda::enter(context);
  cudaPointerAttributes found{};
  if (cudaPointerGetAttributes(&found, host) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return found.type != cudaMemoryTypeUnregistered && found.devicePointer == host;
}

}  // namespace kinora
