// How many (query, head, row) triples a plan on the device computes.
#include "attention/cuda/cuda_problem.cuh"
#include "attention/cuda/lines/line_plan_cuda.h"
#include "base/cuda_support.h"

namespace kinora::cuda_attention {
namespace {

constexpr int pair_threads = 128;

// Rows of a job that read a key which is compared by this value.
__device__ inline int64_t readers(const CudaPlanView& plan, const CudaJob& job, int32_t compared) {
  if (compared < job.low) return job.rows;
  if (compared >= job.high) return 0;
  if (job.heads == 1 && job.listed == 0 && plan.limits == nullptr) return job.high - compared;
  // Limits never fall from row to row, those of one query's heads being the same.
  int low = 0, high = job.rows - 1;  // the first row that reads it; the last one does
  while (low < high) {
    const int middle = (low + high) / 2;
    if (compared < find_row(plan, job, middle).limit) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return job.rows - low;
}

// grid: any; a block takes one job at a time, a thread one row of a band or one key of a list
__global__ void __launch_bounds__(pair_threads)
    pairs_kernel(CudaPlanView plan, int64_t jobs, unsigned long long* total) {
  const int thread = static_cast<int>(threadIdx.x);
  unsigned long long own = 0;
  for (int64_t i = blockIdx.x; i < jobs; i += gridDim.x) {
    const CudaJob& job = plan.jobs[i];
    if (job.rows == 0 || job.blocks == 0 || job.first_block > 0) continue;
    Cursor<pair_threads> cursor(plan, job);
    while (cursor.at < cursor.segment.count) {
      const CudaSegment& segment = cursor.segment;
      if (segment.stride > 0) {
        for (int row = thread; row < job.rows; row += pair_threads) {
          own += max(segment.full, segment.before(find_row(plan, job, row).limit));
        }
        cursor.at = segment.count;
        cursor.find();
        continue;
      }
      // Where all rows of the job read all keys of a piece or word, these are not looked at singly.
      for (int32_t first = thread * 32; first < segment.count; first += pair_threads * 32) {
        int32_t last = 0, keys = 0;
        if (segment.stride == piece_stride) {
          const CudaPiece piece = plan.pieces[segment.begin + first / piece_keys];
          const int32_t begin = piece.begin + segment.shift;
          last = begin + piece.count - 1;
          keys = min(piece.count, piece.count + begin);
        } else if (segment.stride == column_stride) {
          last = plan.gathered[segment.begin + min(first + 31, segment.count - 1)];
          keys = __popc(plan.masks[segment.shift + first / 32]);
        } else {
          last = job.high;
        }
        if (last < job.low) {
          own += static_cast<unsigned long long>(max(keys, 0)) * job.rows;
          continue;
        }
        const int32_t in_block = first % pair_threads;
        Cursor<pair_threads> at = cursor;
        at.at = first - in_block;
        const BlockInfo info = at.info();
        for (int32_t i = 0; i < 32; ++i) {
          own += readers(plan, job, at.compared(plan, info, in_block + i));
        }
      }
      cursor.at = segment.count;
      cursor.find();
    }
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    own += __shfl_xor_sync(0xffffffffu, own, distance);
  }
  if (thread % 32 == 0) atomicAdd(total, own);
}

}  // namespace

Tensor count_pairs(const Context& context, const DevicePlan& plan) {
  const cudaStream_t stream = cuda::enter(context);
  Tensor total(DType::u8, {sizeof(unsigned long long)}, context.device);
  cuda::check(cudaMemsetAsync(total.view().raw(), 0, sizeof(unsigned long long), stream),
              "counting attention");
  const int64_t jobs = plan.passes.back().job_end;
  if (jobs > 0) {
    cuda::launch({cuda::strided_blocks(context, jobs, 1), pair_threads, 0, stream},
                 "counting attention", pairs_kernel, plan.view, jobs,
                 cuda::device_data<unsigned long long>(total.view()));
  }
  return total;
}

}  // namespace kinora::cuda_attention
