// The inner loops for one strip of queries, such as the guesses that a draft wants checked or a
// short question: keys and values are used where they lie, since packing them takes longer than all
// that so few queries do with them. The order of operations is that of kernels-inl.h, and so are
// the bits of a result. Included once per Highway target.
#if defined(KINORA_ATTENTION_IN_PLACE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KINORA_ATTENTION_IN_PLACE_INL_H
#undef KINORA_ATTENTION_IN_PLACE_INL_H
#else
#define KINORA_ATTENTION_IN_PLACE_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "attention/cpu/few_rows-inl.h"
#include "attention/cpu/kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kinora::attention_cpu {
namespace HWY_NAMESPACE {

// Keys whose scores stand in registers. Divides a block.
constexpr int near_keys = many_registers ? 6 : 4;
static_assert(block_keys % near_keys == 0);
constexpr int64_t near_ahead = 2 * near_keys;

// scores[k][query] of near_keys keys and the first `vectors` vectors of queries: [depth][strip]
template <int vectors>
HWY_INLINE void score_near(const float* const* keys, const float* HWY_RESTRICT queries,
                           int64_t head_size, float* HWY_RESTRICT scores) {
  const Tag d;
  Vector sums[near_keys][vectors];
  repeat<near_keys>([&](auto k) HWY_ATTR {
    repeat<vectors>([&](auto v) HWY_ATTR { sums[k][v] = hn::Zero(d); });
  });
  const float* key[near_keys];
  repeat<near_keys>([&](auto k) HWY_ATTR { key[k] = keys[k]; });
  for (int64_t c = 0; c < head_size; ++c, queries += strip) {
    Vector query[vectors];
    repeat<vectors>([&](auto v) HWY_ATTR { query[v] = hn::Load(d, queries + v * lanes); });
    repeat<near_keys>([&](auto k) HWY_ATTR {
      const Vector one = hn::Set(d, key[k][c]);
      repeat<vectors>([&](auto v) HWY_ATTR { sums[k][v] = hn::MulAdd(query[v], one, sums[k][v]); });
    });
  }
  repeat<near_keys>([&](auto k) HWY_ATTR {
    repeat<vectors>([&](auto v)
                        HWY_ATTR { hn::Store(sums[k][v], d, scores + k * strip + v * lanes); });
  });
}

// scores[key][query] for the first `rows` queries of a strip.
inline HWY_NOINLINE void score_in_place(const float* const* keys, int64_t count,
                                        const float* queries, int64_t rows, int64_t head_size,
                                        float* scores) {
  for (int64_t k = 0; k < count; k += near_keys) {
    const float* group[near_keys];
    for (int64_t i = 0; i < near_keys; ++i) {
      // A short last group repeats its last key; the copies are never looked at.
      group[i] = keys[std::min(k + i, count - 1)];
      fetch_row(keys[std::min(k + i + near_ahead, count - 1)], head_size);
    }
    if (rows <= lanes) {
      score_near<1>(group, queries, head_size, scores + k * strip);
    } else {
      score_near<strip_vectors>(group, queries, head_size, scores + k * strip);
    }
  }
}

// Columns [column, column + vectors · lanes) of `rows` queries' output; with `at_end` they may
// reach beyond the head size. weights: [keys][strip]
template <int rows, int vectors, bool at_end>
HWY_INLINE void add_near(const float* HWY_RESTRICT weights, const float* const* values,
                         int64_t keys, int64_t column, int64_t head_size,
                         const float* HWY_RESTRICT correction, float* HWY_RESTRICT out,
                         int64_t width) {
  const Tag d;
  Vector sums[rows][vectors];
  repeat<rows>([&](auto r) HWY_ATTR {
    const Vector factor = hn::Set(d, correction[r]);
    repeat<vectors>([&](auto v) HWY_ATTR {
      sums[r][v] = hn::Mul(hn::Load(d, out + r * width + column + v * lanes), factor);
    });
  });
  for (int64_t k = 0; k < keys; ++k, weights += strip) {
    if (column == 0) fetch_row(values[std::min(k + near_ahead, keys - 1)], head_size);
    Vector value[vectors];
    repeat<vectors>([&](auto v) HWY_ATTR {
      if constexpr (at_end) {
        value[v] = load_row(d, values[k], column + v * lanes, head_size);
      } else {
        value[v] = load_f32(d, values[k] + column + v * lanes);
      }
    });
    repeat<rows>([&](auto r) HWY_ATTR {
      const Vector weight = broadcast<r>(weights);
      repeat<vectors>([&](auto v)
                          HWY_ATTR { sums[r][v] = hn::MulAdd(value[v], weight, sums[r][v]); });
    });
  }
  repeat<rows>([&](auto r) HWY_ATTR {
    repeat<vectors>(
        [&](auto v) HWY_ATTR { hn::Store(sums[r][v], d, out + r * width + column + v * lanes); });
  });
}

template <int rows>
HWY_INLINE void add_near_rows(const float* weights, const float* const* values, int64_t keys,
                              int64_t head_size, const float* correction, float* out,
                              int64_t width) {
  constexpr int wide = rows > 4 || !many_registers ? 2 : 4;
  int64_t c = 0;
  for (; c + wide * lanes <= head_size; c += wide * lanes) {
    add_near<rows, wide, false>(weights, values, keys, c, head_size, correction, out, width);
  }
  for (; c < width; c += lanes) {
    add_near<rows, 1, true>(weights, values, keys, c, head_size, correction, out, width);
  }
}

// The first `rows` queries of a strip.
inline HWY_NOINLINE void add_in_place(const float* weights, const float* const* values,
                                      int64_t keys, int64_t rows, int64_t head_size,
                                      const float* correction, float* out, int64_t width) {
  for (int64_t r = 0; r < rows;) {
    if (value_rows > 4 && rows - r > 4) {
      add_near_rows<value_rows>(weights + r, values, keys, head_size, correction + r,
                                out + r * width, width);
      r += value_rows;
    } else {
      add_near_rows<4>(weights + r, values, keys, head_size, correction + r, out + r * width,
                       width);
      r += 4;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora::attention_cpu
HWY_AFTER_NAMESPACE();

#endif
