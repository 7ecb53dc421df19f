#include "base/no_cuda.h"

#include "base/device_cuda.h"
#include "base/gpu.h"

namespace kinora {
namespace cuda {

std::vector<CudaDeviceInfo> devices(std::string& why_none) {
  why_none = "this kinora was built without CUDA; build it where nvcc is installed";
  return {};
}

void* allocate(int, size_t) { no_cuda(); }
void release(int, void*, size_t) noexcept {}
void copy(void*, const void*, size_t) { no_cuda(); }

}  // namespace cuda

GpuMemory gpu_memory(Device) { no_cuda(); }
void set_gpu_budget(Device, int64_t) { no_cuda(); }
void reset_gpu_peak(Device) { no_cuda(); }
void synchronize(const Context&) {}  // nothing to wait for on the CPU
void copy_async(const Context&, void*, const void*, size_t) { no_cuda(); }
void clear_async(const Context&, void*, size_t) { no_cuda(); }

PinnedBuffer::PinnedBuffer(size_t) { no_cuda(); }
PinnedBuffer::~PinnedBuffer() = default;
PinnedBuffer::PinnedBuffer(PinnedBuffer&&) noexcept = default;
PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&&) noexcept = default;

GpuStream::GpuStream(Device, bool) { no_cuda(); }
GpuStream::~GpuStream() = default;

GpuEvent::GpuEvent(Device, bool) { no_cuda(); }
GpuEvent::~GpuEvent() = default;
void GpuEvent::record(const Context&) { no_cuda(); }
void GpuEvent::order(const Context&) const { no_cuda(); }
void GpuEvent::wait() const { no_cuda(); }
double GpuEvent::seconds_since(const GpuEvent&) const { no_cuda(); }

GpuRange::GpuRange(Device, size_t, size_t) { no_cuda(); }
GpuRange::~GpuRange() = default;
GpuRange::GpuRange(GpuRange&&) noexcept = default;
GpuRange& GpuRange::operator=(GpuRange&&) noexcept = default;
void GpuRange::reserve(size_t) { no_cuda(); }
void GpuRange::shrink(size_t) { no_cuda(); }
void drop_spare_ranges(Device) noexcept {}

PinnedRange::PinnedRange(size_t) { no_cuda(); }
PinnedRange::~PinnedRange() = default;
PinnedRange::PinnedRange(PinnedRange&&) noexcept = default;
PinnedRange& PinnedRange::operator=(PinnedRange&&) noexcept = default;
void PinnedRange::reserve(size_t) { no_cuda(); }
void PinnedRange::shrink(size_t) { no_cuda(); }
bool gpu_reads(const Context&, const void*) { return false; }

GpuGraph::~GpuGraph() = default;
GpuGraph::GpuGraph(GpuGraph&&) noexcept = default;
GpuGraph& GpuGraph::operator=(GpuGraph&&) noexcept = default;
void GpuGraph::launch(const Context&) const { no_cuda(); }
GpuGraph::Capture::Capture(const Context& context) : context_(context) { no_cuda(); }
GpuGraph::Capture::~Capture() = default;
GpuGraph GpuGraph::Capture::finish() { no_cuda(); }

}  // namespace kinora
