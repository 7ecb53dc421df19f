// A plan as the CUDA kernels read it: jobs of at most a tile's height, lists of segments in a
// canonical form, and nothing that grows with (queries × rows). Made on the host (cuda_compile.cc)
// and uploaded by runner_cuda.cu, or made on the device (line_lists_cuda.cu, block_lists_cuda.cu);
// walked by the kernels. Knows no CUDA header.
//
// Rows are sorted by ordinal, so causality needs no ordinals on the device: a query reads the rows
// before its limit, the number of rows not later than it.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define KINORA_HOST_DEVICE __host__ __device__
#else
#define KINORA_HOST_DEVICE
#endif

namespace kinora {

// Keys that lie side by side: rows begin … begin + count. Lists made on the device consist of
// these; each fills `piece_keys` slots of a block, of which the last may stay empty.
constexpr int32_t piece_keys = 32;
struct CudaPiece {
  int32_t begin = 0;
  int32_t count = 0;
};

// What a segment's keys are, told by its stride. Above 0: begin, begin + stride, …; above 1,
// `shift` is the place of the stride in the plan's list of strides, or −1: it is not there.
constexpr int32_t gathered_stride = 0;  // gathered[begin …)
// The slots of pieces[begin …), their rows moved by `shift`. Rows before the first do not exist.
constexpr int32_t piece_stride = -1;
// gathered[begin …) again, one list for all tiles of a head; a tile reads those whose bit is set in
// masks[shift …), 32 keys a word. The runner may keep copies of these rows side by side.
constexpr int32_t column_stride = -2;

// The copy engine fetches keys of so many different strides; those of others come row by row.
constexpr int32_t most_stride_maps = 32;

// Rows [0, n) by phase and step of a stride s: row r has phase r mod s and step r / s. The phases
// below n mod s have one row more than the others, so the two kinds are kept apart: each is a
// rectangle of phases and steps without a hole, which tensor maps can describe.
struct StrideLayout {
  int32_t stride = 1;
  int32_t longer = 0;  // phases that have steps + 1 rows
  int32_t steps = 0;   // rows of each of the others

  KINORA_HOST_DEVICE StrideLayout(int32_t rows, int32_t every) : stride(every) {
    // 32 bits without a sign divide fastest.
    steps = static_cast<int32_t>(static_cast<uint32_t>(rows) / static_cast<uint32_t>(every));
    longer = rows - steps * every;
  }

  struct Place {
    int32_t of_longer;  // 0 or 1
    int32_t phase;      // counted from the first of its kind
    int32_t step;
  };
  KINORA_HOST_DEVICE Place place(int32_t row) const {
    const auto step =
        static_cast<int32_t>(static_cast<uint32_t>(row) / static_cast<uint32_t>(stride));
    const int32_t phase = row - step * stride;
    if (phase < longer) return {1, phase, step};
    return {0, phase - longer, step};
  }
};

// The first `full` keys are for every query; of the others a query skips those at or after its
// limit. Pieces and columns have no `full`.
struct CudaSegment {
  int64_t begin = 0;
  int32_t count = 0;
  int32_t full = 0;
  int32_t stride = 1;
  int32_t shift = 0;

  // How many keys of an affine segment lie before a limit.
  KINORA_HOST_DEVICE int32_t before(int32_t limit) const {
    const int64_t distance = limit - begin;
    if (distance <= 0) return 0;
    if (stride == 1) return static_cast<int32_t>(distance < count ? distance : count);
    const int64_t keys = (distance + stride - 1) / stride;
    return static_cast<int32_t>(keys < count ? keys : count);
  }

  // Leaves out what rows with limits in [low, high] do not see, and frees from the mask what all
  // of them see.
  KINORA_HOST_DEVICE void trim(int32_t low, int32_t high) {
    if (stride <= 0 || full == count) return;
    const int32_t seen = before(high);
    const int32_t by_all = before(low);
    if (by_all > full) full = by_all;
    count = seen > full ? seen : full;
  }
};

// Some rows of a tile and a stretch of its list, counted in blocks of keys. Every segment starts a
// new block.
struct CudaJob {
  int64_t segment_begin = 0;
  int64_t query_begin = 0;  // place in the list of queries, or the first query where not `listed`
  int64_t row_begin = 0;    // rows of a tile run over its queries, heads innermost
  int64_t partial = -1;     // first row in the partial results, or −1: straight to the output
  int32_t segments = 0;
  int32_t first_block = 0;
  int32_t blocks = 0;
  int32_t head = 0;
  int32_t heads = 1;
  int32_t rows = 0;
  int32_t low = 0;  // limits of the job's rows
  int32_t high = 0;
  int32_t listed = 0;
  int32_t back = 0;  // its rows' limits are this much lower than those of their queries
};

// A job that was split over its keys: its rows are joined from `parts` partial results.
struct CudaMerge {
  CudaJob job;  // the first part; part p has the partial rows job.partial + p · job.rows …
  int32_t parts = 0;
  int32_t reserved = 0;
};

// Where a kernel finds the pieces.
struct CudaPlanView {
  const CudaJob* jobs = nullptr;
  const CudaSegment* segments = nullptr;
  const int32_t* gathered = nullptr;
  const CudaPiece* pieces = nullptr;
  const uint32_t* masks = nullptr;
  const int32_t* queries = nullptr;
  const int32_t* limits = nullptr;  // [query count], or null: limit_base + query
  int32_t limit_base = 0;
  int32_t job_count = 0;
  int32_t* next = nullptr;  // the next job to take; zero before the launch

  KINORA_HOST_DEVICE int32_t limit(int64_t query) const {
    return limits != nullptr ? limits[query] : static_cast<int32_t>(limit_base + query);
  }
};

}  // namespace kinora
