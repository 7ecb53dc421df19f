// Turns a plan into what the CUDA kernels walk (cuda_plan.h): on the host, before the upload. Costs
// O(tiles + segments + queries), never O(queries × rows).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/cuda/cuda_plan.h"
#include "attention/plan/plan.h"

namespace kinora {

// How the kernel that will run the plan cuts work.
struct CudaCut {
  int32_t job_rows = 128;
  int32_t block_keys = 128;
  int32_t processors = 1;
  bool split = true;         // long lists may be cut into parts that are merged
  bool repeat_jobs = false;  // the kernel can run a job for several heads (CudaPlan::repeats)
};

// The jobs of one pass, in the order in which they are taken.
struct CudaPass {
  int64_t job_begin = 0;
  int64_t job_end = 0;
  int64_t merge_begin = 0;
  int64_t merge_end = 0;
};

// Where the lists of a plan begin, for the kernel that reads blocks of 32 rows
// (fp8/fp8_kernel.cuh).
enum class ListStart : uint8_t {
  blocks,     // contiguous keys and whole pieces, at multiples of 32
  rows,       // contiguous keys anywhere, of jobs that are not cut into parts
  scattered,  // anything else
};

struct CudaPlan {
  std::vector<CudaJob> jobs;
  std::vector<CudaSegment> segments;
  std::vector<CudaMerge> merges;
  std::vector<int32_t> gathered;
  std::vector<int32_t> queries;  // of tiles whose queries are not a range
  std::vector<int32_t> limits;   // empty: limit_base + query
  int32_t limit_base = 0;
  std::vector<CudaPass> passes;
  int64_t partial_rows = 0;
  int32_t repeats = 1;           // every job is run for this many heads, from its own on
  std::vector<int32_t> strides;  // of strided segments, at most most_stride_maps
  bool any_row_lists = false;    // gathered segments, or strided ones of other strides
  bool covers_all = false;       // the first pass writes every query of every head
  ListStart start = ListStart::scattered;
};

// The plan must be valid for these ordinals (validate in plan.h); they may be empty where nothing
// is masked.
CudaPlan compile_plan(const Plan& plan, std::span<const int32_t> query_ordinals,
                      std::span<const int32_t> row_ordinals, const CudaCut& cut);

struct CudaShape {
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t queries = 0;
  int64_t rows = 0;
};

// Every query reads every row that is not later than itself: one segment, jobs across the heads of
// a kv head.
CudaPlan compile_dense(const CudaShape& shape, std::span<const int32_t> query_ordinals,
                       std::span<const int32_t> row_ordinals, const CudaCut& cut);

// Rows [offsets[w], offsets[w + 1]) read one another; offsets rise from 0 to the number of queries.
CudaPlan compile_windows(const CudaShape& shape, std::span<const int32_t> offsets,
                         const CudaCut& cut);

}  // namespace kinora
