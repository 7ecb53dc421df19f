#include <mutex>
#include <shared_mutex>
#include <utility>

#include "base/cuda_support.h"
#include "base/gpu.h"
#include "base/gpu_account.h"

namespace kinora {

using cuda::check;
using cuda::enter;

GpuMemory gpu_memory(Device device) {
  check(cudaSetDevice(device.index), "selecting a GPU");
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking a GPU for its memory");
  const cuda::GpuAccount& account = cuda::GpuAccount::of(device.index);
  return {static_cast<int64_t>(total), static_cast<int64_t>(free), account.used.load(),
          account.peak.load(), account.budget.load()};
}

void set_gpu_budget(Device device, int64_t bytes) {
  cuda::GpuAccount::of(device.index).budget.store(bytes);
}

void reset_gpu_peak(Device device) {
  cuda::GpuAccount& account = cuda::GpuAccount::of(device.index);
  account.peak.store(account.used.load());
}

void synchronize(const Context& context) {
  if (context.device.is_cpu()) return;
  check(cudaStreamSynchronize(enter(context)), "work on the GPU");
}

void copy_async(const Context& context, void* target, const void* source, size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, enter(context)),
        "copying to or from a GPU");
}

void clear_async(const Context& context, void* target, size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemsetAsync(target, 0, bytes, enter(context)), "clearing GPU memory");
}

PinnedBuffer::PinnedBuffer(size_t bytes) : size_(bytes) {
  void* data = nullptr;
  check(cudaHostAlloc(&data, bytes == 0 ? 1 : bytes, cudaHostAllocPortable),
        "allocating pinned host memory");
  data_ = static_cast<std::byte*>(data);
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) cudaFreeHost(data_);
}

PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

GpuStream::GpuStream(Device device, bool independent) : device_(device) {
  check(cudaSetDevice(device.index), "selecting a GPU");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, independent ? cudaStreamNonBlocking : cudaStreamDefault),
        "making a stream");
  handle_ = stream;
}

GpuStream::~GpuStream() {
  cudaSetDevice(device_.index);
  cudaStreamDestroy(static_cast<cudaStream_t>(handle_));
}

GpuEvent::GpuEvent(Device device, bool timed) : device_(device) {
  check(cudaSetDevice(device.index), "selecting a GPU");
  cudaEvent_t event = nullptr;
  const unsigned int timing = timed ? cudaEventDefault : cudaEventDisableTiming;
  // Whoever waits on the host sleeps: decoders have better uses for the core.
  check(cudaEventCreateWithFlags(&event, timing | cudaEventBlockingSync), "making an event");
  handle_ = event;
}

GpuEvent::~GpuEvent() { cudaEventDestroy(static_cast<cudaEvent_t>(handle_)); }

void GpuEvent::record(const Context& context) {
  check(cudaEventRecord(static_cast<cudaEvent_t>(handle_), enter(context)), "recording an event");
}

void GpuEvent::order(const Context& context) const {
  check(cudaStreamWaitEvent(enter(context), static_cast<cudaEvent_t>(handle_)),
        "waiting for an event");
}

void GpuEvent::wait() const {
  check(cudaEventSynchronize(static_cast<cudaEvent_t>(handle_)), "work on the GPU");
}

double GpuEvent::seconds_since(const GpuEvent& earlier) const {
  wait();
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(earlier.handle_),
                             static_cast<cudaEvent_t>(handle_)),
        "timing work on the GPU");
  return milliseconds / 1000.0;
}

namespace {

// Held by threads that capture, together, and by one that waits for the device, alone.
std::shared_mutex& captures() {
  static std::shared_mutex mutex;
  return mutex;
}
thread_local bool captures_now = false;

void end_capture() {
  captures_now = false;
  captures().unlock_shared();
}

}  // namespace

void cuda::wait_for_device() noexcept {
  if (captures_now) return;  // nothing of a capture runs, and nothing may be waited for
  const std::lock_guard alone(captures());
  cudaDeviceSynchronize();
}

// The stream that only remembers is made for each capture: captures are rare and many threads may
// make them at once.
GpuGraph::Capture::Capture(const Context& context) : context_(context) {
  enter(context);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  context_.stream = stream;
  captures().lock_shared();
  const cudaError_t status = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
  if (status != cudaSuccess) {
    captures().unlock_shared();
    cudaStreamDestroy(stream);
    check(status, "capturing a graph");
  }
  captures_now = true;
}

GpuGraph::Capture::~Capture() {
  const auto stream = static_cast<cudaStream_t>(context_.stream);
  if (open_) {
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    end_capture();
  }
  cudaStreamDestroy(stream);
}

GpuGraph GpuGraph::Capture::finish() {
  cudaGraph_t graph = nullptr;
  open_ = false;
  const cudaError_t ended =
      cudaStreamEndCapture(static_cast<cudaStream_t>(context_.stream), &graph);
  end_capture();
  check(ended, "capturing a graph");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "making a graph");
  return GpuGraph(executable);
}

GpuGraph::~GpuGraph() {
  if (executable_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_));
}

GpuGraph::GpuGraph(GpuGraph&& other) noexcept
    : executable_(std::exchange(other.executable_, nullptr)) {}

GpuGraph& GpuGraph::operator=(GpuGraph&& other) noexcept {
  std::swap(executable_, other.executable_);
  return *this;
}

void GpuGraph::launch(const Context& context) const {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), enter(context)),
        "replaying a graph");
}

}  // namespace kinora
