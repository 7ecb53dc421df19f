// Plans on their way to the device.
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "attention/cuda/device_plan.h"
#include "base/cuda_host.h"

namespace kinora::cuda_attention {
namespace {

constexpr size_t alignment = 256;

size_t aligned(size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

// Pinned memory that plans pass through on their way to one device, shared by all threads: threads
// end while copies they started still wait in a stream. A piece is free again when the copy from it
// is done.
class Staging {
 public:
  static Staging& of(int device) {
    static std::mutex mutex;
    static std::map<int, std::unique_ptr<Staging>> all;
    const std::lock_guard lock(mutex);
    auto& one = all[device];
    if (!one) one = std::make_unique<Staging>();
    return *one;
  }

  Staging() = default;
  ~Staging() {
    for (Piece& piece : pieces_) {
      cudaEventSynchronize(piece.done);
      cudaEventDestroy(piece.done);
      cudaFreeHost(piece.data);
    }
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Fills a piece and starts its copy.
  template <class Fill>
  void send(void* target, size_t bytes, cudaStream_t stream, const Fill& fill) {
    const std::lock_guard lock(mutex_);
    Piece& piece = find(bytes);
    fill(static_cast<std::byte*>(piece.data));
    cuda::check(cudaMemcpyAsync(target, piece.data, bytes, cudaMemcpyHostToDevice, stream),
                "sending an attention plan to the GPU");
    cuda::check(cudaEventRecord(piece.done, stream), "marking a copy");
  }

 private:
  struct Piece {
    void* data = nullptr;
    size_t size = 0;
    cudaEvent_t done = nullptr;
  };

  Piece& find(size_t bytes) {
    for (Piece& piece : pieces_) {
      if (piece.size >= bytes && cudaEventQuery(piece.done) == cudaSuccess) return piece;
    }
    cudaGetLastError();  // "not ready" is no error
    Piece piece;
    piece.size = std::max<size_t>(bytes * 5 / 4, size_t{1} << 16);
    cuda::check(cudaHostAlloc(&piece.data, piece.size, cudaHostAllocDefault),
                "allocating pinned memory");
    if (const cudaError_t status = cudaEventCreateWithFlags(&piece.done, cudaEventDisableTiming);
        status != cudaSuccess) {
      cudaFreeHost(piece.data);
      cuda::check(status, "making an event");
    }
    pieces_.push_back(piece);
    return pieces_.back();
  }

  std::mutex mutex_;
  std::deque<Piece> pieces_;
};

bool without_gaps(std::span<const int32_t> increasing) {
  return increasing.empty() ||
         int64_t{increasing.back()} - increasing.front() + 1 == std::ssize(increasing);
}

}  // namespace

bool unbroken(const QueryView& queries, const RowSet& rows) {
  return queries.parents.empty() && without_gaps(queries.ordinals) && without_gaps(rows.ordinals) &&
         !rows.ordinals.empty() && !queries.ordinals.empty() &&
         queries.ordinals.front() >= rows.ordinals.front() &&
         queries.ordinals.back() <= rows.ordinals.back();
}

DeviceLimits device_limits(const Context& context, const QueryView& queries, const RowSet& rows) {
  DeviceLimits limits;
  if (unbroken(queries, rows)) {
    limits.base = queries.ordinals.front() - rows.ordinals.front() + 1;
    return limits;
  }
  limits.list = Tensor(DType::i32, {queries.count()}, context.device);
  const auto bytes = static_cast<size_t>(queries.count()) * sizeof(int32_t);
  Staging::of(context.device.index)
      .send(limits.list.view().raw(), bytes, cuda::enter(context), [&](std::byte* to) {
        auto* out = reinterpret_cast<int32_t*>(to);
        size_t at = 0;
        for (const int32_t ordinal : queries.ordinals) {
          while (at < rows.ordinals.size() && rows.ordinals[at] <= ordinal) ++at;
          *out++ = static_cast<int32_t>(at);
        }
      });
  return limits;
}

DevicePlan upload_plan(const Context& context, Kernel kernel, const CudaPlan& plan,
                       const CudaShape& shape) {
  const cudaStream_t stream = cuda::enter(context);
  size_t size = 0;
  const auto place = [&](const auto& items) {
    const size_t at = size;
    size += aligned(items.size() * sizeof(items[0]));
    return at;
  };
  const std::vector<int32_t> next(plan.passes.size());
  const size_t jobs = place(plan.jobs);
  const size_t segments = place(plan.segments);
  const size_t merges = place(plan.merges);
  const size_t gathered = place(plan.gathered);
  const size_t queries = place(plan.queries);
  const size_t limits = place(plan.limits);
  const size_t counters = place(next);

  DevicePlan result;
  result.memory.push_back(Buffer::allocate(context.device, size));
  std::byte* base = result.memory.back()->data();
  Staging::of(context.device.index).send(base, size, stream, [&](std::byte* to) {
    const auto copy = [&](size_t at, const auto& items) {
      if (!items.empty()) std::memcpy(to + at, items.data(), items.size() * sizeof(items[0]));
    };
    copy(jobs, plan.jobs);
    copy(segments, plan.segments);
    copy(merges, plan.merges);
    copy(gathered, plan.gathered);
    copy(queries, plan.queries);
    copy(limits, plan.limits);
    copy(counters, next);
  });
  result.view.jobs = reinterpret_cast<const CudaJob*>(base + jobs);
  result.view.segments = reinterpret_cast<const CudaSegment*>(base + segments);
  result.view.gathered = reinterpret_cast<const int32_t*>(base + gathered);
  result.view.queries = reinterpret_cast<const int32_t*>(base + queries);
  if (!plan.limits.empty()) result.view.limits = reinterpret_cast<const int32_t*>(base + limits);
  result.view.limit_base = plan.limit_base;
  result.view.next = reinterpret_cast<int32_t*>(base + counters);
  result.merges = reinterpret_cast<const CudaMerge*>(base + merges);
  result.kernel = kernel;
  result.passes = plan.passes;
  result.partial_rows = plan.partial_rows;
  result.repeats = plan.repeats;
  result.row_lists = plan.any_row_lists;
  result.strides = plan.strides;
  result.covers_all = plan.covers_all;
  result.start = plan.start;
  result.query_count = shape.queries;
  result.row_count = shape.rows;
  result.heads = static_cast<int32_t>(shape.heads);
  return result;
}

}  // namespace kinora::cuda_attention
