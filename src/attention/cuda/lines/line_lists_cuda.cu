// Lists of line patterns, made on the device. Diagonals move with the queries, so all tiles of a
// head share one list of pieces, in rows relative to a tile's first query; a tile reads the part
// that lies in memory. Columns stay where they are and are shared likewise; each tile has a bit for
// every column that its diagonals do not cover.
#include <algorithm>

#include "attention/cuda/lines/grid_plan_cuda.h"
#include "attention/cuda/lines/line_plan_cuda.h"
#include "attention/cuda/runner_cuda.h"
#include "attention/cuda/scan_cuda.cuh"
#include "base/cuda_support.h"
#include "ops/rows_cuda.h"

namespace kinora::cuda_attention {
namespace {

constexpr int32_t tile_queries = line_tile;
constexpr int32_t tile_segments = 3;
constexpr int piece_threads = 256;

// Distances [begin, end), diagonals whose keys meet within a tile joined into one.
struct DistanceRun {
  int32_t begin, end;
};

struct LineBuild {
  const LineHead* heads = nullptr;
  int32_t head_count = 0;
  int32_t query_count = 0;
  int32_t row_count = 0;
  int32_t limit_base = 0;
  const int32_t* line_heads = nullptr;  // those without a grid
  int32_t line_count = 0;
  int32_t slots = 0;  // tiles of the one that has most
  int32_t job_rows = 0;
  int32_t block_keys = 0;

  const int32_t* columns = nullptr;  // as in DeviceLines
  const int32_t* column_counts = nullptr;
  const int32_t* slashes = nullptr;
  const int32_t* slash_counts = nullptr;
  int32_t most_columns = 0;
  int32_t most_slashes = 0;

  // For tiles of full height and for the last one: [2, heads, …]
  DistanceRun* runs = nullptr;    // [… most_slashes]
  CudaPiece* whole = nullptr;     // [… most_whole]: pieces of 32 keys, the nearest first
  CudaPiece* rest = nullptr;      // [… most_slashes]: what is left of a run, likewise
  int32_t* run_counts = nullptr;  // [… 3]: of runs, whole and rest
  int32_t most_whole = 0;
  uint32_t* masks = nullptr;  // [heads, slots, mask_words]
  int32_t mask_words = 0;

  CudaJob* jobs = nullptr;
  CudaSegment* segments = nullptr;  // [heads, slots, tile_segments]

  __device__ int32_t last_height() const {
    const int32_t over = query_count % tile_queries;
    return over == 0 ? tile_queries : over;
  }
  // Which of the two lists a tile of a probed head uses.
  __device__ int32_t list_of(int32_t head, int32_t tile) const {
    const bool last = tile == (query_count - 1) / tile_queries;
    return (last ? head_count : 0) + head;
  }
};

// grid: (heads, 2)
__global__ void __launch_bounds__(piece_threads) make_pieces(const __grid_constant__ LineBuild a) {
  __shared__ int32_t scratch[33];
  const int head = static_cast<int>(blockIdx.x);
  if (a.heads[head].probed == 0 || a.heads[head].has_grid != 0) return;
  const int64_t list = int64_t{blockIdx.y} * a.head_count + head;
  const int32_t height = blockIdx.y == 0 ? tile_queries : a.last_height();
  const int32_t* slashes = a.slashes + int64_t{head} * a.most_slashes;
  const int32_t count = a.slash_counts[head];
  DistanceRun* runs = a.runs + list * a.most_slashes;
  const int thread = static_cast<int>(threadIdx.x);
  int32_t run_count = 0;
  for (int32_t first = 0; first < count; first += piece_threads) {
    const int32_t i = first + thread;
    const bool starts = i < count && (i == 0 || slashes[i] - slashes[i - 1] > height);
    int32_t total = 0;
    const int32_t run = run_count + exclusive_scan(starts ? 1 : 0, scratch, total);
    if (starts) {
      runs[run].begin = slashes[i];
      if (i > 0) runs[run - 1].end = slashes[i - 1] + 1;
    }
    if (i == count - 1) runs[starts ? run : run - 1].end = slashes[i] + 1;
    run_count += total;
  }
  __syncthreads();
  CudaPiece* whole = a.whole + list * a.most_whole;
  CudaPiece* rest = a.rest + list * a.most_slashes;
  int32_t whole_count = 0, rest_count = 0;
  for (int32_t first = 0; first < run_count; first += piece_threads) {
    const int32_t i = first + thread;
    // Rows relative to the tile's first query.
    int32_t begin = 0, end = 0;
    if (i < run_count) {
      begin = 1 - runs[i].end;
      end = height - runs[i].begin;
    }
    const int32_t pieces = (end - begin) / piece_keys, left = (end - begin) % piece_keys;
    int32_t total = 0, rest_total = 0;
    const int32_t at = whole_count + exclusive_scan(pieces, scratch, total);
    const int32_t rest_at = rest_count + exclusive_scan(left > 0 ? 1 : 0, scratch, rest_total);
    for (int32_t k = 0; k < pieces; ++k) whole[at + k] = {end - piece_keys * (k + 1), piece_keys};
    if (left > 0) rest[rest_at] = {begin, left};
    whole_count += total;
    rest_count += rest_total;
  }
  if (thread == 0) {
    a.run_counts[list * 3] = run_count;
    a.run_counts[list * 3 + 1] = whole_count;
    a.run_counts[list * 3 + 2] = rest_count;
  }
}

// How many of `count` things that hold before some place hold.
template <class Holds>
__device__ inline int32_t first_false(int32_t count, const Holds& holds) {
  int32_t low = 0;
  while (count > 0) {
    const int32_t half = count / 2;
    if (holds(low + half)) {
      low += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return low;
}

// grid: (slots, heads), whole warps; each has a word at a time
__global__ void make_masks(const __grid_constant__ LineBuild a) {
  const int head = static_cast<int>(blockIdx.y), tile = static_cast<int>(blockIdx.x);
  const int32_t first = tile * tile_queries;
  if (a.heads[head].probed == 0 || a.heads[head].has_grid != 0 || first >= a.query_count) return;
  const int32_t low = a.limit_base + first - 1;  // rows of the first and the last query
  const int32_t high = low + min(tile_queries, a.query_count - first) - 1;
  const int64_t list = a.list_of(head, tile);
  const DistanceRun* runs = a.runs + list * a.most_slashes;
  const int32_t run_count = a.run_counts[list * 3];
  const int32_t* columns = a.columns + int64_t{head} * a.most_columns;
  const int32_t count = a.column_counts[head];
  uint32_t* masks = a.masks + (int64_t{head} * a.slots + tile) * a.mask_words;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  for (int word = static_cast<int>(threadIdx.x) / 32; word < a.mask_words; word += warps) {
    const int32_t i = word * 32 + lane;
    bool reads = false;
    if (i < count) {
      const int32_t column = columns[i];
      // Covered if some run has a distance between low − column and high − column.
      const int32_t run =
          first_false(run_count, [&](int32_t r) { return runs[r].end <= low - column; });
      const bool covered = run < run_count && runs[run].begin <= high - column;
      reads = column <= high && !covered;
    }
    const uint32_t bits = __ballot_sync(0xffffffffu, reads);
    if (lane == 0) masks[word] = bits;
  }
}

__device__ inline CudaSegment band(int32_t begin, int32_t end) {
  CudaSegment segment;
  segment.begin = begin;
  segment.count = max(0, end - begin);
  return segment;
}

// One thread a head and tile; slot 0 is the last tile, which reads most.
__global__ void make_jobs(const __grid_constant__ LineBuild a) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= int64_t{a.slots} * a.line_count) return;
  const auto index = static_cast<int32_t>(at % a.line_count);
  const auto slot = static_cast<int32_t>(at / a.line_count);
  const int32_t head = a.line_heads[index];
  const LineHead told = a.heads[head];
  // Queries of the bands, in tiles; then those that read everything, in tiles of their own.
  const int32_t bottom = min(told.bottom, a.query_count);
  const int32_t upper = a.query_count - bottom;
  const int32_t upper_tiles = (upper + tile_queries - 1) / tile_queries;
  const int32_t tiles = upper_tiles + (bottom + tile_queries - 1) / tile_queries;
  const int32_t tile = tiles - 1 - slot;
  int32_t first = 0, height = 0;
  if (tile >= upper_tiles) {
    first = upper + (tile - upper_tiles) * tile_queries;
    height = min(tile_queries, a.query_count - first);
  } else if (tile >= 0) {
    first = tile * tile_queries;
    height = min(tile_queries, upper - first);
  }
  const int32_t low = a.limit_base + first - 1, high = low + height - 1;
  const int64_t segment_begin = (int64_t{head} * a.slots + max(tile, 0)) * tile_segments;
  CudaSegment list[tile_segments];
  int32_t segments = 0;
  if (tile >= upper_tiles) {
    list[segments++] = band(0, high + 1);
  } else if (tile >= 0 && told.probed != 0) {
    const int64_t which = a.list_of(head, tile);
    const CudaPiece* whole = a.whole + which * a.most_whole;
    const CudaPiece* rest = a.rest + which * a.most_slashes;
    const auto in_memory = [&](const CudaPiece* pieces, int32_t count) {
      return first_false(count,
                         [&](int32_t i) { return low + pieces[i].begin + pieces[i].count > 0; });
    };
    list[0].begin = whole - a.whole;
    list[0].count = in_memory(whole, a.run_counts[which * 3 + 1]) * piece_keys;
    // The rest lies behind all that is whole.
    list[1].begin = 2ll * a.head_count * a.most_whole + (rest - a.rest);
    list[1].count = in_memory(rest, a.run_counts[which * 3 + 2]) * piece_keys;
    list[0].stride = list[1].stride = piece_stride;
    list[0].shift = list[1].shift = low;
    const int32_t* columns = a.columns + int64_t{head} * a.most_columns;
    list[2].begin = int64_t{head} * a.most_columns;
    list[2].count =
        first_false(a.column_counts[head], [&](int32_t i) { return columns[i] <= high; });
    list[2].stride = column_stride;
    list[2].shift = (head * a.slots + tile) * a.mask_words;
    segments = 3;
  } else if (tile >= 0) {
    const int32_t window = told.local > 0 ? max(0, low - told.local + 1) : high + 1;
    if (told.sink >= window) {
      list[segments++] = band(0, high + 1);
    } else {
      if (told.sink > 0) list[segments++] = band(0, told.sink);
      if (window <= high) list[segments++] = band(window, high + 1);
    }
  }
  for (int32_t i = 0; i < segments; ++i) a.segments[segment_begin + i] = list[i];

  const int32_t pieces = tile_queries / a.job_rows;
  for (int32_t piece = 0; piece < pieces; ++piece) {
    CudaJob job;
    job.segment_begin = segment_begin;
    job.segments = segments;
    job.query_begin = first;
    job.row_begin = piece * a.job_rows;
    job.rows = max(0, min(a.job_rows, height - piece * a.job_rows));
    job.head = head;
    job.low = a.limit_base + first + piece * a.job_rows;
    job.high = job.low + max(job.rows, 1) - 1;
    for (int32_t i = 0; i < segments && job.rows > 0; ++i) {
      CudaSegment segment = list[i];
      segment.trim(job.low, job.high);
      job.blocks += (segment.count + a.block_keys - 1) / a.block_keys;
    }
    a.jobs[(int64_t{slot} * pieces + piece) * a.line_count + index] = job;
  }
}

}  // namespace

DevicePlan line_plan(const Context& context, const QueryView& queries, const RowSet& rows,
                     std::span<const LineHead> heads, const DeviceLines& lines,
                     const ConstTensorView& out) {
  const cudaStream_t stream = cuda::enter(context);
  DevicePlan plan;
  plan.kernel = choose_kernel(context, queries.queries, rows, out);
  const CudaCut cut = cut_for(context, plan.kernel);
  plan.query_count = queries.count();
  plan.row_count = rows.count();
  plan.heads = static_cast<int32_t>(heads.size());
  plan.covers_all = true;

  LineBuild build;
  build.head_count = plan.heads;
  build.query_count = static_cast<int32_t>(queries.count());
  build.row_count = static_cast<int32_t>(rows.count());
  build.limit_base = queries.ordinals.front() - rows.ordinals.front() + 1;
  build.job_rows = cut.job_rows;
  build.block_keys = cut.block_keys;
  std::vector<int32_t> order;  // heads without a grid, then those with one
  for (const int32_t has_grid : {0, 1}) {
    for (size_t i = 0; i < heads.size(); ++i) {
      if (heads[i].has_grid == has_grid) order.push_back(static_cast<int32_t>(i));
    }
    if (has_grid == 0) build.line_count = static_cast<int32_t>(order.size());
  }
  bool probed = false;
  for (const LineHead& head : heads) {
    plan.pieces = plan.pieces || head.probed != 0;
    probed = probed || (head.probed != 0 && head.has_grid == 0);
    if (head.has_grid != 0) continue;
    const int64_t bottom = std::min<int64_t>(head.bottom, queries.count());
    const auto tiles = [](int64_t count) { return (count + tile_queries - 1) / tile_queries; };
    build.slots = std::max(build.slots,
                           static_cast<int32_t>(tiles(queries.count() - bottom) + tiles(bottom)));
  }
  const auto make = [&](size_t bytes) {
    plan.memory.push_back(Buffer::allocate(context.device, std::max<size_t>(bytes, 1)));
    return plan.memory.back()->data();
  };
  const auto tiles = static_cast<size_t>(build.slots) * heads.size();
  const Tensor told = cuda::upload(context, heads);
  const Tensor ordered = cuda::upload(context, std::span<const int32_t>(order));
  build.heads = cuda::device_data<LineHead>(told.view());
  build.line_heads = cuda::device_data<int32_t>(ordered.view());
  GridTiles grids = count_grid_tiles(heads, queries.count(), rows.count());
  // Jobs of grids that read everything come first, the others, which read least, last.
  const auto tile_jobs = static_cast<size_t>(tile_queries / cut.job_rows);
  const size_t full_jobs =
      static_cast<size_t>(grids.full_slots) * static_cast<size_t>(grids.count) * tile_jobs;
  const size_t line_jobs =
      static_cast<size_t>(build.slots) * static_cast<size_t>(build.line_count) * tile_jobs;
  const size_t other_jobs =
      static_cast<size_t>(grids.other_slots) * static_cast<size_t>(grids.count) * tile_jobs;
  const size_t job_count = full_jobs + line_jobs + other_jobs;
  auto* jobs = reinterpret_cast<CudaJob*>(make(job_count * sizeof(CudaJob)));
  build.jobs = jobs + full_jobs;
  build.segments = reinterpret_cast<CudaSegment*>(
      make((tiles * tile_segments + grids.segment_count()) * sizeof(CudaSegment)));
  Tensor runs, counts;
  if (probed) {
    build.columns = cuda::device_data<int32_t>(lines.columns.view());
    build.column_counts = cuda::device_data<int32_t>(lines.column_counts.view());
    build.slashes = cuda::device_data<int32_t>(lines.slashes.view());
    build.slash_counts = cuda::device_data<int32_t>(lines.slash_counts.view());
    build.most_columns = static_cast<int32_t>(lines.columns.size(1));
    build.most_slashes = static_cast<int32_t>(lines.slashes.size(1));
    // A run of d diagonals has ⌊(d + height − 1) / 32⌋ whole pieces.
    build.most_whole =
        build.most_slashes / piece_keys + build.most_slashes * (tile_queries / piece_keys) + 1;
    build.mask_words = (build.most_columns + 31) / 32;
    const size_t lists = 2 * heads.size();
    const auto most_slashes = static_cast<size_t>(build.most_slashes);
    const auto most_whole = static_cast<size_t>(build.most_whole);
    build.whole =
        reinterpret_cast<CudaPiece*>(make(lists * (most_whole + most_slashes) * sizeof(CudaPiece)));
    build.rest = build.whole + lists * most_whole;
    const size_t words = tiles * static_cast<size_t>(build.mask_words);
    if (words > size_t{0x7fffffff}) {
      throw Error(ErrorKind::unsupported,
                  "attention of so many queries, heads and columns does not fit a plan on a GPU; "
                  "read the prompt in smaller groups");
    }
    build.masks = reinterpret_cast<uint32_t*>(make(words * sizeof(uint32_t)));
    runs = Tensor(DType::i32, {static_cast<int64_t>(lists), build.most_slashes, 2}, context.device);
    counts = Tensor(DType::i32, {static_cast<int64_t>(lists), 3}, context.device);
    build.runs = cuda::device_data<DistanceRun>(runs.view());
    build.run_counts = cuda::device_data<int32_t>(counts.view());
    const auto head_grid = static_cast<unsigned int>(heads.size());
    cuda::launch({dim3(head_grid, 2), piece_threads, 0, stream}, "listing diagonals", make_pieces,
                 build);
    cuda::launch({dim3(static_cast<unsigned int>(build.slots), head_grid), 128, 0, stream},
                 "listing columns", make_masks, build);
    plan.view.gathered = build.columns;
    plan.view.pieces = build.whole;
    plan.view.masks = build.masks;
    plan.head_columns = build.most_columns;
    plan.lists.push_back(lines.columns);
  }
  cuda::launch({cuda::blocks_for(int64_t{build.slots} * build.line_count, 128), 128, 0, stream},
               "listing attention jobs", make_jobs, build);
  if (grids.count > 0) {
    grids.heads = build.heads;
    grids.grids = cuda::device_data<FoundGrid>(lines.grids.view());
    grids.grid_heads = build.line_heads + build.line_count;
    grids.limit_base = build.limit_base;
    grids.first_row = rows.ordinals.front();
    grids.first_query = queries.ordinals.front();
    grids.job_rows = cut.job_rows;
    grids.block_keys = cut.block_keys;
    grids.segment_begin = static_cast<int64_t>(tiles * tile_segments);
    grids.segments = build.segments + grids.segment_begin;
    grids.queries =
        reinterpret_cast<int32_t*>(make(static_cast<size_t>(grids.count) *
                                        static_cast<size_t>(grids.query_count) * sizeof(int32_t)));
    const size_t stride_bytes = heads.size() * sizeof(int32_t);
    grids.strides = reinterpret_cast<int32_t*>(make(stride_bytes));
    cuda::check(cudaMemsetAsync(grids.strides, 0, stride_bytes, stream), "clearing strides");
    grids.full_jobs = jobs;
    grids.other_jobs = build.jobs + line_jobs;
    list_grid_tiles(context, grids);
    plan.view.queries = grids.queries;
    plan.head_strides = grids.strides;
  }
  plan.view.jobs = jobs;
  plan.view.segments = build.segments;
  plan.view.limit_base = build.limit_base;
  plan.view.next = reinterpret_cast<int32_t*>(make(sizeof(int32_t)));
  plan.passes = {CudaPass{0, static_cast<int64_t>(job_count), 0, 0}};
  return plan;
}

}  // namespace kinora::cuda_attention
