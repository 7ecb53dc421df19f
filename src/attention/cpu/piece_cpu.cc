#include "attention/cpu/piece_cpu.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "ops/rows.h"
#include "ops/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/piece_cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "attention/cpu/kernels-inl.h"

// Vectors run along the head size, so that keys and values are used where they lie. Tiles of some
// queries and some keys (or columns) stand in registers: a row of memory is loaded once for up to
// four queries, and from the first-level cache for more. No sum depends on the shape of a tile.

HWY_BEFORE_NAMESPACE();
namespace kinora::attention_cpu {
namespace HWY_NAMESPACE {

// So few rows that keys and values stay in the first-level cache between the two products.
constexpr int64_t piece_block = 64;
constexpr int tile_queries = 4;

// Keys of a tile of the first product, vectors of one of the second.
constexpr int keys_of(int queries) { return many_registers ? (queries <= 2 ? 8 : 4) : 2; }
constexpr int vectors_of(int queries) {
  if (!many_registers) return queries <= 2 ? 4 : 2;
  return queries <= 2 ? 8 : 4;
}

// The rows of one block and the keys of the next, as pointers; where the piece ends, its last row
// is repeated.
template <typename T>
struct Block {
  const T* keys[2 * piece_block];
  const T* values[piece_block];
  int64_t count;
};

// x86 cores fetch the other line of a pair by themselves; asking for both would only keep the few
// places busy where misses wait.
constexpr int line_step = HWY_ARCH_X86 ? 2 : 1;

// A few lines too many cost less than a loop that ends at the right place.
template <typename T>
HWY_INLINE void fetch(const T* row, int64_t head_size) {
  const auto* at = reinterpret_cast<const char*>(row);
  const char* end = at + head_size * int64_t(sizeof(T));
  do {
    repeat<4 / line_step>([&](auto i) HWY_ATTR { hwy::Prefetch(at + i * line_step * 64); });
    at += 256;
  } while (at < end);
}

// The sum of each of `keys` vectors of `count` queries, sums[q][key] to to[q · stride + key].
template <int count, int keys>
HWY_INLINE void store_sums(const Vector (&sums)[count][keys], float* to, int64_t stride) {
  HWY_ALIGN float all[count * keys];
  store_sums_of_lanes<count * keys>(
      Tag(), [&](auto i) HWY_ATTR { return sums[i / keys][i % keys]; }, all);
  repeat<count>([&](auto q) HWY_ATTR { std::copy_n(all + q * keys, keys, to + q * stride); });
}

// scores[q][key] of all keys of a block.  queries: [q][width], zero beyond the head size
// With `fetches` the block's values are on their way afterwards.
template <int count, typename T>
HWY_NOINLINE void score_block(const Block<T>& block, const float* queries, int64_t head_size,
                              int64_t width, bool fetches, float* scores) {
  constexpr int keys = keys_of(count);
  const Tag d;
  for (int64_t first = 0; first < block.count; first += keys) {
    const T* const* key = block.keys + first;
    for (int k = 0; fetches && k < keys; ++k) fetch(block.values[first + k], head_size);
    Vector sums[count][keys];
    repeat<count>(
        [&](auto q) HWY_ATTR { repeat<keys>([&](auto k) HWY_ATTR { sums[q][k] = hn::Zero(d); }); });
    const auto step = [&](int64_t c, auto at_end) HWY_ATTR {
      Vector query[count];
      repeat<count>([&](auto q) HWY_ATTR { query[q] = hn::Load(d, queries + q * width + c); });
      repeat<keys>([&](auto k) HWY_ATTR {
        Vector row;
        if constexpr (at_end) {
          row = load_row(d, key[k], c, head_size);
        } else {
          row = load_f32(d, key[k] + c);
        }
        repeat<count>([&](auto q) HWY_ATTR { sums[q][k] = hn::MulAdd(query[q], row, sums[q][k]); });
      });
    };
    int64_t c = 0;
    for (; c + lanes <= head_size; c += lanes) step(c, std::false_type());
    if (c < head_size) step(c, std::true_type());
    store_sums(sums, scores + first, piece_block);
  }
}

// Scores of one query become weights; returns what its result so far must be multiplied by.
HWY_INLINE float weigh_block(int64_t count, float* scores, float& max, float& sum) {
  const Tag d;
  const Vector none = hn::Set(d, -std::numeric_limits<float>::infinity());
  // Beyond the last row nothing weighs anything.
  for (int64_t i = count; i < round_up(count, std::max<int64_t>(4, lanes)); ++i) {
    scores[i] = -std::numeric_limits<float>::infinity();
  }
  Vector top = hn::Set(d, max), top2 = none;
  int64_t k = 0;
  for (; k + 2 * lanes <= count; k += 2 * lanes) {
    top = hn::Max(top, hn::Load(d, scores + k));
    top2 = hn::Max(top2, hn::Load(d, scores + k + lanes));
  }
  for (; k < count; k += lanes) top = hn::Max(top, hn::Load(d, scores + k));
  const Vector now = hn::MaxOfLanes(d, hn::Max(top, top2));
  const float correction = hn::GetLane(exp2(hn::Sub(hn::Set(d, max), now)));
  Vector total = hn::Zero(d), total2 = hn::Zero(d);
  for (k = 0; k + 2 * lanes <= count; k += 2 * lanes) {
    const Vector p = exp2(hn::Sub(hn::Load(d, scores + k), now));
    const Vector p2 = exp2(hn::Sub(hn::Load(d, scores + k + lanes), now));
    hn::Store(p, d, scores + k);
    hn::Store(p2, d, scores + k + lanes);
    total = hn::Add(total, p);
    total2 = hn::Add(total2, p2);
  }
  for (; k < round_up(count, std::max<int64_t>(4, lanes)); k += lanes) {
    const Vector p = exp2(hn::Sub(hn::Load(d, scores + k), now));
    hn::Store(p, d, scores + k);
    total = hn::Add(total, p);
  }
  max = hn::GetLane(now);
  sum = sum * correction + hn::GetLane(hn::SumOfLanes(d, hn::Add(total, total2)));
  return correction;
}

// Columns [column, column + vectors · lanes) of the results of `count` queries; with `at_end` they
// may reach beyond the head size. With `fetches` the keys of the next block are on their way
// afterwards.
template <int count, int vectors, bool at_end, typename T>
HWY_INLINE void add_columns(const Block<T>& block, const float* weights, int64_t column,
                            int64_t head_size, const float* correction, bool fetches,
                            float* const* results) {
  const Tag d;
  Vector sums[count][vectors];
  repeat<count>([&](auto q) HWY_ATTR {
    const Vector factor = hn::Set(d, correction[q]);
    repeat<vectors>([&](auto v) HWY_ATTR {
      sums[q][v] = hn::Mul(hn::LoadU(d, results[q] + column + v * lanes), factor);
    });
  });
  for (int64_t first = 0; first < block.count; first += 4) {
    for (int k = 0; fetches && k < 4; ++k) fetch(block.keys[piece_block + first + k], head_size);
    repeat<4>([&](auto k) HWY_ATTR {
      const T* row = block.values[first + k];
      Vector weight[count];
      repeat<count>([&](auto q)
                        HWY_ATTR { weight[q] = broadcast<k>(weights + q * piece_block + first); });
      repeat<vectors>([&](auto v) HWY_ATTR {
        Vector value;
        if constexpr (at_end) {
          value = load_row(d, row, column + v * lanes, head_size);
        } else {
          value = load_f32(d, row + column + v * lanes);
        }
        repeat<count>([&](auto q)
                          HWY_ATTR { sums[q][v] = hn::MulAdd(value, weight[q], sums[q][v]); });
      });
    });
  }
  repeat<count>([&](auto q) HWY_ATTR {
    repeat<vectors>([&](auto v)
                        HWY_ATTR { hn::StoreU(sums[q][v], d, results[q] + column + v * lanes); });
  });
}

template <int count, typename T>
HWY_NOINLINE void add_block(const Block<T>& block, const float* weights, int64_t head_size,
                            const float* correction, bool fetches, float* const* results) {
  constexpr int wide = vectors_of(count), half = wide / 2;
  int64_t c = 0;
  for (; c + wide * lanes <= head_size; c += wide * lanes) {
    add_columns<count, wide, false>(block, weights, c, head_size, correction, fetches && c == 0,
                                    results);
  }
  for (; c + half * lanes <= head_size; c += half * lanes) {
    add_columns<count, half, false>(block, weights, c, head_size, correction, fetches && c == 0,
                                    results);
  }
  for (; c + lanes <= head_size; c += lanes) {
    add_columns<count, 1, false>(block, weights, c, head_size, correction, fetches && c == 0,
                                 results);
  }
  if (c < head_size) {
    add_columns<count, 1, true>(block, weights, c, head_size, correction, fetches && c == 0,
                                results);
  }
}

// work(first, number as a constant) for tiles of queries.
template <class Work>
HWY_INLINE void for_tiles(int64_t queries, const Work& work) {
  int64_t at = 0;
  for (; at + tile_queries <= queries; at += tile_queries) {
    work(at, std::integral_constant<int, tile_queries>());
  }
  switch (queries - at) {
    case 1:
      return work(at, std::integral_constant<int, 1>());
    case 2:
      return work(at, std::integral_constant<int, 2>());
    case 3:
      return work(at, std::integral_constant<int, 3>());
    default:
      return;
  }
}

template <typename T>
void read_rows(const Piece& piece) {
  const auto queries = static_cast<int64_t>(piece.queries.size());
  const int64_t width = piece_width(piece.head_size);
  const ScratchLease lease(static_cast<size_t>(queries * (width + piece_block)) * sizeof(float));
  float* scaled = lease.as<float>();
  float* scores = scaled + queries * width;
  float max[piece_queries], sum[piece_queries], correction[piece_queries];
  const float factor = piece.scale * std::numbers::log2e_v<float>;
  for (int64_t q = 0; q < queries; ++q) {
    const float* from = piece.queries[static_cast<size_t>(q)];
    float* to = scaled + q * width;
    for (int64_t c = 0; c < piece.head_size; ++c) to[c] = from[c] * factor;
    std::fill(to + piece.head_size, to + width, 0.0f);
    std::fill_n(piece.results[static_cast<size_t>(q)], width, 0.0f);
    max[q] = -std::numeric_limits<float>::infinity();
    sum[q] = 0;
  }
  const auto row = [&](int64_t i) {
    const int64_t at = piece.first + std::min(i, piece.count - 1);
    return piece.list == nullptr ? at : int64_t{piece.list[at]};
  };
  const auto* keys = static_cast<const T*>(piece.keys);
  const auto* values = static_cast<const T*>(piece.values);
  Block<T> block;
  for (int64_t i = 0; i < piece_block; ++i) {
    block.keys[piece_block + i] = keys + row(i) * piece.key_stride;
    fetch(block.keys[piece_block + i], piece.head_size);
  }
  for (int64_t begin = 0; begin < piece.count; begin += piece_block) {
    block.count = std::min(piece_block, piece.count - begin);
    std::copy_n(block.keys + piece_block, piece_block, block.keys);
    for (int64_t i = 0; i < piece_block; ++i) {
      block.keys[piece_block + i] = keys + row(begin + piece_block + i) * piece.key_stride;
      block.values[i] = values + row(begin + i) * piece.value_stride;
    }
    for_tiles(queries, [&](int64_t at, auto count) {
      score_block<count>(block, scaled + at * width, piece.head_size, width, at == 0,
                         scores + at * piece_block);
    });
    for (int64_t q = 0; q < queries; ++q) {
      float* mine = scores + q * piece_block;
      if (piece.weights != nullptr) {
        const float* weights = piece.weights + piece.first + begin;
        for (int64_t i = 0; i < block.count; ++i) mine[i] += std::log2(weights[i]);
      }
      correction[q] = weigh_block(block.count, mine, max[q], sum[q]);
    }
    for_tiles(queries, [&](int64_t at, auto count) {
      add_block<count>(block, scores + at * piece_block, piece.head_size, correction + at, at == 0,
                       piece.results.data() + at);
    });
  }
  for (int64_t q = 0; q < queries; ++q) {
    piece.results[static_cast<size_t>(q)][width] = max[q];
    piece.results[static_cast<size_t>(q)][width + 1] = sum[q];
  }
}

void read_piece_here(const Piece& piece) {
  with_float_type(piece.type, [&]<typename T>(T) { read_rows<T>(piece); });
}

void join_pieces_here(const float* results, int64_t count, int64_t stride, int64_t head_size,
                      float* out) {
  const int64_t width = piece_width(head_size);
  float max = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < count; ++i) max = std::max(max, results[i * stride + width]);
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float* from = results + i * stride;
    const float factor = std::exp2(from[width] - max);
    sum += from[width + 1] * factor;
    for_vectors(head_size, [&](auto d, int64_t at, auto part) HWY_ATTR {
      const auto more = hn::Mul(part.load(d, from + at), hn::Set(d, factor));
      part.store(d, i == 0 ? more : hn::Add(part.load(d, out + at), more), out + at);
    });
  }
  const float share = 1.0f / sum;
  for_vectors(head_size, [&](auto d, int64_t at, auto part) HWY_ATTR {
    part.store(d, hn::Mul(part.load(d, out + at), hn::Set(d, share)), out + at);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora::attention_cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kinora::attention_cpu {
HWY_EXPORT(read_piece_here);
HWY_EXPORT(join_pieces_here);

void read_piece(const Piece& piece) { HWY_DYNAMIC_DISPATCH(read_piece_here)(piece); }

void join_pieces(const float* results, int64_t count, int64_t stride, int64_t head_size,
                 float* out) {
  HWY_DYNAMIC_DISPATCH(join_pieces_here)(results, count, stride, head_size, out);
}
}  // namespace kinora::attention_cpu
#endif
