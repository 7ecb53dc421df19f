#include "attention/cuda/runner_cuda.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "attention/cuda/cuda_compile.h"
#include "attention/cuda/cuda_merge.cuh"
#include "attention/cuda/device_plan.h"
#include "attention/cuda/fp8/fp8_layout.h"
#include "attention/cuda/fp8/fp8_rows.h"
#include "attention/cuda/fp8/runner_fp8.h"
#include "attention/cuda/portable_kernel_cuda.cuh"
#include "attention/cuda/runner_hopper.h"
#include "attention/cuda/simple_kernel_cuda.cuh"
#include "base/buffer.h"
#include "base/cuda_support.h"

namespace kinora::cuda_attention {
namespace {

// Whether rows of 8-element pieces can be read 16 bytes at a time.
bool in_pieces(const ConstTensorView& view) {
  const int64_t size = dtype_size(view.dtype());
  return reinterpret_cast<uintptr_t>(view.raw()) % 16 == 0 && view.stride(0) * size % 16 == 0 &&
         view.stride(1) * size % 16 == 0;
}

}  // namespace

Kernel choose_kernel(const Context& context, const ConstTensorView& queries, const RowSet& rows,
                     const ConstTensorView& out) {
  const int64_t head_size = queries.size(2);
  const bool pieces = rows.count() > 0 && rows.keys.dtype() == DType::bf16 && head_size % 8 == 0 &&
                      head_size <= 128 && in_pieces(queries) && in_pieces(rows.keys) &&
                      in_pieces(rows.values) && in_pieces(out);
  if (!pieces) return Kernel::simple;
  const bool fast = hopper::takes_head_size(head_size) && !rows.weighted() &&
                    hopper::runs_on(context.device.index);
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

namespace {

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

template <int Padded, bool Weighted, bool Measure>
void launch_portable(cudaStream_t stream, const Problem& problem, int32_t repeats) {
  constexpr int bytes = PortableTile<Padded>::shared_bytes;
  constexpr auto kernel = attend_portable<Padded, Weighted, Measure>;
  cuda::check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
              "preparing attention");
  cuda::launch({job_grid(problem, repeats), portable_threads, bytes, stream}, "attention", kernel,
               problem);
}

template <bool Weighted, bool Measure>
void launch_portable(cudaStream_t stream, const Problem& problem, int32_t repeats) {
  if (problem.head_size <= 64) {
    launch_portable<64, Weighted, Measure>(stream, problem, repeats);
  } else if (problem.head_size <= 80) {
    launch_portable<80, Weighted, Measure>(stream, problem, repeats);
  } else {
    launch_portable<128, Weighted, Measure>(stream, problem, repeats);
  }
}

template <bool Weighted>
void launch_portable(cudaStream_t stream, const Problem& problem, int32_t repeats) {
  problem.scores != nullptr ? launch_portable<Weighted, true>(stream, problem, repeats)
                            : launch_portable<Weighted, false>(stream, problem, repeats);
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

// Rows of the columns of a plan, [columns, 1, head size].
struct ColumnCopies {
  Tensor keys, values;
};

// What a run reads besides its plan.
struct Input {
  ConstTensorView queries;
  RowSet rows;
  ColumnCopies columns{};
  std::optional<fp8_attention::Fp8Rows> fp8{};  // read instead
};

void launch_jobs(const Context& context, cudaStream_t stream, const DevicePlan& plan,
                 const Problem& problem, const Input& input) {
  if (problem.plan.job_count == 0) return;
  if (input.fp8) {
    return fp8_attention::launch(context, problem, *input.fp8, plan.start == ListStart::rows);
  }
  const bool weighted = problem.weights != nullptr;
  if (plan.kernel == Kernel::hopper) {
    hopper::launch(context, problem, input.rows,
                   {plan.row_lists, plan.pieces, plan.strides, plan.head_strides},
                   input.columns.keys, input.columns.values);
  } else if (plan.kernel == Kernel::simple) {
    weighted ? launch_simple<true>(stream, problem, plan.repeats)
             : launch_simple<false>(stream, problem, plan.repeats);
  } else {
    weighted ? launch_portable<true>(stream, problem, plan.repeats)
             : launch_portable<false>(stream, problem, plan.repeats);
  }
}

// Copies the rows of all columns side by side, eight elements a thread, so that the copy engine can
// fetch them.  grid: any
template <int = 0>
__global__ void copy_columns(Problem a, int32_t head_columns, int64_t total, uint4* keys,
                             uint4* values) {
  const int pieces = a.head_size / 8;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total * pieces;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t at = i / pieces;
    const int piece = static_cast<int>(i % pieces);
    const int64_t row = a.plan.gathered[at];
    const int64_t kv_head = at / head_columns / a.group;
    uint4 key{}, value{};
    if (row >= 0) {
      key = *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(a.keys) +
                                            row * a.key_stride + kv_head * a.key_head_stride +
                                            piece * 8);
      value = *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(a.values) +
                                              row * a.value_stride + kv_head * a.value_head_stride +
                                              piece * 8);
    }
    keys[i] = key;
    values[i] = value;
  }
}

ColumnCopies copy_columns(const Context& context, cudaStream_t stream, const DevicePlan& plan,
                          const Problem& problem) {
  ColumnCopies copies;
  if (plan.kernel != Kernel::hopper || plan.head_columns == 0) return copies;
  const int64_t total = int64_t{plan.head_columns} * plan.heads;
  copies.keys = Tensor(DType::bf16, {total, 1, problem.head_size}, context.device);
  copies.values = Tensor(DType::bf16, {total, 1, problem.head_size}, context.device);
  cuda::launch({cuda::strided_blocks(context, total * problem.head_size / 8, 256), 256, 0, stream},
               "gathering attention columns", copy_columns<>, problem, plan.head_columns, total,
               reinterpret_cast<uint4*>(copies.keys.view().raw()),
               reinterpret_cast<uint4*>(copies.values.view().raw()));
  return copies;
}

// Whether the FP8 kernel runs this: it reads what Hopper's kernel reads, but neither single rows
// nor pieces at odd places, and it does not measure.
bool runs_in_fp8(const DevicePlan& plan, const Problem& problem, const RunOptions& options) {
  return options.dtype == AttentionDtype::fp8 && plan.kernel == Kernel::hopper &&
         problem.head_size == fp8_attention::head_size && plan.start != ListStart::scattered &&
         problem.scores == nullptr && plan.query_count >= options.least_fp8_queries;
}

void run(const Context& context, const DevicePlan& plan, Problem problem,
         const ConstTensorView& queries, const RowSet& rows, const RunOptions& options) {
  const cudaStream_t stream = cuda::enter(context);
  problem.plan = plan.view;
  Input input{queries, rows};
  if (runs_in_fp8(plan, problem, options)) {
    input.fp8 = fp8_attention::round_rows(context, queries, rows);
  }
  if (options.dtype == AttentionDtype::fp8 && options.launches != nullptr) {
    ++(input.fp8 ? options.launches->fp8 : options.launches->bf16);
  }

  std::shared_ptr<Buffer> state, parts;
  const auto pairs = static_cast<size_t>(plan.query_count * problem.target.heads);
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
  input.columns = copy_columns(context, stream, plan, problem);
  const unsigned int clear_blocks = cuda::strided_blocks(context, static_cast<int64_t>(pairs), 8);
  const bool onto = problem.target.merge;
  if (!onto && (!plan.covers_all || plan.passes.size() > 1)) {
    cuda::launch({clear_blocks, 256, 0, stream}, "clearing attention", clear_output<>,
                 problem.target, plan.query_count, problem.head_size);
  }
  // The plan may have been run before.
  cuda::check(cudaMemsetAsync(plan.view.next, 0, plan.passes.size() * sizeof(int32_t), stream),
              "clearing the counters of attention");
  for (size_t i = 0; i < plan.passes.size(); ++i) {
    const CudaPass& pass = plan.passes[i];
    problem.plan.jobs = plan.view.jobs + pass.job_begin;
    problem.plan.job_count = static_cast<int32_t>(pass.job_end - pass.job_begin);
    problem.plan.next = plan.view.next + i;
    problem.target.merge = i > 0 || onto;
    launch_jobs(context, stream, plan, problem, input);
    if (pass.merge_end > pass.merge_begin) {
      constexpr unsigned int warps = 4;
      const auto merges = static_cast<unsigned int>(pass.merge_end - pass.merge_begin);
      cuda::launch({dim3(merges, 128 / warps), warps * 32, 0, stream}, "merging attention",
                   merge_parts<>, plan.merges + pass.merge_begin, problem.plan, problem.parts,
                   problem.target, problem.head_size);
    }
  }
}

}  // namespace

DevicePlan device_plan(const Context& context, const Plan& plan, const QueryView& queries,
                       const RowSet& rows, const ConstTensorView& out) {
  const Kernel kernel = choose_kernel(context, queries.queries, rows, out);
  return upload_plan(context, kernel,
                     compile_plan(plan, queries.ordinals, rows.ordinals, cut_for(context, kernel)),
                     {plan.heads, plan.kv_heads, queries.count(), rows.count()});
}

void run_plan(const Context& context, const Plan& plan, const QueryView& queries,
              const RowSet& rows, float scale, TensorView out, const RunOptions& options) {
  run(context, device_plan(context, plan, queries, rows, out),
      describe(queries.queries, rows, scale, out, options), queries.queries, rows, options);
}

void run_plan(const Context& context, const DevicePlan& plan, const QueryView& queries,
              const RowSet& rows, float scale, TensorView out, const RunOptions& options) {
  if (plan.query_count != queries.count() || plan.row_count != rows.count() ||
      plan.heads != queries.queries.size(1)) {
    throw Error(ErrorKind::internal, "a plan on a GPU was made for other queries or rows");
  }
  // Lists are cut for one kernel; tensors that it cannot read were not there when they were made.
  const Kernel kernel = choose_kernel(context, queries.queries, rows, out);
  if (kernel != plan.kernel) {
    throw Error(ErrorKind::internal, "a plan on a GPU was made for tensors of another layout");
  }
  run(context, plan, describe(queries.queries, rows, scale, out, options), queries.queries, rows,
      options);
}

void run_dense(const Context& context, const QueryView& queries, const RowSet& rows, float scale,
               TensorView out, const RunOptions& options) {
  if (queries.count() == 0) return;
  const Kernel kernel = choose_kernel(context, queries.queries, rows, out);
  const CudaShape shape{queries.queries.size(1), rows.keys.size(1), queries.count(), rows.count()};
  const DevicePlan plan = upload_plan(
      context, kernel,
      compile_dense(shape, queries.ordinals, rows.ordinals, cut_for(context, kernel)), shape);
  run(context, plan, describe(queries.queries, rows, scale, out, options), queries.queries, rows,
      options);
}

void run_measured(const Context& context, const QueryView& queries, const RowSet& rows, float scale,
                  TensorView out, SoftmaxState state, BlockScores scores) {
  if (queries.count() == 0) return;
  const Kernel kernel = choose_kernel(context, queries.queries, rows, out);
  const CudaShape shape{queries.queries.size(1), rows.keys.size(1), queries.count(), rows.count()};
  const DevicePlan plan = upload_plan(
      context, kernel,
      compile_dense(shape, queries.ordinals, rows.ordinals, cut_for(context, kernel)), shape);
  Problem problem = describe(queries.queries, rows, scale, out, {.state = state});
  problem.scores = scores.data;
  problem.score_stride = scores.stride;
  run(context, plan, problem, queries.queries, rows, {});
}

void run_windows(const Context& context, ConstTensorView q, ConstTensorView k, ConstTensorView v,
                 std::span<const int32_t> offsets, float scale, TensorView out) {
  if (q.size(0) == 0) return;
  const RowSet rows{.keys = k, .values = v, .ordinals = {}, .modalities = {}};
  Kernel kernel = choose_kernel(context, q, rows, out);
  // Towers with narrow heads have short windows, which fill jobs of 128 rows badly.
  if (kernel == Kernel::hopper && q.size(2) < 128) kernel = Kernel::portable;
  const CudaShape shape{q.size(1), k.size(1), q.size(0), q.size(0)};
  const DevicePlan plan = upload_plan(
      context, kernel, compile_windows(shape, offsets, cut_for(context, kernel)), shape);
  run(context, plan, describe(q, rows, scale, out, {}), q, rows, {});
}

}  // namespace kinora::cuda_attention
