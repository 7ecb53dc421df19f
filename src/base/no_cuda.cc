// This build has no CUDA compiler: there is no CUDA device, so nothing can ask for its memory, and
// whoever tries is told so.
#include <cstring>

#include "base/device_cuda.h"
#include "base/error.h"
#include "base/gpu.h"

namespace kinora {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorKind::unsupported,
              "this kinora was built without CUDA; build it where nvcc is installed");
}

}  // namespace

namespace cuda {

std::vector<CudaDeviceInfo> devices(std::string& why_none) {
  why_none = "this kinora was built without CUDA; build it where nvcc is installed";
  return {};
}

void* allocate(int, size_t) { refuse(); }
void release(int, void*, size_t) noexcept {}
void copy(void* target, const void* source, size_t bytes) { std::memcpy(target, source, bytes); }

}  // namespace cuda

GpuMemory gpu_memory(Device) { refuse(); }
void set_gpu_budget(Device, int64_t) { refuse(); }
void reset_gpu_peak(Device) { refuse(); }
void synchronize(const Context&) {}
void copy_async(const Context&, void*, const void*, size_t) { refuse(); }
void clear_async(const Context&, void*, size_t) { refuse(); }

PinnedBuffer::PinnedBuffer(size_t) { refuse(); }
PinnedBuffer::~PinnedBuffer() = default;
PinnedBuffer::PinnedBuffer(PinnedBuffer&&) noexcept = default;
PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&&) noexcept = default;

GpuStream::GpuStream(Device, bool) { refuse(); }
GpuStream::~GpuStream() = default;

GpuEvent::GpuEvent(Device, bool) { refuse(); }
GpuEvent::~GpuEvent() = default;
void GpuEvent::record(const Context&) {}
void GpuEvent::order(const Context&) const {}
void GpuEvent::wait() const {}
double GpuEvent::seconds_since(const GpuEvent&) const { return 0; }

GpuRange::GpuRange(Device, size_t) { refuse(); }
GpuRange::~GpuRange() = default;
GpuRange::GpuRange(GpuRange&&) noexcept = default;
GpuRange& GpuRange::operator=(GpuRange&&) noexcept = default;
void GpuRange::reserve(size_t) { refuse(); }
void GpuRange::shrink(size_t) {}

GpuGraph::~GpuGraph() = default;
GpuGraph::GpuGraph(GpuGraph&&) noexcept = default;
GpuGraph& GpuGraph::operator=(GpuGraph&&) noexcept = default;
void GpuGraph::launch(const Context&) const {}
GpuGraph::Capture::Capture(const Context& context) : context_(context) { refuse(); }
GpuGraph::Capture::~Capture() = default;
GpuGraph GpuGraph::Capture::finish() { refuse(); }

}  // namespace kinora
