#include "attention/cuda/fp8/runner_fp8.h"

#include <algorithm>

#include "attention/cuda/fp8/fp8_kernel.cuh"
#include "base/cuda_support.h"

namespace kinora::fp8_attention {
namespace {

// Blocks of every job, counted from the piece on in which a list begins.  one thread a job
template <int = 0>
__global__ void count_blocks(const __grid_constant__ CudaPlanView plan, int32_t* blocks) {
  const auto at = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (at >= plan.job_count) return;
  const CudaJob job = plan.jobs[at];
  int32_t count = 0;
  for (int32_t i = 0; i < job.segments && job.rows > 0; ++i) {
    CudaSegment segment = plan.segments[job.segment_begin + i];
    widen(segment, job.low, job.high);
    count += (segment.count + block_keys - 1) / block_keys;
  }
  blocks[at] = count;
}

}  // namespace

bool runs_on(int device) { return hopper::runs_on(device); }

void launch(const Context& context, const cuda_attention::Problem& problem, const Fp8Rows& rows,
            bool anywhere) {
  Arguments arguments;
  arguments.problem = problem;
  arguments.queries = cuda::device_data<uint8_t>(rows.queries.view());
  arguments.query_scales = cuda::device_data<float>(rows.query_scales.view());
  arguments.keys = cuda::device_data<uint8_t>(rows.keys.view());
  arguments.values = cuda::device_data<uint8_t>(rows.values.view());
  arguments.key_scales = cuda::device_data<float>(rows.scales.view());
  arguments.value_scales = arguments.key_scales + rows.scales.size(1);
  arguments.pieces = rows.pieces;
  Tensor counted;
  if (anywhere) {
    const int32_t jobs = problem.plan.job_count;
    counted = Tensor(DType::i32, {jobs}, context.device);
    auto* blocks = reinterpret_cast<int32_t*>(counted.view().raw());
    cuda::launch({cuda::blocks_for(jobs, 128), 128, 0, cuda::enter(context)},
                 "counting attention blocks", count_blocks<>, problem.plan, blocks);
    arguments.blocks = blocks;
  }
  constexpr size_t bytes = sizeof(Shared) + 1024;
  const auto kernel = attend<>;
  cuda::check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
              "preparing attention in FP8");
  const int blocks = std::min(problem.plan.job_count, cuda::multiprocessors(context.device.index));
  cuda::launch({static_cast<unsigned int>(blocks), threads, bytes, cuda::enter(context)},
               "attention in FP8", kernel, arguments);
}

}  // namespace kinora::fp8_attention
