// What a program does with a GPU besides running ops: memory budgets and reports, pinned host
// memory, copies that do not wait, streams, events, and device memory that grows in place. Every
// call throws unsupported in a build without CUDA, and resource errors when memory runs out.
//
// Ops run on a context's stream; allocations, releases and plain copies are ordered with the
// default stream (null) and with every Stream made here, as CUDA's blocking streams are. A stream
// made with `independent` is not: events order its work.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/context.h"
#include "base/device.h"

namespace kinora {

// Bytes of one GPU.
struct GpuMemory {
  int64_t total = 0;
  int64_t free = 0;    // by the driver's account
  int64_t used = 0;    // by this process's tensors and row stores
  int64_t peak = 0;    // the most of `used` since the last reset
  int64_t budget = 0;  // allocations beyond it are refused; 0: none
};

GpuMemory gpu_memory(Device device);
// Refuses allocations beyond `bytes` from now on; 0: no budget. Lets tests run out of memory where
// they want to.
void set_gpu_budget(Device device, int64_t bytes);
void reset_gpu_peak(Device device);

// Waits until all work of the context's stream is done; nothing on the CPU.
void synchronize(const Context& context);

// Starts a copy between host and device, or within a device, on the context's stream. Host memory
// must stay unchanged until the copy is done; only pinned memory lets it overlap with other work.
void copy_async(const Context& context, void* target, const void* source, size_t bytes);
void clear_async(const Context& context, void* target, size_t bytes);  // to zero bytes

// Host memory that GPUs copy from and to at full speed.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(size_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

class GpuStream {
 public:
  explicit GpuStream(Device device, bool independent = false);
  ~GpuStream();
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;

  void* handle() const { return handle_; }  // for Context::stream

 private:
  Device device_;
  void* handle_ = nullptr;
};

// A moment in a stream's work.
class GpuEvent {
 public:
  explicit GpuEvent(Device device, bool timed = false);
  ~GpuEvent();
  GpuEvent(const GpuEvent&) = delete;
  GpuEvent& operator=(const GpuEvent&) = delete;

  void record(const Context& context);
  // Work put on the context's stream from now on waits for the recorded moment.
  void order(const Context& context) const;
  void wait() const;  // on the host
  // Between two recorded moments of timed events; waits for this one.
  double seconds_since(const GpuEvent& earlier) const;

 private:
  Device device_;
  void* handle_ = nullptr;
};

// Device memory that grows and shrinks without moving: addresses are reserved once, memory is put
// behind them in chunks. Ranges that end are kept for those that begin.
class GpuRange {
 public:
  GpuRange() = default;
  // Reserves addresses for up to `limit` bytes, of which `likely` will be used soon.
  explicit GpuRange(Device device, size_t limit, size_t likely = 0);
  ~GpuRange();
  GpuRange(GpuRange&& other) noexcept;
  GpuRange& operator=(GpuRange&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t capacity() const { return capacity_; }

  // Makes the first `bytes` usable; what is there stays.
  void reserve(size_t bytes);
  // Gives back whole chunks beyond the first `bytes`, after all work on the device has ended.
  void shrink(size_t bytes);

 private:
  void release() noexcept;
  void unmap() noexcept;
  void drop_unused() noexcept;
  friend void drop_spare_ranges(Device device) noexcept;

  Device device_;
  std::byte* data_ = nullptr;
  size_t limit_ = 0;
  size_t capacity_ = 0;
  struct Chunks;
  Chunks* chunks_ = nullptr;
  class Spares;  // of one GPU
};

// Gives ranges that nobody has back to the driver.
void drop_spare_ranges(Device device) noexcept;

// Host memory that grows and shrinks without moving, pinned in chunks: GPUs copy from and to it at
// full speed, and their kernels read it where it lies (gpu_reads).
class PinnedRange {
 public:
  // Copies to or from it must not cross a multiple of this: CUDA takes each chunk for a block of
  // its own. Kernels may.
  static constexpr size_t chunk = size_t{4} << 20;

  PinnedRange() = default;
  // Reserves addresses for up to `limit` bytes.
  explicit PinnedRange(size_t limit);
  ~PinnedRange();
  PinnedRange(PinnedRange&& other) noexcept;
  PinnedRange& operator=(PinnedRange&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t capacity() const { return capacity_; }

  // Makes the first `bytes` usable; what is there stays.
  void reserve(size_t bytes);
  // Gives back whole chunks beyond the first `bytes`, after all work of all GPUs has ended.
  void shrink(size_t bytes);

 private:
  std::byte* data_ = nullptr;
  size_t limit_ = 0;
  size_t capacity_ = 0;
};

// Whether kernels of the context's GPU may read this host memory by the address that it has here.
bool gpu_reads(const Context& context, const void* host);

// Work captured once and replayed with one call. `record` runs `work` with a context whose stream
// only remembers; work must not allocate, copy pageable memory or wait.
class GpuGraph {
 public:
  GpuGraph() = default;
  ~GpuGraph();
  GpuGraph(GpuGraph&& other) noexcept;
  GpuGraph& operator=(GpuGraph&& other) noexcept;

  template <class Work>
  static GpuGraph record(const Context& context, const Work& work) {
    Capture capture(context);
    work(capture.context());
    return capture.finish();
  }
  bool empty() const { return executable_ == nullptr; }
  void launch(const Context& context) const;

 private:
  class Capture {
   public:
    explicit Capture(const Context& context);
    ~Capture();
    const Context& context() const { return context_; }
    GpuGraph finish();

   private:
    Context context_;
    bool open_ = true;
  };
  explicit GpuGraph(void* executable) : executable_(executable) {}

  void* executable_ = nullptr;
};

}  // namespace kinora
