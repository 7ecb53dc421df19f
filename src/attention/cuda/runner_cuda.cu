#include "attention/cuda/runner_cuda.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "attention/cuda/cuda_compile.h"
#include "attention/cuda/cuda_merge.cuh"
#include "attention/cuda/portable_kernel_cuda.cuh"
#include "attention/cuda/runner_hopper.h"
#include "attention/cuda/simple_kernel_cuda.cuh"
#include "base/buffer.h"
#include "base/cuda_support.h"

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

// A compiled plan in device memory.
struct DevicePlan {
  std::shared_ptr<Buffer> memory;
  CudaPlanView view;
  const CudaMerge* merges = nullptr;
};

DevicePlan upload(const Context& context, cudaStream_t stream, const CudaPlan& plan) {
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
  result.memory = Buffer::allocate(context.device, size);
  std::byte* base = result.memory->data();
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
  return result;
}

enum class Kernel { hopper, portable, simple };

// Whether rows of 8-element pieces can be read 16 bytes at a time.
bool in_pieces(const ConstTensorView& view) {
  const int64_t size = dtype_size(view.dtype());
  return reinterpret_cast<uintptr_t>(view.raw()) % 16 == 0 && view.stride(0) * size % 16 == 0 &&
         view.stride(1) * size % 16 == 0;
}

Kernel choose(const Context& context, const ConstTensorView& queries, const RowSet& rows,
              const TensorView& out) {
  const int64_t head_size = queries.size(2);
  const bool pieces = rows.count() > 0 && rows.keys.dtype() == DType::bf16 && head_size % 8 == 0 &&
                      head_size <= 128 && in_pieces(queries) && in_pieces(rows.keys) &&
                      in_pieces(rows.values) && in_pieces(out);
  if (!pieces) return Kernel::simple;
  const bool fast =
      head_size == hopper::head_size && !rows.weighted() && hopper::runs_on(context.device.index);
  return fast ? Kernel::hopper : Kernel::portable;
}

CudaCut cut_for(const Context& context, Kernel kernel) {
  CudaCut cut;
  cut.processors = cuda::multiprocessors(context.device.index);
  cut.repeat_jobs = kernel != Kernel::hopper;
  if (kernel == Kernel::portable) {
    cut.job_rows = portable_rows;
    cut.block_keys = portable_keys;
    cut.processors *= 2;
  } else if (kernel == Kernel::simple) {
    cut.job_rows = simple_rows;
    cut.block_keys = simple_keys;
    cut.processors *= 8;
  }
  return cut;
}

Problem describe(const ConstTensorView& queries, const RowSet& rows, float scale,
                 const TensorView& out, const RunOptions& options) {
  Problem problem;
  problem.queries = queries.raw();
  problem.query_stride = queries.stride(0);
  problem.query_head_stride = queries.stride(1);
  problem.keys = rows.keys.raw();
  problem.key_stride = rows.keys.stride(0);
  problem.key_head_stride = rows.keys.stride(1);
  problem.values = rows.values.raw();
  problem.value_stride = rows.values.stride(0);
  problem.value_head_stride = rows.values.stride(1);
  problem.weights = cuda::device_data<float>(rows.weights);
  problem.target.out = out.raw();
  problem.target.stride = out.stride(0);
  problem.target.head_stride = out.stride(1);
  problem.target.max = options.state.max;
  problem.target.sum = options.state.sum;
  problem.target.heads = static_cast<int32_t>(queries.size(1));
  problem.target.f32 = out.dtype() == DType::f32;
  problem.target.merge = options.onto;
  problem.scale = scale;
  problem.group = static_cast<int32_t>(queries.size(1) / rows.keys.size(1));
  problem.head_size = static_cast<int32_t>(queries.size(2));
  problem.queries_f32 = queries.dtype() == DType::f32;
  problem.rows_f32 = rows.keys.dtype() == DType::f32;
  return problem;
}

// One block a job and head.
dim3 job_grid(const Problem& problem, int32_t repeats) {
  return dim3(static_cast<unsigned int>(problem.plan.job_count),
              static_cast<unsigned int>(repeats));
}

template <int Padded, bool Weighted>
void launch_portable(cudaStream_t stream, const Problem& problem, int32_t repeats) {
  constexpr int bytes = PortableTile<Padded>::shared_bytes;
  cuda::check(cudaFuncSetAttribute(reinterpret_cast<const void*>(attend_portable<Padded, Weighted>),
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
              "preparing attention");
  cuda::launch({job_grid(problem, repeats), portable_threads, bytes, stream}, "attention",
               attend_portable<Padded, Weighted>, problem);
}

template <bool Weighted>
void launch_portable(cudaStream_t stream, const Problem& problem, int32_t repeats) {
  if (problem.head_size <= 64) return launch_portable<64, Weighted>(stream, problem, repeats);
  if (problem.head_size <= 80) return launch_portable<80, Weighted>(stream, problem, repeats);
  launch_portable<128, Weighted>(stream, problem, repeats);
}

template <bool Weighted>
void launch_simple(cudaStream_t stream, const Problem& problem, int32_t repeats) {
  const cuda::Launch how{job_grid(problem, repeats), simple_rows * 32,
                         static_cast<size_t>(simple_rows * problem.head_size) * sizeof(float),
                         stream};
  if (problem.head_size <= 64) {
    cuda::launch(how, "attention", attend_simple<2, Weighted>, problem);
  } else if (problem.head_size <= 128) {
    cuda::launch(how, "attention", attend_simple<4, Weighted>, problem);
  } else {
    cuda::launch(how, "attention", attend_simple<32, Weighted>, problem);
  }
}

void launch_jobs(const Context& context, cudaStream_t stream, Kernel kernel, const CudaPlan& plan,
                 const Problem& problem, const RowSet& rows) {
  if (problem.plan.job_count == 0) return;
  const bool weighted = problem.weights != nullptr;
  if (kernel == Kernel::hopper) {
    hopper::launch(context, problem, rows, plan.any_row_lists);
  } else if (kernel == Kernel::simple) {
    weighted ? launch_simple<true>(stream, problem, plan.repeats)
             : launch_simple<false>(stream, problem, plan.repeats);
  } else {
    weighted ? launch_portable<true>(stream, problem, plan.repeats)
             : launch_portable<false>(stream, problem, plan.repeats);
  }
}

void run(const Context& context, Kernel kernel, const CudaPlan& plan, Problem problem,
         const RowSet& rows, int64_t query_count) {
  const cudaStream_t stream = cuda::enter(context);
  const DevicePlan device = upload(context, stream, plan);
  problem.plan = device.view;

  std::shared_ptr<Buffer> state, parts;
  const auto pairs = static_cast<size_t>(query_count * problem.target.heads);
  // Passes merge by the state; a caller may want one half of it or none.
  if (problem.target.max == nullptr || problem.target.sum == nullptr) {
    if (plan.passes.size() > 1 || problem.target.max != problem.target.sum) {
      state = Buffer::allocate(context.device, 2 * pairs * sizeof(float));
      auto* floats = reinterpret_cast<float*>(state->data());
      if (problem.target.max == nullptr) problem.target.max = floats;
      if (problem.target.sum == nullptr) problem.target.sum = floats + pairs;
    }
  }
  if (plan.partial_rows > 0) {
    const auto count = static_cast<size_t>(plan.partial_rows);
    const auto head_size = static_cast<size_t>(problem.head_size);
    parts = Buffer::allocate(context.device, count * (head_size + 2) * sizeof(float));
    problem.parts.out = reinterpret_cast<float*>(parts->data());
    problem.parts.max = problem.parts.out + count * head_size;
    problem.parts.sum = problem.parts.max + count;
  }
  const unsigned int clear_blocks = cuda::strided_blocks(context, static_cast<int64_t>(pairs), 8);
  const bool onto = problem.target.merge;
  if (!onto && (!plan.covers_all || plan.passes.size() > 1)) {
    cuda::launch({clear_blocks, 256, 0, stream}, "clearing attention", clear_output<>,
                 problem.target, query_count, problem.head_size);
  }
  for (size_t i = 0; i < plan.passes.size(); ++i) {
    const CudaPass& pass = plan.passes[i];
    problem.plan.jobs = device.view.jobs + pass.job_begin;
    problem.plan.job_count = static_cast<int32_t>(pass.job_end - pass.job_begin);
    problem.plan.next = device.view.next + i;
    problem.target.merge = i > 0 || onto;
    launch_jobs(context, stream, kernel, plan, problem, rows);
    if (pass.merge_end > pass.merge_begin) {
      constexpr unsigned int warps = 4;
      const auto merges = static_cast<unsigned int>(pass.merge_end - pass.merge_begin);
      cuda::launch({dim3(merges, 128 / warps), warps * 32, 0, stream}, "merging attention",
                   merge_parts<>, device.merges + pass.merge_begin, problem.plan, problem.parts,
                   problem.target, problem.head_size);
    }
  }
}

}  // namespace

void run_plan(const Context& context, const Plan& plan, const QueryView& queries,
              const RowSet& rows, float scale, TensorView out, const RunOptions& options) {
  const Kernel kernel = choose(context, queries.queries, rows, out);
  const CudaPlan compiled =
      compile_plan(plan, queries.ordinals, rows.ordinals, cut_for(context, kernel));
  run(context, kernel, compiled, describe(queries.queries, rows, scale, out, options), rows,
      queries.count());
}

void run_dense(const Context& context, const QueryView& queries, const RowSet& rows, float scale,
               TensorView out, const RunOptions& options) {
  if (queries.count() == 0) return;
  const Kernel kernel = choose(context, queries.queries, rows, out);
  const CudaPlan compiled =
      compile_dense({queries.queries.size(1), rows.keys.size(1), queries.count(), rows.count()},
                    queries.ordinals, rows.ordinals, cut_for(context, kernel));
  run(context, kernel, compiled, describe(queries.queries, rows, scale, out, options), rows,
      queries.count());
}

void run_windows(const Context& context, ConstTensorView q, ConstTensorView k, ConstTensorView v,
                 std::span<const int32_t> offsets, float scale, TensorView out) {
  if (q.size(0) == 0) return;
  const RowSet rows{.keys = k, .values = v, .ordinals = {}, .modalities = {}};
  const Kernel kernel = choose(context, q, rows, out);
  const CudaPlan compiled = compile_windows({q.size(1), k.size(1), q.size(0), q.size(0)}, offsets,
                                            cut_for(context, kernel));
  run(context, kernel, compiled, describe(q, rows, scale, out, {}), rows, q.size(0));
}

}  // namespace kinora::cuda_attention
