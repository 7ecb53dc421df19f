// Plans of chosen blocks, made on the device.
#include <algorithm>

#include "attention/cuda/block_plan_cuda.h"
#include "base/cuda_support.h"

namespace kinora::cuda_attention {
namespace {

constexpr int32_t tile_segments = 3;

struct BlockBuild {
  const int32_t* blocks = nullptr;  // as in DeviceBlocks
  const int32_t* counts = nullptr;
  int32_t most = 0;
  int32_t heads = 0;
  int32_t group = 1;  // heads of a kv head
  int32_t tiles = 0;
  int32_t query_count = 0;
  int32_t row_count = 0;
  const int32_t* limits = nullptr;  // [queries], or null: limit_base + query
  int32_t limit_base = 0;
  int32_t tile = 0;
  int32_t block = 0;
  int32_t sink_end = 0;
  int32_t window = 0;
  int32_t job_rows = 0;
  int32_t block_keys = 0;
  int32_t tile_jobs = 0;
  CudaPiece* pieces = nullptr;      // [heads, tiles, most · block / 32]
  CudaSegment* segments = nullptr;  // [heads, tiles, tile_segments]
  // Kv head by kv head, since the cache holds much of the rows of one and little of all; the last
  // tile first.
  CudaJob* jobs = nullptr;

  __device__ int32_t limit(int32_t query) const {
    return limits != nullptr ? limits[query] : limit_base + query;
  }
};

// grid: (tiles, heads)
__global__ void make_block_jobs(const __grid_constant__ BlockBuild a) {
  const int32_t tile = static_cast<int32_t>(blockIdx.x), head = static_cast<int32_t>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t list = int64_t{head} * a.tiles + tile;
  const int32_t in_block = a.block / piece_keys;
  const int64_t piece_begin = list * a.most * in_block;
  const int32_t count = a.counts[list];
  for (int32_t i = thread; i < count * in_block; i += static_cast<int32_t>(blockDim.x)) {
    a.pieces[piece_begin + i] = {
        a.blocks[list * a.most + i / in_block] * a.block + i % in_block * piece_keys, piece_keys};
  }
  const int32_t first = tile * a.tile;
  const int32_t height = min(a.tile, a.query_count - first);
  const int32_t window = max(0, a.limit(first) - a.window) / a.block * a.block;
  CudaSegment sink, chosen, rest;
  sink.count = min(a.sink_end, window);
  chosen.begin = piece_begin;
  chosen.count = count * a.block;
  chosen.stride = piece_stride;
  rest.begin = window;
  rest.count = a.row_count - window;
  const CudaSegment parts[tile_segments] = {sink, chosen, rest};
  if (thread < tile_segments) a.segments[list * tile_segments + thread] = parts[thread];
  for (int32_t piece = thread; piece < a.tile_jobs; piece += static_cast<int32_t>(blockDim.x)) {
    CudaJob job;
    job.segment_begin = list * tile_segments;
    job.segments = tile_segments;
    job.query_begin = first;
    job.row_begin = int64_t{piece} * a.job_rows;
    job.rows = max(0, min(a.job_rows, height - piece * a.job_rows));
    job.head = head;
    if (job.rows > 0) {
      job.low = a.limit(first + piece * a.job_rows);
      job.high = a.limit(first + piece * a.job_rows + job.rows - 1);
    }
    for (int32_t i = 0; i < tile_segments && job.rows > 0; ++i) {
      CudaSegment segment = parts[i];
      segment.trim(job.low, job.high);
      job.blocks += (segment.count + a.block_keys - 1) / a.block_keys;
    }
    const int64_t row = int64_t{head / a.group} * a.tiles + a.tiles - 1 - tile;
    a.jobs[(row * a.tile_jobs + piece) * a.group + head % a.group] = job;
  }
}

}  // namespace

DevicePlan block_plan(const Context& context, const QueryView& queries, const RowSet& rows,
                      const BlockLayout& layout, const DeviceBlocks& chosen,
                      const ConstTensorView& out) {
  const cudaStream_t stream = cuda::enter(context);
  DevicePlan plan;
  plan.kernel = choose_kernel(context, queries.queries, rows, out);
  const CudaCut cut = cut_for(context, plan.kernel);
  plan.query_count = queries.count();
  plan.row_count = rows.count();
  plan.heads = static_cast<int32_t>(chosen.blocks.size(0));
  plan.covers_all = true;
  plan.pieces = true;
  if (layout.block % piece_keys == 0) plan.start = ListStart::blocks;
  const int64_t tiles = chosen.blocks.size(1), most = chosen.blocks.size(2);
  const size_t lists = static_cast<size_t>(plan.heads * tiles);
  const auto make = [&](size_t bytes) {
    plan.memory.push_back(Buffer::allocate(context.device, std::max<size_t>(bytes, 1)));
    return plan.memory.back()->data();
  };
  BlockBuild build;
  build.blocks = cuda::device_data<int32_t>(chosen.blocks.view());
  build.counts = cuda::device_data<int32_t>(chosen.counts.view());
  build.most = static_cast<int32_t>(most);
  build.heads = plan.heads;
  build.group = plan.heads / static_cast<int32_t>(rows.keys.size(1));
  build.tiles = static_cast<int32_t>(tiles);
  build.query_count = static_cast<int32_t>(queries.count());
  build.row_count = static_cast<int32_t>(rows.count());
  const DeviceLimits limits = device_limits(context, queries, rows);
  build.limits = limits.data();
  build.limit_base = limits.base;
  build.tile = static_cast<int32_t>(layout.tile);
  build.block = static_cast<int32_t>(layout.block);
  build.sink_end = static_cast<int32_t>(layout.sink_end(rows.count()));
  build.window = static_cast<int32_t>(std::min<int64_t>(layout.window, rows.count()));
  build.job_rows = cut.job_rows;
  build.block_keys = cut.block_keys;
  build.tile_jobs = static_cast<int32_t>((layout.tile + cut.job_rows - 1) / cut.job_rows);
  build.pieces = reinterpret_cast<CudaPiece*>(
      make(lists * static_cast<size_t>(most * layout.block / piece_keys) * sizeof(CudaPiece)));
  build.segments =
      reinterpret_cast<CudaSegment*>(make(lists * tile_segments * sizeof(CudaSegment)));
  const size_t jobs = lists * static_cast<size_t>(build.tile_jobs);
  build.jobs = reinterpret_cast<CudaJob*>(make(jobs * sizeof(CudaJob)));
  cuda::launch({dim3(static_cast<unsigned int>(tiles), static_cast<unsigned int>(plan.heads)), 128,
                0, stream},
               "listing attention blocks", make_block_jobs, build);
  plan.view.jobs = build.jobs;
  plan.view.segments = build.segments;
  plan.view.pieces = build.pieces;
  plan.view.limits = build.limits;
  plan.view.limit_base = build.limit_base;
  if (limits.list.defined()) plan.lists.push_back(limits.list);
  plan.view.next = reinterpret_cast<int32_t*>(make(sizeof(int32_t)));
  plan.passes = {CudaPass{0, static_cast<int64_t>(jobs), 0, 0}};
  return plan;
}

}  // namespace kinora::cuda_attention
