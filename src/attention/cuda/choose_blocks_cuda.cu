// MOMO's choice of blocks on the device: a measuring pass in stretches of queries, the strongest
// blocks of every measured query, union and trim of a tile's.
#include <algorithm>
#include <bit>

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
constexpr int64_t most_candidates = 8192;  // of a tile, in shared memory
constexpr int top_threads = 512;
constexpr int32_t most_close = 1024;  // blocks that may be among a query's strongest
constexpr int union_threads = 256;

// Like the number itself; −∞ and NaN are 0.
__device__ inline uint32_t score_order(float score) {
  if (!(score > -INFINITY)) return 0;
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
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

// grid: (samples of the stretch, heads)
__global__ void __launch_bounds__(top_threads) top_blocks(const __grid_constant__ Measured a) {
  __shared__ SelectRoom room;
  __shared__ int32_t close[most_close];
  __shared__ uint32_t least;
  const int64_t place = int64_t{blockIdx.x} * a.heads + blockIdx.y;
  const int64_t sample = a.first_sample + blockIdx.x;
  const float* scores = a.scores + place * a.score_stride;
  const auto size =
      static_cast<int32_t>(max(int64_t{0}, window_block(a, a.places[sample]) - a.first_block));
  const float total = a.max[place] * 1.44269504088896f + log2f(a.sum[place]);
  int2* kept = a.kept + (sample * a.heads + blockIdx.y) * a.k;
  const auto score = [&](int32_t i) {
    const int64_t block = a.first_block + i;
    if (a.block == score_keys) return scores[block];
    const float x = scores[2 * block], y = scores[2 * block + 1];
    const float high = fmaxf(x, y);
    return high == -INFINITY ? high : high + log2f(exp2f(x - high) + exp2f(y - high));
  };
  const auto keep = [&](int32_t at, int32_t i) {
    kept[at] = {a.first_block + i, __float_as_int(score(i) - total)};
  };
  // The k-th largest of the threads' maxima is not above the k-th largest of all, and few blocks
  // reach it: only these are looked at closely.
  int32_t candidates = size;
  if (size > most_close && a.k <= top_threads) {
    uint32_t largest = 0;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < size; i += top_threads) {
      largest = max(largest, score_order(score(i)));
    }
    close[threadIdx.x] = static_cast<int32_t>(largest);
    if (threadIdx.x == 0) least = ~0u;
    __syncthreads();
    const auto maximum = [&](int32_t i) { return static_cast<uint32_t>(close[i]); };
    select_largest(top_threads, a.k, true, room, maximum,
                   [&](int32_t, int32_t i) { atomicMin(&least, maximum(i)); });
    __syncthreads();
    const uint32_t bound = least;
    candidates = 0;
    for (int32_t first = 0; first < size && candidates <= most_close; first += top_threads) {
      const int32_t i = first + static_cast<int32_t>(threadIdx.x);
      const bool reaches = i < size && score_order(score(i)) >= bound;
      int32_t found = 0;
      const int32_t place = candidates + exclusive_scan(reaches ? 1 : 0, room.scratch, found);
      if (reaches && place < most_close) close[place] = i;
      candidates += found;
    }
    __syncthreads();
  }
  const bool few = candidates <= most_close && candidates < size;
  const int32_t taken =
      few ? select_largest(
                candidates, a.k, false, room,
                [&](int32_t i) { return score_order(score(close[i])); },
                [&](int32_t at, int32_t i) { keep(at, close[i]); })
          : select_largest(
                size, a.k, false, room, [&](int32_t i) { return score_order(score(i)); }, keep);
  for (int32_t i = taken + static_cast<int32_t>(threadIdx.x); i < a.k; i += top_threads) {
    kept[i] = {-1, 0};
  }
}

// Sorts `size` (a power of two) entries, the smallest first.
__device__ inline void sort_entries(unsigned long long* entries, int32_t size) {
  for (int32_t span = 2; span <= size; span *= 2) {
    for (int32_t distance = span / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (int32_t i = static_cast<int32_t>(threadIdx.x); i < size; i += union_threads) {
        const int32_t other = i ^ distance;
        if (other <= i) continue;
        const unsigned long long x = entries[i], y = entries[other];
        if ((x > y) == ((i & span) == 0)) {
          entries[i] = y;
          entries[other] = x;
        }
      }
    }
  }
  __syncthreads();
}

struct Union {
  const int2* kept = nullptr;  // as in Measured
  const int32_t* places = nullptr;
  int64_t samples = 0;
  int64_t tile = 0;
  int32_t tiles = 0;
  int32_t heads = 0;
  int32_t k = 0;
  int32_t room = 0;  // entries, a power of two
  int32_t most = 0;  // blocks that a tile keeps
  bool by_mass = false;
  int32_t* blocks = nullptr;
  int32_t* counts = nullptr;
};

// grid: (tiles, heads); shared memory: room entries
__global__ void __launch_bounds__(union_threads) unite_blocks(const __grid_constant__ Union a) {
  constexpr unsigned long long nothing = ~0ull;
  extern __shared__ unsigned long long entries[];
  __shared__ int32_t scratch[33];
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
  const auto candidates = static_cast<int32_t>((end - first) * a.k);
  // By block; the samples of a block stay in order.
  for (int32_t i = thread; i < a.room; i += union_threads) {
    unsigned long long entry = nothing;
    if (i < candidates) {
      const int2 found = a.kept[((first + i / a.k) * a.heads + head) * a.k + i % a.k];
      if (found.x >= 0) {
        entry = static_cast<unsigned long long>(found.x) << 32 | static_cast<uint32_t>(i);
      }
    }
    entries[i] = entry;
  }
  sort_entries(entries, a.room);
  // The strength of every block, by its first entry; the complement sorts the strongest first.
  const auto strength = [&](int32_t i) -> unsigned long long {
    const unsigned long long own = entries[i];
    if (own == nothing) return nothing;
    const uint32_t block = static_cast<uint32_t>(own >> 32);
    if (i > 0 && static_cast<uint32_t>(entries[i - 1] >> 32) == block) return nothing;
    double sum = 0;
    int32_t count = 0;
    for (; i + count < a.room && entries[i + count] != nothing &&
           static_cast<uint32_t>(entries[i + count] >> 32) == block;
         ++count) {
      const auto at = static_cast<int32_t>(entries[i + count] & 0xffffffffu);
      const float score =
          __int_as_float(a.kept[((first + at / a.k) * a.heads + head) * a.k + at % a.k].y);
      sum += a.by_mass ? exp2(static_cast<double>(score)) : static_cast<double>(score);
    }
    if (!a.by_mass) sum /= count;
    return static_cast<unsigned long long>(~score_order(static_cast<float>(sum))) << 32 | block;
  };
  // Every thread has the same stretch of entries before and after.
  constexpr int most_own = static_cast<int>(most_candidates) / union_threads;
  unsigned long long own[most_own];
  const int32_t each = (a.room + union_threads - 1) / union_threads;
  for (int32_t j = 0; j < each; ++j) {
    const int32_t i = thread * each + j;
    own[j] = i < a.room ? strength(i) : nothing;
  }
  __syncthreads();
  for (int32_t j = 0; j < each; ++j) {
    const int32_t i = thread * each + j;
    if (i < a.room) entries[i] = own[j];
  }
  sort_entries(entries, a.room);
  // The strongest, by block again.
  for (int32_t i = thread; i < a.room; i += union_threads) {
    const unsigned long long entry = entries[i];
    entries[i] = i < a.most && entry != nothing ? entry & 0xffffffffu : nothing;
  }
  sort_entries(entries, a.room);
  const int64_t list = int64_t{head} * a.tiles + tile;
  int32_t count = 0;
  for (int32_t i = thread; i < min(a.most, a.room); i += union_threads) {
    if (entries[i] == nothing) continue;
    a.blocks[list * a.most + i] = static_cast<int32_t>(entries[i]);
    ++count;
  }
  int32_t total = 0;
  exclusive_scan(count, scratch, total);
  if (thread == 0) a.counts[list] = total;
}

int64_t candidates_of(const MomoOptions& options) {
  // One more than every γ-th: the first query may be measured besides.
  const int64_t samples =
      (options.layout.tile + options.query_stride - 1) / options.query_stride + 1;
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(samples * options.k)));
}

}  // namespace

bool can_choose(const MomoOptions& options) {
  const bool exact = options.top_k == TopKMethod::exact ||
                     options.top_k == TopKMethod::tournament ||
                     (options.top_k == TopKMethod::hybrid && options.k_exact >= options.k);
  return exact && candidates_of(options) <= most_candidates;
}

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
    return (seen + 127) / 128 * (128 / score_keys);
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
    cuda::launch({dim3(static_cast<unsigned int>(count), static_cast<unsigned int>(heads)),
                  top_threads, 0, stream},
                 "choosing attention blocks", top_blocks, measured);
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
  join.most = static_cast<int32_t>(most);
  join.by_mass = options.rank == BlockRank::mass;
  join.blocks = cuda::device_data<int32_t>(chosen.blocks.view());
  join.counts = cuda::device_data<int32_t>(chosen.counts.view());
  const auto bytes = static_cast<size_t>(room) * sizeof(unsigned long long);
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
