// MOMO's choice of blocks on the device: a measuring pass in stretches of queries, the strongest
// blocks of every measured query, union and trim of a tile's.
#include <algorithm>

#include "attention/cuda/block_plan_cuda.h"
#include "attention/cuda/runner_cuda.h"
#include "attention/cuda/select_cuda.cuh"
#include "base/cuda_support.h"
#include "ops/rows_cuda.h"

namespace kinora::cuda_attention {
namespace {

constexpr int32_t score_keys = 32;  // of a measured score
// Scores of a stretch of queries. Large enough for several waves of jobs at a million rows.
constexpr int64_t score_bytes = int64_t{6} << 30;
constexpr int top_warps = 8;         // each has a query and head
constexpr int top_stretches = 16;    // of blocks, for each lane
constexpr int32_t most_close = 256;  // blocks that may be among a query's strongest
constexpr int union_threads = 256;
constexpr uint32_t all_lanes = 0xffffffffu;

// Like the number itself; −∞ and NaN are 0.
__device__ inline uint32_t score_order(float score) {
  if (!(score > -INFINITY)) return 0;
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ inline float score_of(uint32_t order) {
  return __uint_as_float(order & 0x80000000u ? order ^ 0x80000000u : ~order);
}

struct Measured {
  const float* scores = nullptr;  // [samples of the stretch, heads, score_stride]
  int64_t score_stride = 0;
  const float* max = nullptr;  // [samples of the stretch, heads]
  const float* sum = nullptr;
  int2* kept = nullptr;  // [samples, heads, k]: block and log2 of its share; −1 where there is none
  const int32_t* places = nullptr;  // [samples]: the queries they are
  int64_t first_sample = 0;
  int64_t tile = 0;
  int32_t heads = 0;
  int32_t k = 0;
  int32_t block = 0;                // keys
  int32_t first_block = 0;          // after the sink
  const int32_t* limits = nullptr;  // [queries], or null: limit_base + query
  int32_t limit_base = 0;
  int64_t window = 0;
};

// The first block of the window of the tile that a query is in.
__device__ inline int64_t window_block(const Measured& a, int64_t query) {
  const int64_t first = query / a.tile * a.tile;
  const int64_t seen = a.limits != nullptr ? a.limits[first] : a.limit_base + first;
  return max(int64_t{0}, seen - a.window) / a.block;
}

// A query's blocks that may be among its strongest.
struct CloseBlocks {
  int32_t block[most_close];
  uint32_t order[most_close];  // of their scores
};

// The k strongest of `count` of them, by one warp; of equals the first in memory. keep(place,
// block, order) takes one; returns how many were taken.
template <class Keep>
__device__ inline int32_t keep_strongest(const CloseBlocks& close, int32_t count, int32_t k,
                                         const Keep& keep) {
  constexpr int each = most_close / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t order[each];  // 0: there is no such block
#pragma unroll
  for (int j = 0; j < each; ++j) {
    order[j] = j * 32 + lane < count ? close.order[j * 32 + lane] : 0;
  }
  const int32_t wanted = min(k, count);
  const auto reach = [&](uint32_t bound) {
    int32_t own = 0;
#pragma unroll
    for (int j = 0; j < each; ++j) own += order[j] >= bound ? 1 : 0;
    return static_cast<int32_t>(__reduce_add_sync(all_lanes, own));
  };
  const uint32_t bound = bound_of_largest(wanted, 1, reach);
  const auto place_order = [&](int j) {
    return ~static_cast<uint32_t>(close.block[j * 32 + lane]);
  };
  uint32_t place_bound = 0;  // of those with the order `bound`
  if (reach(bound) > wanted) {
    place_bound = bound_of_largest(wanted - reach(bound + 1), 1, [&](uint32_t places) {
      int32_t own = 0;
#pragma unroll
      for (int j = 0; j < each; ++j) own += order[j] == bound && place_order(j) >= places ? 1 : 0;
      return static_cast<int32_t>(__reduce_add_sync(all_lanes, own));
    });
  }
  int32_t taken = 0;
#pragma unroll
  for (int j = 0; j < each; ++j) {
    const bool takes =
        order[j] > 0 && (order[j] > bound || (order[j] == bound && place_order(j) >= place_bound));
    const uint32_t takers = __ballot_sync(all_lanes, takes);
    if (takes) {
      keep(taken + __popc(takers & ((1u << lane) - 1)), close.block[j * 32 + lane], order[j]);
    }
    taken += __popc(takers);
  }
  return taken;
}

// A measured query and head whose blocks are chosen.
struct Chooser {
  const float* scores = nullptr;  // from the first block after the sink on
  int32_t size = 0;               // blocks up to the window of its tile
  int32_t block = 0;
  int32_t first_block = 0;
  float total = 0;
  int2* kept = nullptr;

  __device__ Chooser(const Measured& a, int64_t place)
      : block(a.block), first_block(a.first_block) {
    const int64_t sample = a.first_sample + place / a.heads;
    scores = a.scores + place * a.score_stride + int64_t{first_block} * (block / score_keys);
    size = static_cast<int32_t>(max(int64_t{0}, window_block(a, a.places[sample]) - a.first_block));
    total = a.max[place] * 1.44269504088896f + log2f(a.sum[place]);
    kept = a.kept + (a.first_sample * a.heads + place) * a.k;
  }
  __device__ uint32_t order(int32_t i) const {
    if (block == score_keys) return score_order(scores[i]);
    const float2 two = reinterpret_cast<const float2*>(scores)[i];
    const float high = fmaxf(two.x, two.y), low = fminf(two.x, two.y);
    return score_order(high == -INFINITY ? high : high + __log2f(1 + exp2f(low - high)));
  }
  __device__ void keep(int32_t at, int32_t i, uint32_t its_order) const {
    kept[at] = {first_block + i, __float_as_int(score_of(its_order) - total)};
  }
};

// By one warp; false where more blocks than `close` holds may be among the strongest.
__device__ inline bool choose_few(const Chooser& own, int32_t k, CloseBlocks& close) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // The k-th largest of the maxima of stretches is not above the k-th largest of all, and few
  // blocks reach it: only these are looked at closely.
  uint32_t largest[top_stretches] = {};
  for (int32_t first = lane; first < own.size; first += 32 * top_stretches) {
#pragma unroll
    for (int j = 0; j < top_stretches; ++j) {
      const int32_t i = first + j * 32;
      if (i < own.size) largest[j] = max(largest[j], own.order(i));
    }
  }
  constexpr uint32_t least_bit = 1u << 12;  // a bound need not be the highest there is
  uint32_t bound = bound_of_largest(k, least_bit, [&](uint32_t asked) {
    int32_t count = 0;
#pragma unroll
    for (int j = 0; j < top_stretches; ++j) count += largest[j] >= asked ? 1 : 0;
    return static_cast<int32_t>(__reduce_add_sync(all_lanes, count));
  });
  bound = max(bound, 1u);  // a block that nothing was read of is never taken
  int32_t found = 0;
  for (int32_t begin = 0; begin < own.size && found <= most_close; begin += 32 * top_stretches) {
    uint32_t order[top_stretches];
#pragma unroll
    for (int j = 0; j < top_stretches; ++j) {
      const int32_t i = begin + j * 32 + lane;
      // Where the stretch has nothing, nothing is read again.
      order[j] = i < own.size && largest[j] >= bound ? own.order(i) : 0;
    }
#pragma unroll
    for (int j = 0; j < top_stretches; ++j) {
      const uint32_t reaching = __ballot_sync(all_lanes, order[j] >= bound);
      const int32_t at = found + __popc(reaching & ((1u << lane) - 1));
      if (order[j] >= bound && at < most_close) {
        close.block[at] = begin + j * 32 + lane;
        close.order[at] = order[j];
      }
      found += __popc(reaching);
    }
  }
  if (found > most_close) return false;
  __syncwarp();
  const int32_t taken = keep_strongest(
      close, found, k, [&](int32_t at, int32_t i, uint32_t order) { own.keep(at, i, order); });
  for (int32_t i = taken + lane; i < k; i += 32) own.kept[i] = {-1, 0};
  return true;
}

// A warp chooses for each query and head of the stretch.  grid: any that has so many warps
__global__ void __launch_bounds__(32 * top_warps)
    top_blocks(const __grid_constant__ Measured a, int64_t count) {
  __shared__ SelectRoom room;
  __shared__ CloseBlocks close[top_warps];
  __shared__ int32_t left[top_warps];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  const int64_t first = int64_t{blockIdx.x} * top_warps;
  bool done = true;
  if (first + warp < count) done = choose_few(Chooser(a, first + warp), a.k, close[warp]);
  if (thread % 32 == 0) left[warp] = done ? 0 : 1;
  __syncthreads();
  // Many equal scores, or a large k: all warps choose together.
  for (int other = 0; other < top_warps; ++other) {
    if (left[other] == 0) continue;
    const Chooser chooser(a, first + other);
    const int32_t taken = select_largest(
        chooser.size, a.k, false, room, [&](int32_t i) { return chooser.order(i); },
        [&](int32_t at, int32_t i) { chooser.keep(at, i, chooser.order(i)); });
    for (int32_t i = taken + thread; i < a.k; i += 32 * top_warps) chooser.kept[i] = {-1, 0};
  }
}

struct Union {
  const int2* kept = nullptr;  // as in Measured
  const int32_t* places = nullptr;
  int64_t samples = 0;
  int64_t tile = 0;
  int32_t tiles = 0;
  int32_t heads = 0;
  int32_t k = 0;
  int32_t room = 0;   // entries of the table, a power of two
  int32_t words = 0;  // with a bit for every block of memory
  int32_t most = 0;   // blocks that a tile keeps
  bool by_mass = false;
  int32_t* blocks = nullptr;
  int32_t* counts = nullptr;

  size_t shared_bytes() const {
    return static_cast<size_t>(room) * (sizeof(float) + sizeof(int32_t) + sizeof(uint16_t)) +
           static_cast<size_t>(words) * sizeof(uint32_t);
  }
};

// Puts what a tile's measured queries chose into a table, and keeps the strongest.
// grid: (tiles, heads)
__global__ void __launch_bounds__(union_threads) unite_blocks(const __grid_constant__ Union a) {
  constexpr int32_t nobody = -1;
  extern __shared__ char memory[];
  auto* const sums = reinterpret_cast<float*>(memory);  // then the order of their strength
  auto* const owners = reinterpret_cast<int32_t*>(sums + a.room);
  auto* const marks = reinterpret_cast<uint32_t*>(owners + a.room);
  auto* const times = reinterpret_cast<uint16_t*>(marks + a.words);  // how often it was chosen
  __shared__ int32_t scratch[64];
  const int64_t tile = blockIdx.x;
  const int32_t head = static_cast<int32_t>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  const auto first_from = [&](int64_t query) {
    int64_t low = 0, high = a.samples;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (a.places[middle] < query) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  };
  const int64_t first = first_from(tile * a.tile);
  const int64_t end = first_from((tile + 1) * a.tile);
  for (int32_t i = thread; i < a.room; i += union_threads) {
    sums[i] = 0;
    owners[i] = nobody;
    times[i] = 0;
  }
  for (int32_t i = thread; i < a.words; i += union_threads) marks[i] = 0;
  __syncthreads();
  // One query after another: it has chosen a block once, so that no two threads meet, and sums have
  // one order.
  const int shift = __clz(a.room - 1);
  for (int64_t sample = first; sample < end; ++sample) {
    for (int32_t i = thread; i < a.k; i += union_threads) {
      const int2 chosen = a.kept[(sample * a.heads + head) * a.k + i];
      if (chosen.x < 0) continue;
      auto at = static_cast<int32_t>(static_cast<uint32_t>(chosen.x) * 2654435761u >> shift);
      while (true) {
        const int32_t owner = atomicCAS(&owners[at], nobody, chosen.x);
        if (owner == nobody || owner == chosen.x) break;
        at = (at + 1) & (a.room - 1);
      }
      const float score = __int_as_float(chosen.y);
      sums[at] += a.by_mass ? exp2f(score) : score;
      ++times[at];
    }
    __syncthreads();
  }
  auto* const orders = reinterpret_cast<uint32_t*>(sums);
  for (int32_t i = thread; i < a.room; i += union_threads) {
    const float strength = a.by_mass ? sums[i] : sums[i] / static_cast<float>(times[i]);
    orders[i] = owners[i] == nobody ? 0 : max(score_order(strength), 1u);
  }
  __syncthreads();
  BlockSum sum(scratch);
  const auto count_of = [&](const auto& holds) {
    int32_t own = 0;
    for (int32_t i = thread; i < a.room; i += union_threads) own += holds(i) ? 1 : 0;
    return sum(own);
  };
  const auto reach = [&](uint32_t bound) {
    return count_of([&](int32_t i) { return orders[i] >= bound; });
  };
  uint32_t bound = 1, place_bound = 0;
  if (reach(bound) > a.most) {
    bound = bound_of_largest(a.most, 1, reach);
    if (reach(bound) > a.most) {  // of equals the first
      place_bound = bound_of_largest(a.most - reach(bound + 1), 1, [&](uint32_t places) {
        return count_of([&](int32_t i) {
          return orders[i] == bound && ~static_cast<uint32_t>(owners[i]) >= places;
        });
      });
    }
  }
  for (int32_t i = thread; i < a.room; i += union_threads) {
    const bool takes = orders[i] > bound ||
                       (orders[i] == bound && ~static_cast<uint32_t>(owners[i]) >= place_bound);
    if (takes) atomicOr(&marks[owners[i] / 32], 1u << owners[i] % 32);
  }
  __syncthreads();
  // In the order of memory.
  const int32_t each = (a.words + union_threads - 1) / union_threads;
  const int32_t begin = min(thread * each, a.words), finish = min(begin + each, a.words);
  int32_t own = 0, total = 0;
  for (int32_t i = begin; i < finish; ++i) own += __popc(marks[i]);
  int32_t at = exclusive_scan(own, scratch, total);
  const int64_t list = int64_t{head} * a.tiles + tile;
  for (int32_t i = begin; i < finish; ++i) {
    for (uint32_t word = marks[i]; word != 0; word &= word - 1) {
      a.blocks[list * a.most + at++] = i * 32 + __ffs(static_cast<int>(word)) - 1;
    }
  }
  if (thread == 0) a.counts[list] = total;
}

}  // namespace

DeviceBlocks choose_blocks(const Context& context, const QueryView& queries,
                           const SampledQueries& sampled, const RowSet& rows, float scale,
                           const MomoOptions& options, int64_t keys, TensorView exact) {
  const cudaStream_t stream = cuda::enter(context);
  const BlockLayout& layout = options.layout;
  const QueryView view = sampled.view();
  const std::span<const int32_t> places = sampled.places();
  const Tensor told = cuda::upload(context, places);
  const int64_t samples = view.count(), heads = queries.queries.size(1);
  const int64_t tiles = layout.tiles(queries.count());
  const DeviceLimits limits = device_limits(context, queries, rows);

  Tensor kept(DType::i32, {samples, heads, options.k, 2}, context.device);
  Measured measured;
  measured.kept = cuda::device_data<int2>(kept.view());
  measured.places = cuda::device_data<int32_t>(told.view());
  measured.tile = layout.tile;
  measured.heads = static_cast<int32_t>(heads);
  measured.k = static_cast<int32_t>(options.k);
  measured.block = static_cast<int32_t>(layout.block);
  measured.first_block = static_cast<int32_t>(layout.sink_end(rows.count()) / layout.block);
  measured.limits = limits.data();
  measured.limit_base = limits.base;
  measured.window = layout.window;
  // Scores that a stretch up to a sample may need, rounded to whole blocks of the kernel.
  const auto stride_to = [&](int64_t end) {
    const int64_t seen = visible_rows(rows.ordinals, view.ordinals[static_cast<size_t>(end - 1)]);
    // Queries' scores do not all begin at the same place of a large power of two.
    return (seen + 127) / 128 * (128 / score_keys) + 8;
  };
  Tensor scores;
  for (int64_t begin = 0; begin < samples;) {
    int64_t end = samples;
    while (end - begin > 1 &&
           (end - begin) * heads * stride_to(end) * int64_t{sizeof(float)} > score_bytes) {
      end = begin + (end - begin + 1) / 2;
    }
    const int64_t count = end - begin, stride = stride_to(end);
    if (!scores.defined() || scores.elements() < count * heads * stride) {
      scores = Tensor();
      scores = Tensor(DType::f32, {count * heads * stride}, context.device);
    }
    Tensor state(DType::f32, {2, count, heads}, context.device);
    auto* max = cuda::device_data<float>(state.view());
    measured.scores = cuda::device_data<float>(scores.view());
    measured.score_stride = stride;
    measured.max = max;
    measured.sum = max + count * heads;
    measured.first_sample = begin;
    run_measured(context, slice(view, begin, count), rows, scale, exact.rows(begin, count),
                 {max, max + count * heads}, {cuda::device_data<float>(scores.view()), stride});
    cuda::launch({cuda::blocks_for(count * heads, top_warps), 32 * top_warps, 0, stream},
                 "choosing attention blocks", top_blocks, measured, count * heads);
    begin = end;
  }

  const int64_t room = candidates_of(options);
  const int64_t most =
      options.trim ? std::min(room, std::max<int64_t>(1, keys / layout.block)) : room;
  DeviceBlocks chosen;
  chosen.blocks = Tensor(DType::i32, {heads, tiles, most}, context.device);
  chosen.counts = Tensor(DType::i32, {heads, tiles}, context.device);
  Union join;
  join.kept = measured.kept;
  join.samples = samples;
  join.places = measured.places;
  join.tile = layout.tile;
  join.tiles = static_cast<int32_t>(tiles);
  join.heads = static_cast<int32_t>(heads);
  join.k = measured.k;
  join.room = static_cast<int32_t>(room);
  join.words = static_cast<int32_t>((rows.count() / layout.block + 32) / 32);
  join.most = static_cast<int32_t>(most);
  join.by_mass = options.rank == BlockRank::mass;
  join.blocks = cuda::device_data<int32_t>(chosen.blocks.view());
  join.counts = cuda::device_data<int32_t>(chosen.counts.view());
  const size_t bytes = join.shared_bytes();
  cuda::check(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(unite_blocks),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "uniting attention blocks");
  cuda::launch({dim3(static_cast<unsigned int>(tiles), static_cast<unsigned int>(heads)),
                union_threads, bytes, stream},
               "uniting attention blocks", unite_blocks, join);
  return chosen;
}

}  // namespace kinora::cuda_attention
