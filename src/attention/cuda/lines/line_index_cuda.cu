// A look at where heads attend, and the strongest lines of it: the device's probe.h and
// vertical_slash.cc.
#include <algorithm>

#include "attention/cuda/cuda_problem.cuh"
#include "attention/cuda/lines/grid_plan_cuda.h"
#include "attention/cuda/lines/line_plan_cuda.h"
#include "attention/cuda/mma_cuda.cuh"
#include "attention/cuda/runner_cuda.h"
#include "attention/cuda/select_cuda.cuh"
#include "base/cuda_support.h"
#include "ops/rows_cuda.h"

namespace kinora::cuda_attention {
namespace {

constexpr int probe_queries = 64;
constexpr int probe_keys = 128;
constexpr int probe_depth = 32;
constexpr int probe_threads = 256;
constexpr int probe_diagonals = probe_queries + probe_keys;  // one of them stays empty

struct ProbeProblem {
  Problem problem;  // queries are those of one run
  const LineHead* heads = nullptr;
  const float* max = nullptr;  // [queries, heads]
  const float* sum = nullptr;
  float* columns = nullptr;    // [heads, column_size]
  float* diagonals = nullptr;  // [heads, diagonal_size]
  float* parts = nullptr;      // [heads, blocks, probe_diagonals]
  int32_t column_size = 0;
  int32_t diagonal_size = 0;
  bool adds = false;  // to what earlier runs have left
  int32_t query_count = 0;
  int32_t row_count = 0;   // that the last query sees
  int32_t limit = 0;       // rows that the first one sees, and how many more
  int32_t limit_step = 1;  // each that follows
  int32_t coordinate = 0;  // of the first one, counted from the first row
};

__device__ inline float load_real(const void* data, bool f32, int64_t at) {
  return f32 ? static_cast<const float*>(data)[at]
             : __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
}

constexpr int probe_pieces = 16;  // of 8 elements: head sizes up to 128

// Shared memory of a block, for one thing after the other.
struct ProbeScalars {
  float queries[probe_depth][probe_queries + 4];
  float keys[probe_depth][probe_keys + 4];
};
struct ProbeTiles {
  uint4 queries[probe_queries * probe_pieces];
  uint4 keys[probe_keys * probe_pieces];
};
struct ProbeWeights {
  float weight[probe_queries][probe_keys + 1];
};
union ProbeRoom {
  ProbeScalars scalars;
  ProbeTiles tiles;
  ProbeWeights weights;
};

__device__ inline void keep_weight(const ProbeProblem& a, ProbeWeights& weights, int head,
                                   int64_t first_key, int query, int key, float score) {
  const bool seen = query < a.query_count && first_key + key < a.limit + query * a.limit_step;
  float weight = 0;
  if (seen) {
    const int64_t place = int64_t{query} * a.problem.target.heads + head;
    weight = expf(score * a.problem.scale - a.max[place]) / a.sum[place];
  }
  weights.weight[query][key] = weight;
}

// Scores in plain arithmetic: a thread has four queries and eight keys.
__device__ inline void score_scalars(const ProbeProblem& a, ProbeRoom& room, int head,
                                     int64_t first_key) {
  const Problem& p = a.problem;
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / 16 * 4, column = thread % 16 * 4;
  const int64_t kv_offset = head / p.group * p.key_head_stride;
  float score[4][8] = {};
  for (int depth = 0; depth < p.head_size; depth += probe_depth) {
    for (int i = thread; i < probe_queries * probe_depth; i += probe_threads) {
      const int query = i / probe_depth, d = i % probe_depth;
      float value = 0;
      if (query < a.query_count && depth + d < p.head_size) {
        value = load_real(p.queries, p.queries_f32,
                          query * p.query_stride + head * p.query_head_stride + depth + d);
        if (!p.rows_f32) value = __bfloat162float(__float2bfloat16_rn(value));
      }
      room.scalars.queries[d][query] = value;
    }
    for (int i = thread; i < probe_keys * probe_depth; i += probe_threads) {
      const int key = i / probe_depth, d = i % probe_depth;
      float value = 0;
      if (first_key + key < a.row_count && depth + d < p.head_size) {
        value =
            load_real(p.keys, p.rows_f32, (first_key + key) * p.key_stride + kv_offset + depth + d);
      }
      room.scalars.keys[d][key] = value;
    }
    __syncthreads();
#pragma unroll 8
    for (int d = 0; d < probe_depth; ++d) {
      const float4 q = *reinterpret_cast<const float4*>(&room.scalars.queries[d][row]);
      const float4 low = *reinterpret_cast<const float4*>(&room.scalars.keys[d][column]);
      const float4 high = *reinterpret_cast<const float4*>(&room.scalars.keys[d][64 + column]);
      const float qs[4] = {q.x, q.y, q.z, q.w};
      const float ks[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) score[i][j] = fmaf(qs[i], ks[j], score[i][j]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      keep_weight(a, room.weights, head, first_key, row + i, column + j % 4 + j / 4 * 64,
                  score[i][j]);
    }
  }
}

// Scores by matrix products of bf16: a warp has 16 queries and 64 keys.
__device__ inline void score_tiles(const ProbeProblem& a, ProbeRoom& room, int head,
                                   int64_t first_key) {
  const Problem& p = a.problem;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int used = p.head_size / 8;
  const auto* keys = static_cast<const __nv_bfloat16*>(p.keys) + head / p.group * p.key_head_stride;
  const auto place = [](uint4* tile, int row, int piece) {
    return reinterpret_cast<uint4*>(reinterpret_cast<char*>(tile) +
                                    piece_offset<probe_pieces>(row, piece));
  };
  for (int i = thread; i < probe_keys * probe_pieces; i += probe_threads) {
    const int row = i / probe_pieces, piece = i % probe_pieces;
    uint4 packed{};
    if (first_key + row < a.row_count && piece < used) {
      packed = *reinterpret_cast<const uint4*>(keys + (first_key + row) * p.key_stride + piece * 8);
    }
    *place(room.tiles.keys, row, piece) = packed;
  }
  for (int i = thread; i < probe_queries * probe_pieces; i += probe_threads) {
    const int row = i / probe_pieces, piece = i % probe_pieces;
    uint4 packed{};
    if (row < a.query_count && piece < used) {
      const int64_t at = row * p.query_stride + head * p.query_head_stride + piece * 8;
      if (p.queries_f32) {
        const auto* from =
            reinterpret_cast<const float4*>(static_cast<const float*>(p.queries) + at);
        const float4 low = from[0], high = from[1];
        packed = {pack_bf16(low.x, low.y), pack_bf16(low.z, low.w), pack_bf16(high.x, high.y),
                  pack_bf16(high.z, high.w)};
      } else {
        packed = *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.queries) + at);
      }
    }
    *place(room.tiles.queries, row, piece) = packed;
  }
  __syncthreads();
  const uint32_t query_tile = address_of(room.tiles.queries);
  const uint32_t key_tile = address_of(room.tiles.keys);
  const int first_row = warp % 4 * 16, first_column = warp / 4 * 64;
  float score[8][4] = {};
#pragma unroll
  for (int step = 0; step < probe_pieces / 2; ++step) {
    uint32_t q[4];
    load_left<probe_pieces>(q, query_tile, first_row, step, lane);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      multiply_keys16<probe_pieces>(score[2 * n], score[2 * n + 1], q, key_tile,
                                    first_column + n * 16, step, lane);
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      keep_weight(a, room.weights, head, first_key, first_row + lane / 4 + j / 2 * 8,
                  first_column + i * 8 + lane % 4 * 2 + j % 2, score[i][j]);
    }
  }
}

// Weights of 64 queries and 128 keys of one head, summed along columns and diagonals. `Tiles`: keys
// are bf16, and rows of both can be read 16 bytes at a time.
//   grid: (blocks of keys, heads)
template <bool Tiles>
__global__ void __launch_bounds__(probe_threads)
    probe_kernel(const __grid_constant__ ProbeProblem a) {
  __shared__ __align__(1024) ProbeRoom room;
  const int head = static_cast<int>(blockIdx.y);
  if (a.heads[head].probed == 0) return;
  const int64_t first_key = int64_t{blockIdx.x} * probe_keys;
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (Tiles) {
    score_tiles(a, room, head, first_key);
  } else {
    score_scalars(a, room, head, first_key);
  }
  __syncthreads();
  if (thread < probe_keys && first_key + thread < a.row_count) {
    float total = 0;
    for (int query = 0; query < probe_queries; ++query) total += room.weights.weight[query][thread];
    float& column = a.columns[int64_t{head} * a.column_size + first_key + thread];
    column = a.adds ? column + total : total;
  }
  if (thread < probe_diagonals) {  // query − key = thread − (probe_keys − 1)
    float total = 0;
    for (int query = 0; query < probe_queries; ++query) {
      const int key = query + probe_keys - 1 - thread;
      if (key >= 0 && key < probe_keys) total += room.weights.weight[query][key];
    }
    a.parts[(int64_t{head} * gridDim.x + blockIdx.x) * probe_diagonals + thread] = total;
  }
}

// Diagonals cross at most two blocks of keys, which are added in order.  grid: (any, heads)
__global__ void join_diagonals(const __grid_constant__ ProbeProblem a, int32_t blocks) {
  const int head = static_cast<int>(blockIdx.y);
  if (a.heads[head].probed == 0) return;
  const int64_t first = a.coordinate;
  for (int64_t distance = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
       distance < a.diagonal_size; distance += int64_t{gridDim.x} * blockDim.x) {
    // distance = first − 128 · block + place − 127 with place in [0, 191)
    const int64_t low = first - distance - (probe_keys - 1);
    float total = 0;
    for (int64_t block = low > 0 ? (low + probe_keys - 1) / probe_keys : 0; block < blocks;
         ++block) {
      const int64_t place = distance - first + block * probe_keys + probe_keys - 1;
      if (place >= probe_diagonals - 1) break;
      total += a.parts[(int64_t{head} * blocks + block) * probe_diagonals + place];
    }
    float& diagonal = a.diagonals[int64_t{head} * a.diagonal_size + distance];
    diagonal = a.adds ? diagonal + total : total;
  }
}

// Places of the `count` largest weights of one head, increasing: the first `forced` whatever they
// weigh, the earlier of equals. Weights are not negative, so their bits order them.
struct Selection {
  const float* weights = nullptr;  // [heads, size]
  int32_t* places = nullptr;       // [heads, capacity]
  int32_t* counts = nullptr;       // [heads]
  int32_t size = 0;
  int32_t capacity = 0;
};

__device__ inline uint32_t weight_order(float weight) {
  return weight > 0 ? __float_as_uint(weight) : 0;  // NaN is nothing
}

//   grid: (heads, columns and diagonals), 1024 threads
__global__ void __launch_bounds__(1024)
    select_lines(const LineHead* heads, Selection columns, Selection slashes) {
  __shared__ SelectRoom room;
  const int head = static_cast<int>(blockIdx.x);
  const LineHead& told = heads[head];
  const bool is_column = blockIdx.y == 0;
  const Selection& to = is_column ? columns : slashes;
  const int32_t size = to.size;
  int32_t* places = to.places + int64_t{head} * to.capacity;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  int32_t taken = 0;
  if (told.probed != 0) {
    const float* weights = to.weights + int64_t{head} * size;
    const StrongestLines& lines = told.strongest;
    const int32_t forced = min(is_column ? lines.forced_columns : lines.forced_slashes, size);
    const int32_t count = min(max(is_column ? lines.columns : lines.slashes, forced), size);
    for (int i = thread; i < forced; i += threads) places[i] = i;
    taken = forced + select_largest(
                         size - forced, count - forced, true, room,
                         [&](int32_t i) { return weight_order(weights[forced + i]); },
                         [&](int32_t at, int32_t i) { places[forced + at] = forced + i; });
  }
  for (int i = taken + thread; i < to.capacity; i += threads) places[i] = -1;
  if (thread == 0) to.counts[head] = taken;
}

}  // namespace

DeviceLines find_lines(const Context& context, const LineSpace& space, const QueryView& queries,
                       const RowSet& rows, float scale, std::span<const LineHead> heads) {
  const cudaStream_t stream = cuda::enter(context);
  const auto head_count = static_cast<int64_t>(heads.size());
  const auto head_grid = static_cast<unsigned int>(head_count);
  int64_t column_size = 0, diagonal_size = 0, probed = 0;
  for (const ProbeRun& run : space.probes) {
    column_size = std::max<int64_t>(column_size, run.limit + (run.count - 1) * run.limit_step);
    diagonal_size = std::max<int64_t>(diagonal_size, run.coordinate + run.count);
    probed += run.count;
  }

  const Tensor told = cuda::upload(context, heads);
  Tensor columns(DType::f32, {head_count, column_size}, context.device);
  Tensor diagonals(DType::f32, {head_count, diagonal_size}, context.device);
  ProbeProblem probe;
  probe.adds = space.probes.size() > 1;
  if (probe.adds) {
    for (Tensor* sums : {&columns, &diagonals}) {
      cuda::check(cudaMemsetAsync(cuda::device_data<float>(sums->view()), 0,
                                  static_cast<size_t>(sums->elements()) * sizeof(float), stream),
                  "clearing what a probe adds to");
    }
  }
  Problem& problem = probe.problem;
  problem.query_stride = queries.queries.stride(0);
  problem.query_head_stride = queries.queries.stride(1);
  problem.queries_f32 = queries.queries.dtype() == DType::f32;
  problem.keys = rows.keys.raw();
  problem.key_stride = rows.keys.stride(0);
  problem.key_head_stride = rows.keys.stride(1);
  problem.rows_f32 = rows.keys.dtype() == DType::f32;
  problem.target.heads = static_cast<int32_t>(head_count);
  problem.group = static_cast<int32_t>(head_count / rows.keys.size(1));
  problem.head_size = static_cast<int32_t>(queries.queries.size(2));
  problem.scale = scale;
  probe.heads = cuda::device_data<LineHead>(told.view());
  probe.columns = cuda::device_data<float>(columns.view());
  probe.diagonals = cuda::device_data<float>(diagonals.view());
  probe.column_size = static_cast<int32_t>(column_size);
  probe.diagonal_size = static_cast<int32_t>(diagonal_size);
  for (const ProbeRun& run : space.probes) {
    QueryView last = slice(queries, run.query, run.count);
    last.ordinals = run.ordinals;
    // Only the largest score and the sum are wanted of this.
    Tensor state(DType::f32, {2, run.count, head_count}, context.device);
    Tensor unused(DType::f32, last.queries.shape(), context.device);
    auto* max = cuda::device_data<float>(state.view());
    run_dense(context, last, rows, scale, unused, {.state = {max, max + run.count * head_count}});

    probe.query_count = run.count;
    probe.row_count = run.limit + (run.count - 1) * run.limit_step;
    probe.limit = run.limit;
    probe.limit_step = run.limit_step;
    probe.coordinate = run.coordinate;
    const int64_t blocks = (probe.row_count + probe_keys - 1) / probe_keys;
    Tensor parts(DType::f32, {head_count, blocks, probe_diagonals}, context.device);
    problem.queries = last.queries.raw();
    probe.max = max;
    probe.sum = max + run.count * head_count;
    probe.parts = cuda::device_data<float>(parts.view());
    const bool tiles = choose_kernel(context, last.queries, rows, unused) != Kernel::simple;
    cuda::launch({dim3(static_cast<unsigned int>(blocks), head_grid), probe_threads, 0, stream},
                 "probing attention", tiles ? probe_kernel<true> : probe_kernel<false>, probe);
    cuda::launch(
        {dim3(cuda::strided_blocks(context, diagonal_size, 256), head_grid), 256, 0, stream},
        "probing attention", join_diagonals, probe, static_cast<int32_t>(blocks));
  }

  int64_t most_columns = 1, most_slashes = 1;
  for (const LineHead& head : heads) {
    const StrongestLines& lines = head.strongest;
    if (head.probed == 0) continue;
    most_columns = std::max<int64_t>({most_columns, lines.columns, lines.forced_columns});
    most_slashes = std::max<int64_t>({most_slashes, lines.slashes, lines.forced_slashes});
  }
  DeviceLines lines;
  const auto list = [&](int64_t most, int64_t size) {
    return Tensor(DType::i32, {head_count, std::min(most, size)}, context.device);
  };
  lines.columns = list(most_columns, column_size);
  lines.slashes = list(most_slashes, diagonal_size);
  lines.column_counts = Tensor(DType::i32, {head_count}, context.device);
  lines.slash_counts = Tensor(DType::i32, {head_count}, context.device);
  const auto selection = [](const Tensor& weights, Tensor& places, Tensor& counts) {
    return Selection{cuda::device_data<float>(weights.view()),
                     cuda::device_data<int32_t>(places.view()),
                     cuda::device_data<int32_t>(counts.view()),
                     static_cast<int32_t>(weights.size(1)), static_cast<int32_t>(places.size(1))};
  };
  cuda::launch({dim3(head_grid, 2), 1024, 0, stream}, "choosing attention lines", select_lines,
               probe.heads, selection(columns, lines.columns, lines.column_counts),
               selection(diagonals, lines.slashes, lines.slash_counts));
  if (std::ranges::any_of(heads, [](const LineHead& head) { return head.has_grid != 0; })) {
    GridProbe grids;
    grids.heads = probe.heads;
    grids.columns = probe.columns;
    grids.diagonals = probe.diagonals;
    grids.column_size = probe.column_size;
    grids.diagonal_size = probe.diagonal_size;
    grids.row_count = static_cast<int32_t>(rows.count());
    grids.first_row = space.first_row;
    grids.queries = static_cast<int32_t>(probed);
    lines.grids = find_grids(context, grids, heads);
  }
  return lines;
}

}  // namespace kinora::cuda_attention
