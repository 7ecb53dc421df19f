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
  int32_t query_count = 0;                 // of the space
  const int32_t* space_queries = nullptr;  // [query_count]; null: all, in order
  const int32_t* space_limits = nullptr;   // by query; null: limit_base + query
  int32_t limit_base = 0;
  const LineTile* tiles = nullptr;  // [slots]
  int32_t slots = 0;
  // A tile has two parts where some head has a bottom: queries before it, and those in it.
  int32_t parts = 1;
  int32_t heights[most_drawn_heights] = {};
  const int32_t* line_heads = nullptr;  // those without a grid
  int32_t line_count = 0;
  int32_t job_rows = 0;
  int32_t block_keys = 0;

  const int32_t* columns = nullptr;  // as in DeviceLines
  const int32_t* column_counts = nullptr;
  const int32_t* slashes = nullptr;
  const int32_t* slash_counts = nullptr;
  int32_t most_columns = 0;
  int32_t most_slashes = 0;

  // For every height that tiles are drawn with: [heights, heads, …]
  int32_t drawn = 0;              // heights
  DistanceRun* runs = nullptr;    // [… most_slashes]
  CudaPiece* whole = nullptr;     // [… most_whole]: pieces of 32 keys, the nearest first
  CudaPiece* rest = nullptr;      // [… most_slashes]: what is left of a run, likewise
  int32_t* run_counts = nullptr;  // [… 3]: of runs, whole and rest
  int32_t most_whole = 0;
  uint32_t* masks = nullptr;  // [heads, slots, mask_words]
  int32_t mask_words = 0;

  CudaJob* jobs = nullptr;
  CudaSegment* segments = nullptr;  // [heads, slots, parts, tile_segments]

  // Rows that the query at a place of the space sees.
  __device__ int32_t limit(int32_t place) const {
    const int32_t query = space_queries != nullptr ? space_queries[place] : place;
    return space_limits != nullptr ? space_limits[query] : limit_base + query;
  }
};

// grid: (heads, heights)
__global__ void __launch_bounds__(piece_threads) make_pieces(const __grid_constant__ LineBuild a) {
  __shared__ int32_t scratch[33];
  const int head = static_cast<int>(blockIdx.x);
  if (a.heads[head].probed == 0 || a.heads[head].has_grid != 0) return;
  const int64_t list = int64_t{blockIdx.y} * a.head_count + head;
  const int32_t height = a.heights[blockIdx.y];
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
  const int head = static_cast<int>(blockIdx.y), slot = static_cast<int>(blockIdx.x);
  if (a.heads[head].probed == 0 || a.heads[head].has_grid != 0) return;
  const LineTile tile = a.tiles[slot];
  // Coordinates of the first and the last query, as they are drawn.
  const int32_t low = tile.coordinate, high = low + a.heights[tile.drawn] - 1;
  const int32_t seen = a.limit(tile.first + tile.count - 1);
  const int64_t list = int64_t{tile.drawn} * a.head_count + head;
  const DistanceRun* runs = a.runs + list * a.most_slashes;
  const int32_t run_count = a.run_counts[list * 3];
  const int32_t* columns = a.columns + int64_t{head} * a.most_columns;
  const int32_t count = a.column_counts[head];
  uint32_t* masks = a.masks + (int64_t{head} * a.slots + slot) * a.mask_words;
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
      reads = column < seen && !covered;
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

// One thread a head and part of a tile; the last tile, which reads most, has the first jobs.
__global__ void make_jobs(const __grid_constant__ LineBuild a) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= int64_t{a.slots} * a.parts * a.line_count) return;
  const auto index = static_cast<int32_t>(at % a.line_count);
  const auto turn = static_cast<int32_t>(at / a.line_count);
  const int32_t slot = a.slots - 1 - turn / a.parts;
  const bool full = turn % a.parts == 1;  // reads everything
  const int32_t head = a.line_heads[index];
  const LineHead told = a.heads[head];
  const LineTile tile = a.tiles[slot];
  const int32_t upper = a.query_count - min(told.bottom, a.query_count);
  const int32_t first = full ? max(tile.first, upper) : tile.first;
  const int32_t height =
      max(0, (full ? tile.first + tile.count : min(tile.first + tile.count, upper)) - first);
  const int32_t end = height > 0 ? a.limit(first + height - 1) : 0;
  const int64_t segment_begin =
      ((int64_t{head} * a.slots + slot) * a.parts + (full ? 1 : 0)) * tile_segments;
  CudaSegment list[tile_segments];
  int32_t segments = 0;
  if (height > 0 && full) {
    list[segments++] = band(0, end);
  } else if (height > 0 && told.probed != 0) {
    const int64_t which = int64_t{tile.drawn} * a.head_count + head;
    const CudaPiece* whole = a.whole + which * a.most_whole;
    const CudaPiece* rest = a.rest + which * a.most_slashes;
    const int32_t low = tile.coordinate;
    // Of pieces, the nearest first, those that lie in what the tile sees.
    const auto in_memory = [&](CudaSegment& segment, int64_t begin, const CudaPiece* pieces,
                               int32_t count) {
      const int32_t later =
          first_false(count, [&](int32_t i) { return low + pieces[i].begin >= end; });
      const int32_t last = first_false(
          count, [&](int32_t i) { return low + pieces[i].begin + pieces[i].count > 0; });
      segment.begin = begin + later;
      segment.count = max(0, last - later) * piece_keys;
      segment.stride = piece_stride;
      segment.shift = low;
    };
    in_memory(list[0], whole - a.whole, whole, a.run_counts[which * 3 + 1]);
    // The rest lies behind all that is whole.
    in_memory(list[1], int64_t{a.drawn} * a.head_count * a.most_whole + (rest - a.rest), rest,
              a.run_counts[which * 3 + 2]);
    const int32_t* columns = a.columns + int64_t{head} * a.most_columns;
    list[2].begin = int64_t{head} * a.most_columns;
    list[2].count = first_false(a.column_counts[head], [&](int32_t i) { return columns[i] < end; });
    list[2].stride = column_stride;
    list[2].shift = (head * a.slots + slot) * a.mask_words;
    segments = 3;
  } else if (height > 0) {
    const int32_t window = told.local > 0 ? max(0, tile.reach - told.local + 1) : end;
    if (told.sink >= window) {
      list[segments++] = band(0, end);
    } else {
      if (told.sink > 0) list[segments++] = band(0, min(told.sink, end));
      if (window < end) list[segments++] = band(window, end);
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
    job.listed = a.space_queries != nullptr ? 1 : 0;
    if (job.rows > 0) {
      job.low = a.limit(first + piece * a.job_rows);
      job.high = a.limit(first + piece * a.job_rows + job.rows - 1);
    }
    for (int32_t i = 0; i < segments && job.rows > 0; ++i) {
      CudaSegment segment = list[i];
      segment.trim(job.low, job.high);
      job.blocks += (segment.count + a.block_keys - 1) / a.block_keys;
    }
    a.jobs[(int64_t{turn} * pieces + piece) * a.line_count + index] = job;
  }
}

const int32_t* ints_of(const Tensor& list) {
  return list.defined() ? reinterpret_cast<const int32_t*>(list.view().raw()) : nullptr;
}

// Room for the lists of a plan.
std::byte* make_room(const Context& context, DevicePlan& plan, size_t bytes) {
  plan.memory.push_back(Buffer::allocate(context.device, std::max<size_t>(bytes, 1)));
  return plan.memory.back()->data();
}

DevicePlan empty_plan(const Context& context, const QueryView& queries, const RowSet& rows,
                      size_t heads, const ConstTensorView& out) {
  DevicePlan plan;
  plan.kernel = choose_kernel(context, queries.queries, rows, out);
  plan.query_count = queries.count();
  plan.row_count = rows.count();
  plan.heads = static_cast<int32_t>(heads);
  plan.view.next = reinterpret_cast<int32_t*>(make_room(context, plan, sizeof(int32_t)));
  return plan;
}

// Lists the tiles of grids into a plan. `full` and `other` are the jobs' places there.
void add_grids(const Context& context, const LineSpace& space, GridTiles grids, const CudaCut& cut,
               const DeviceLines& lines, CudaSegment* segments, int64_t segment_begin,
               CudaJob* full, CudaJob* other, DevicePlan& plan) {
  grids.grids = cuda::device_data<FoundGrid>(lines.grids.view());
  grids.space_queries = ints_of(space.device_queries);
  grids.space_limits = ints_of(space.device_limits);
  grids.limit_base = space.limit_base;
  grids.first_row = space.first_row;
  grids.first_query = space.first_query;
  grids.by_place = space.by_place;
  grids.job_rows = cut.job_rows;
  grids.block_keys = cut.block_keys;
  grids.segment_begin = segment_begin;
  grids.segments = segments + segment_begin;
  // Behind the queries of the space, which jobs of other heads have their lists in.
  grids.list_begin = space.queries.empty() ? 0 : space.query_count;
  const auto listed = static_cast<size_t>(grids.list_begin + grids.count * space.query_count);
  auto* list = reinterpret_cast<int32_t*>(make_room(context, plan, listed * sizeof(int32_t)));
  if (grids.list_begin > 0) {
    cuda::check(cudaMemcpyAsync(list, grids.space_queries,
                                static_cast<size_t>(grids.list_begin) * sizeof(int32_t),
                                cudaMemcpyDeviceToDevice, cuda::enter(context)),
                "copying a list of queries");
  }
  grids.queries = list + grids.list_begin;
  const size_t stride_bytes = static_cast<size_t>(plan.heads) * sizeof(int32_t);
  grids.strides = reinterpret_cast<int32_t*>(make_room(context, plan, stride_bytes));
  cuda::check(cudaMemsetAsync(grids.strides, 0, stride_bytes, cuda::enter(context)),
              "clearing strides");
  grids.full_jobs = full;
  grids.other_jobs = other;
  if (grids.part == GridPart::second) {
    grids.tile_limits = reinterpret_cast<int32_t*>(
        make_room(context, plan, static_cast<size_t>(plan.query_count) * sizeof(int32_t)));
    plan.view.limits = grids.tile_limits;
  }
  list_grid_tiles(context, grids);
  plan.view.queries = list;
  plan.head_strides = grids.strides;
}

// The lines before the windows of heads that are in_two_plans.
DevicePlan second_plan(const Context& context, const LineSpace& space, const QueryView& queries,
                       const RowSet& rows, std::span<const LineHead> heads,
                       const DeviceLines& lines, const Tensor& told, const ConstTensorView& out) {
  DevicePlan plan = empty_plan(context, queries, rows, heads.size(), out);
  const CudaCut cut = cut_for(context, plan.kernel);
  GridTiles grids = count_grid_tiles(heads, space.query_count, rows.count(), GridPart::second);
  std::vector<int32_t> order;
  for (size_t i = 0; i < heads.size(); ++i) {
    if (in_two_plans(heads[i])) order.push_back(static_cast<int32_t>(i));
  }
  const Tensor ordered = cuda::upload(context, std::span<const int32_t>(order));
  plan.lists.push_back(ordered);
  grids.heads = cuda::device_data<LineHead>(told.view());
  grids.grid_heads = cuda::device_data<int32_t>(ordered.view());
  const size_t job_count = static_cast<size_t>(grids.other_slots) *
                           static_cast<size_t>(grids.count) *
                           static_cast<size_t>(tile_queries / cut.job_rows);
  auto* jobs = reinterpret_cast<CudaJob*>(make_room(context, plan, job_count * sizeof(CudaJob)));
  auto* segments = reinterpret_cast<CudaSegment*>(
      make_room(context, plan, grids.segment_count() * sizeof(CudaSegment)));
  add_grids(context, space, grids, cut, lines, segments, 0, jobs, jobs, plan);
  plan.pieces = true;
  plan.view.jobs = jobs;
  plan.view.segments = segments;
  plan.passes = {CudaPass{0, static_cast<int64_t>(job_count), 0, 0}};
  return plan;
}

}  // namespace

std::vector<DevicePlan> line_plans(const Context& context, const LineSpace& space,
                                   const QueryView& queries, const RowSet& rows,
                                   std::span<const LineHead> heads, const DeviceLines& lines,
                                   const ConstTensorView& out) {
  const cudaStream_t stream = cuda::enter(context);
  std::vector<DevicePlan> plans{empty_plan(context, queries, rows, heads.size(), out)};
  DevicePlan& plan = plans.front();
  const CudaCut cut = cut_for(context, plan.kernel);
  plan.covers_all = space.covers_all;
  const auto make = [&](size_t bytes) { return make_room(context, plan, bytes); };

  LineBuild build;
  build.head_count = plan.heads;
  build.query_count = static_cast<int32_t>(space.query_count);
  build.space_queries = ints_of(space.device_queries);
  build.space_limits = ints_of(space.device_limits);
  build.limit_base = space.limit_base;
  build.tiles = cuda::device_data<LineTile>(space.device_tiles.view());
  build.slots = static_cast<int32_t>(space.tiles.size());
  build.drawn = static_cast<int32_t>(space.heights.size());
  std::copy(space.heights.begin(), space.heights.end(), build.heights);
  build.job_rows = cut.job_rows;
  build.block_keys = cut.block_keys;
  std::vector<int32_t> order;  // heads without a grid, then those with one
  for (const int32_t has_grid : {0, 1}) {
    for (size_t i = 0; i < heads.size(); ++i) {
      if (heads[i].absent == 0 && heads[i].has_grid == has_grid) {
        order.push_back(static_cast<int32_t>(i));
      }
    }
    if (has_grid == 0) build.line_count = static_cast<int32_t>(order.size());
  }
  bool probed = false, two = false;
  for (const LineHead& head : heads) {
    plan.covers_all = plan.covers_all && head.absent == 0;
    plan.pieces = plan.pieces || head.probed != 0;
    probed = probed || (head.probed != 0 && head.has_grid == 0);
    two = two || in_two_plans(head);
    if (head.has_grid == 0 && head.bottom > 0) build.parts = 2;
  }
  // Heads that are not looked at read bands of adjacent rows.
  if (!plan.pieces) plan.start = ListStart::rows;
  const auto tiles = static_cast<size_t>(build.slots) * heads.size();
  const size_t line_segments = tiles * static_cast<size_t>(build.parts) * tile_segments;
  const Tensor told = cuda::upload(context, heads);
  const Tensor ordered = cuda::upload(context, std::span<const int32_t>(order));
  build.heads = cuda::device_data<LineHead>(told.view());
  build.line_heads = cuda::device_data<int32_t>(ordered.view());
  GridTiles grids = count_grid_tiles(heads, space.query_count, rows.count(), GridPart::first);
  // Jobs of grids that read everything come first, the others, which read least, last.
  const auto tile_jobs = static_cast<size_t>(tile_queries / cut.job_rows);
  const size_t full_jobs =
      static_cast<size_t>(grids.full_slots) * static_cast<size_t>(grids.count) * tile_jobs;
  const size_t line_jobs = static_cast<size_t>(build.slots) * static_cast<size_t>(build.parts) *
                           static_cast<size_t>(build.line_count) * tile_jobs;
  const size_t other_jobs =
      static_cast<size_t>(grids.other_slots) * static_cast<size_t>(grids.count) * tile_jobs;
  const size_t job_count = full_jobs + line_jobs + other_jobs;
  auto* jobs = reinterpret_cast<CudaJob*>(make(job_count * sizeof(CudaJob)));
  build.jobs = jobs + full_jobs;
  build.segments = reinterpret_cast<CudaSegment*>(
      make((line_segments + grids.segment_count()) * sizeof(CudaSegment)));
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
    const size_t lists = space.heights.size() * heads.size();
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
    cuda::launch(
        {dim3(head_grid, static_cast<unsigned int>(build.drawn)), piece_threads, 0, stream},
        "listing diagonals", make_pieces, build);
    cuda::launch({dim3(static_cast<unsigned int>(build.slots), head_grid), 128, 0, stream},
                 "listing columns", make_masks, build);
    plan.view.gathered = build.columns;
    plan.view.pieces = build.whole;
    plan.view.masks = build.masks;
    plan.head_columns = build.most_columns;
    plan.lists.push_back(lines.columns);
  }
  if (build.line_count > 0) {
    cuda::launch({cuda::blocks_for(int64_t{build.slots} * build.parts * build.line_count, 128), 128,
                  0, stream},
                 "listing attention jobs", make_jobs, build);
  }
  plan.view.limit_base = space.limit_base;
  plan.view.limits = build.space_limits;
  plan.view.queries = build.space_queries;
  for (const Tensor* list : {&space.device_queries, &space.device_limits}) {
    if (list->defined()) plan.lists.push_back(*list);
  }
  if (grids.count > 0) {
    grids.heads = build.heads;
    grids.grid_heads = build.line_heads + build.line_count;
    add_grids(context, space, grids, cut, lines, build.segments,
              static_cast<int64_t>(line_segments), jobs, build.jobs + line_jobs, plan);
  }
  plan.view.jobs = jobs;
  plan.view.segments = build.segments;
  plan.passes = {CudaPass{0, static_cast<int64_t>(job_count), 0, 0}};
  if (two) {
    plans.push_back(second_plan(context, space, queries, rows, heads, lines, told, out));
  }
  return plans;
}

}  // namespace kinora::cuda_attention
