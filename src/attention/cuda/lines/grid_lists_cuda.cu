// Tiles of grids, listed on the device. With slashes, the queries of one phase are a class and have
// tiles of their own, which makes every line affine; without them, tiles are of neighbours. Queries
// on horizontal lines have tiles that read everything. A window besides slashes has tiles of
// neighbours in a first plan; the lines before it have theirs in a second one.
#include <algorithm>

#include "attention/cuda/lines/grid_plan_cuda.h"
#include "attention/search/grid_search.h"
#include "base/cuda_support.h"

namespace kinora::cuda_attention {
namespace {

constexpr int32_t tile_queries = line_tile;

__host__ __device__ inline int32_t tiles_of(int32_t queries) {
  return (queries + tile_queries - 1) / tile_queries;
}

// One head's grid and its queries, by their places in the space. Class o has the queries o,
// o + stride, …
struct GridHead {
  const GridLook& look;
  const FoundGrid& grid;
  int32_t stride;
  int32_t queries;
  int32_t first_query;  // its coordinate
  int32_t horizontals;  // lines
  bool comb;            // has a window besides slashes
  bool classes;         // tiles are of classes

  __device__ GridHead(const GridTiles& a, int32_t head)
      : look(a.heads[head].grid),
        grid(a.grids[head]),
        stride(grid.stride),
        queries(a.query_count),
        first_query(a.first_query),
        horizontals(look.horizontal != 0 ? grid.vertical_count : 0),
        comb(in_two_plans(a.heads[head])),
        classes(look.slash != 0 && (!comb || a.part == GridPart::second)) {}

  __device__ int32_t class_size(int32_t o) const {
    return o < queries ? (queries - 1 - o) / stride + 1 : 0;
  }
  // Queries of all classes before this one.
  __device__ int32_t class_begin(int32_t o) const {
    return o * (queries / stride) + min(o, queries % stride);
  }
  // The class of a phase.
  __device__ int32_t class_of(int32_t phase) const {
    return (phase - first_query % stride + stride) % stride;
  }
  __device__ int32_t phase_of(int32_t query) const { return (first_query + query) % stride; }
  // Which horizontal line a phase is on; −1: none.
  __device__ int32_t line_of(int32_t phase) const {
    for (int32_t i = 0; i < horizontals; ++i) {
      if (grid.vertical[i] == phase) return i;
    }
    return -1;
  }
  // Queries before `query` that are on horizontal lines.
  __device__ int32_t on_lines(int32_t query) const {
    int32_t count = 0;
    for (int32_t i = 0; i < horizontals; ++i) {
      const int32_t o = class_of(grid.vertical[i]);
      if (query > o) count += (query - 1 - o) / stride + 1;
    }
    return count;
  }
  // Number `place` of the queries that are not.
  __device__ int32_t off_lines(int32_t place) const {
    int32_t low = place, high = queries - 1;  // the answer is among these
    while (low < high) {
      const int32_t middle = low + (high - low) / 2;
      if (middle + 1 - on_lines(middle + 1) > place) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
  // Where the list of queries has a horizontal line.
  __device__ int32_t line_begin(int32_t line) const {
    if (classes) return class_begin(class_of(grid.vertical[line]));
    int32_t begin = queries - on_lines(queries);
    for (int32_t i = 0; i < line; ++i) begin += class_size(class_of(grid.vertical[i]));
    return begin;
  }
};

__device__ inline int32_t query_at(const GridTiles& a, int32_t place) {
  return a.space_queries != nullptr ? a.space_queries[place] : place;
}
// Rows that the query at a place sees.
__device__ inline int32_t limit_at(const GridTiles& a, int32_t place) {
  const int32_t query = query_at(a, place);
  return a.space_limits != nullptr ? a.space_limits[query] : a.limit_base + query;
}
// What windows are counted from, one behind it.
__device__ inline int32_t reach_end(const GridTiles& a, int32_t place) {
  return a.by_place ? limit_at(a, place) : a.first_query - a.first_row + place + 1;
}
__device__ inline int32_t tile_begin(int32_t place) { return place / tile_queries * tile_queries; }

// grid: (any, heads with a grid)
__global__ void list_queries(const __grid_constant__ GridTiles a) {
  const int32_t head = a.grid_heads[blockIdx.y];
  const GridHead own(a, head);
  if (blockIdx.x == 0 && threadIdx.x == 0) a.strides[head] = own.stride;
  int32_t* list = a.queries + int64_t{blockIdx.y} * a.query_count;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < a.query_count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const auto place = static_cast<int32_t>(i);
    int32_t at = 0;
    if (own.classes) {
      at = own.class_begin(place % own.stride) + place / own.stride;
    } else if (const int32_t line = own.line_of(own.phase_of(place)); line >= 0) {
      at = own.line_begin(line) + place / own.stride;
    } else {
      at = place - own.on_lines(place);
    }
    list[at] = query_at(a, place);
    if (a.part == GridPart::second && blockIdx.y == 0) {
      a.tile_limits[query_at(a, place)] = reach_end(a, tile_begin(place));
    }
  }
}

// One tile: `count` queries from `place` on of a class or, where that is −1, of the queries that
// are on no horizontal line.
struct GridTile {
  int32_t group = 0;
  int32_t place = 0;
  int32_t count = 0;       // 0: there is no such tile
  int32_t list_begin = 0;  // of the tile, in the head's list of queries
  bool full = false;       // reads everything

  // Where a query of the tile is in the space.
  __device__ int32_t at(const GridHead& own, int32_t i) const {
    return group < 0 ? own.off_lines(place + i) : group + (place + i) * own.stride;
  }
};

__device__ inline GridTile tile_of_class(const GridHead& own, int32_t o, int32_t index,
                                         int32_t list_begin) {
  GridTile tile;
  tile.group = o;
  tile.place = index * tile_queries;
  tile.count = max(0, min(tile_queries, own.class_size(o) - tile.place));
  tile.list_begin = list_begin + tile.place;
  return tile;
}

// The tiles that read most come first.
__device__ inline GridTile find_tile(const GridHead& own, int32_t slot, int32_t full_slots) {
  const int32_t longest = tiles_of(own.class_size(0));  // tiles of a class, at most
  if (slot < full_slots) {
    if (own.horizontals == 0 || slot / own.horizontals >= longest) return {};
    const int32_t line = slot % own.horizontals;
    GridTile tile = tile_of_class(own, own.class_of(own.grid.vertical[line]),
                                  longest - 1 - slot / own.horizontals, own.line_begin(line));
    tile.full = true;
    return tile;
  }
  slot -= full_slots;
  if (own.classes) {
    const int32_t classes = min(own.stride, own.queries);
    const int32_t o = slot % classes;
    if (slot / classes >= longest || own.line_of(own.phase_of(o)) >= 0) return {};
    return tile_of_class(own, o, longest - 1 - slot / classes, own.class_begin(o));
  }
  const int32_t others = own.queries - own.on_lines(own.queries);
  GridTile tile;
  tile.group = -1;
  if (own.comb) {
    // Tiles of all queries, without those on horizontal lines: so both plans know where one begins.
    if (slot >= tiles_of(own.queries)) return {};
    const int32_t begin = (tiles_of(own.queries) - 1 - slot) * tile_queries;
    const int32_t end = min(begin + tile_queries, own.queries);
    tile.place = tile.list_begin = begin - own.on_lines(begin);
    tile.count = end - own.on_lines(end) - tile.place;
    return tile;
  }
  if (slot >= tiles_of(others)) return {};
  tile.place = tile.list_begin = (tiles_of(others) - 1 - slot) * tile_queries;
  tile.count = min(tile_queries, others - tile.place);
  return tile;
}

// Calls add(begin, count, stride) for what a tile reads: a band at either end and lines between.
// `near` is where the reach of its first query ends, `end` the rows that its last one sees.
template <class Add>
__device__ inline void add_reads(const GridTiles& a, const GridHead& own, const GridTile& tile,
                                 int32_t near, int32_t end, const Add& add) {
  const int32_t sink = min(own.look.sink, end);
  const int32_t window = own.grid.local > 0 ? min(max(0, near - own.grid.local), end) : end;
  if (tile.full) return add(0, end, 1);
  const bool bands = a.part == GridPart::first;
  // Lines end where the window of the tile's last query begins; earlier ones skip what is in their
  // own.
  const int32_t lines_end = bands ? window : end;
  if (bands) {
    if (sink >= window) return add(0, end, 1);
    add(0, sink, 1);
  }
  const auto line = [&](int32_t phase) {
    const int32_t stride = own.stride;
    const int32_t begin = sink + (phase - (a.first_row + sink) % stride + stride) % stride;
    if (begin < lines_end) add(begin, (lines_end - 1 - begin) / stride + 1, stride);
  };
  const FoundGrid& grid = own.grid;
  const bool lines = !own.comb || a.part == GridPart::second;
  if (lines && own.look.vertical != 0) {
    for (int32_t i = 0; i < grid.vertical_count; ++i) line(grid.vertical[i]);
  }
  const int32_t first = own.phase_of(tile.at(own, 0));
  for (int32_t i = 0; lines && own.look.slash != 0 && i < grid.slash_count; ++i) {
    const int32_t phase = (first - grid.slash[i] + own.stride) % own.stride;
    bool again = false;
    for (int32_t k = 0; own.look.vertical != 0 && k < grid.vertical_count; ++k) {
      again = again || grid.vertical[k] == phase;
    }
    if (!again) line(phase);
  }
  if (bands) add(window, end - window, 1);
}

// One thread a head and tile.
__global__ void make_grid_jobs(const __grid_constant__ GridTiles a) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int32_t slots = a.full_slots + a.other_slots;
  if (at >= int64_t{slots} * a.count) return;
  const auto index = static_cast<int32_t>(at % a.count);
  const auto slot = static_cast<int32_t>(at / a.count);
  const int32_t head = a.grid_heads[index];
  const GridHead own(a, head);
  const GridTile tile = find_tile(own, slot, a.full_slots);
  const int64_t segment_begin = (int64_t{index} * slots + slot) * a.tile_segments;
  CudaSegment* list = a.segments + segment_begin;
  int32_t segments = 0;
  const bool second = a.part == GridPart::second;
  const int32_t back = second ? own.grid.local : 0;
  // Where the keys of a query of the tile end.
  const auto limit = [&](int32_t i) {
    const int32_t place = tile.at(own, i);
    return second ? min(reach_end(a, tile_begin(place)) - back, a.row_count) : limit_at(a, place);
  };
  if (tile.count > 0) {
    const int32_t first = tile.at(own, 0);
    const int32_t near = reach_end(a, own.comb && !tile.full ? tile_begin(first) : first);
    const int32_t end = max(0, limit(tile.count - 1));
    add_reads(a, own, tile, near, end, [&](int32_t begin, int32_t count, int32_t stride) {
      if (count <= 0) return;
      CudaSegment segment;
      segment.begin = begin;
      segment.count = count;
      segment.stride = stride;
      segment.shift = stride > 1 ? head : 0;
      list[segments++] = segment;
    });
  }
  const int32_t pieces = tile_queries / a.job_rows;
  for (int32_t piece = 0; piece < pieces; ++piece) {
    const int32_t first = piece * a.job_rows;
    CudaJob job;
    job.segment_begin = a.segment_begin + segment_begin;
    job.segments = segments;
    job.query_begin = a.list_begin + int64_t{index} * a.query_count + tile.list_begin;
    job.row_begin = first;
    job.rows = max(0, min(a.job_rows, tile.count - first));
    job.head = head;
    job.listed = 1;
    job.back = back;
    if (job.rows > 0) {
      job.low = limit(first);
      job.high = limit(first + job.rows - 1);
    }
    for (int32_t i = 0; i < segments && job.rows > 0; ++i) {
      CudaSegment segment = list[i];
      segment.trim(job.low, job.high);
      job.blocks += (segment.count + a.block_keys - 1) / a.block_keys;
    }
    const bool full = slot < a.full_slots;
    CudaJob* jobs = full ? a.full_jobs : a.other_jobs;
    jobs[(int64_t{full ? slot : slot - a.full_slots} * pieces + piece) * a.count + index] = job;
  }
}

}  // namespace

GridTiles count_grid_tiles(std::span<const LineHead> heads, int64_t queries, int64_t rows,
                           GridPart part) {
  GridTiles tiles;
  tiles.part = part;
  tiles.query_count = static_cast<int32_t>(queries);
  tiles.row_count = static_cast<int32_t>(rows);
  for (const LineHead& head : heads) {
    const bool comb = in_two_plans(head);
    if (head.has_grid == 0 || (part == GridPart::second && !comb)) continue;
    const GridLook& look = head.grid;
    ++tiles.count;
    const int32_t phases = std::max(look.phases, 1);
    const bool classes = look.slash != 0 && (!comb || part == GridPart::second);
    tiles.tile_segments = std::max(tiles.tile_segments, 2 + phases * (look.vertical + look.slash));
    const int32_t least = look.stride > 0 ? look.stride : least_stride;
    const int32_t most =
        look.stride > 0
            ? look.stride
            : static_cast<int32_t>(std::clamp<int64_t>(rows / 4, least_stride, look.most_stride));
    for (int32_t stride = least; stride <= most; ++stride) {
      const int32_t longest = tiles_of((tiles.query_count + stride - 1) / stride);
      if (look.horizontal != 0 && part == GridPart::first) {
        tiles.full_slots = std::max(tiles.full_slots, std::min(phases, stride) * longest);
      }
      tiles.other_slots =
          std::max(tiles.other_slots, classes ? longest * std::min(stride, tiles.query_count)
                                              : tiles_of(tiles.query_count));
    }
  }
  return tiles;
}

void list_grid_tiles(const Context& context, const GridTiles& tiles) {
  const cudaStream_t stream = cuda::enter(context);
  const auto heads = static_cast<unsigned int>(tiles.count);
  cuda::launch({dim3(cuda::strided_blocks(context, tiles.query_count, 256), heads), 256, 0, stream},
               "listing attention grids", list_queries, tiles);
  const int64_t all = int64_t{tiles.full_slots + tiles.other_slots} * tiles.count;
  cuda::launch({cuda::blocks_for(all, 128), 128, 0, stream}, "listing attention grids",
               make_grid_jobs, tiles);
}

}  // namespace kinora::cuda_attention
