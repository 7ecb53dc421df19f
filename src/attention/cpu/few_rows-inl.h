// The inner loops for few (query, head) rows, where reading memory is all the work: decoding. Keys
// and values are used in place and widened in registers; vectors run along the head size.
// Included once per Highway target.
#if defined(KINORA_ATTENTION_FEW_ROWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KINORA_ATTENTION_FEW_ROWS_INL_H
#undef KINORA_ATTENTION_FEW_ROWS_INL_H
#else
#define KINORA_ATTENTION_FEW_ROWS_INL_H
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

#include "attention/cpu/kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kinora::attention_cpu {
namespace HWY_NAMESPACE {

constexpr int few_keys = many_registers ? 4 : 2;
// So few keys that their keys and values stay in the first-level cache between the two products.
constexpr int64_t few_block = 64;

template <typename T>
HWY_INLINE void fetch_row(const T* row, int64_t head_size) {
  for (int64_t c = 0; c < head_size; c += 64 / static_cast<int64_t>(sizeof(T))) {
    hwy::Prefetch(row + c);
  }
}

// scores[k][r] of few_keys keys and four rows.  queries: [4][width], zero beyond the head size
template <typename T>
HWY_INLINE void score_few(const T* const* keys, const float* queries, int64_t head_size,
                          int64_t width, float* scores) {
  const Tag d;
  Vector sums[few_keys][4];
  repeat<few_keys>([&](auto k)
                       HWY_ATTR { repeat<4>([&](auto r) HWY_ATTR { sums[k][r] = hn::Zero(d); }); });
  // The end of a row is a separate step: a branch in the loop would cost registers.
  const auto step = [&](int64_t c, auto at_end) HWY_ATTR {
    Vector query[4];
    repeat<4>([&](auto r) HWY_ATTR { query[r] = hn::Load(d, queries + r * width + c); });
    repeat<few_keys>([&](auto k) HWY_ATTR {
      Vector key;
      if constexpr (at_end) {
        key = load_row(d, keys[k], c, head_size);
      } else {
        key = load_f32(d, keys[k] + c);
      }
      repeat<4>([&](auto r) HWY_ATTR { sums[k][r] = hn::MulAdd(query[r], key, sums[k][r]); });
    });
  };
  int64_t c = 0;
  for (; c + lanes <= head_size; c += lanes) step(c, std::false_type());
  if (c < head_size) step(c, std::true_type());
  repeat<few_keys>([&](auto k) HWY_ATTR {
    repeat<4>([&](auto r)
                  HWY_ATTR { scores[k * strip + r] = hn::GetLane(hn::SumOfLanes(d, sums[k][r])); });
  });
}

// Columns [column, column + vectors · lanes) of four rows' output; with `at_end` they may reach
// beyond the head size. weights: [keys][strip]
template <int vectors, bool at_end, typename T>
HWY_INLINE void add_few(const float* weights, const T* const* values, int64_t keys, int64_t column,
                        int64_t head_size, const float* correction, float* out, int64_t width) {
  const Tag d;
  Vector sums[4][vectors];
  repeat<4>([&](auto r) HWY_ATTR {
    const Vector factor = hn::Set(d, correction[r]);
    repeat<vectors>([&](auto v) HWY_ATTR {
      sums[r][v] = hn::Mul(hn::Load(d, out + r * width + column + v * lanes), factor);
    });
  });
  for (int64_t k = 0; k < keys; ++k, weights += strip) {
    Vector value[vectors];
    repeat<vectors>([&](auto v) HWY_ATTR {
      if constexpr (at_end) {
        value[v] = load_row(d, values[k], column + v * lanes, head_size);
      } else {
        value[v] = load_f32(d, values[k] + column + v * lanes);
      }
    });
    repeat<4>([&](auto r) HWY_ATTR {
      const Vector weight = broadcast<r>(weights);
      repeat<vectors>([&](auto v)
                          HWY_ATTR { sums[r][v] = hn::MulAdd(value[v], weight, sums[r][v]); });
    });
  }
  repeat<4>([&](auto r) HWY_ATTR {
    repeat<vectors>(
        [&](auto v) HWY_ATTR { hn::Store(sums[r][v], d, out + r * width + column + v * lanes); });
  });
}

// scores[key][row] for the first `rows` rows of a strip.  queries: [rows in fours][width]
template <typename T>
HWY_NOINLINE void score_few_rows(const T* const* keys, const T* const* values, int64_t count,
                                 const float* queries, int64_t rows, int64_t head_size,
                                 int64_t width, float* scores) {
  constexpr int64_t ahead = 8;
  for (int64_t k = 0; k < count; k += few_keys) {
    const T* group[few_keys];
    for (int64_t i = 0; i < few_keys; ++i) {
      // A short last group repeats its last key; the copies are never looked at.
      const int64_t at = std::min(k + i, count - 1);
      group[i] = keys[at];
      fetch_row(keys[std::min(at + ahead, count - 1)], head_size);
      fetch_row(values[at], head_size);
    }
    for (int64_t r = 0; r < rows; r += 4) {
      score_few(group, queries + r * width, head_size, width, scores + k * strip + r);
    }
  }
}

template <typename T>
HWY_NOINLINE void add_few_rows(const float* weights, const T* const* values, int64_t keys,
                               int64_t rows, int64_t head_size, const float* correction, float* out,
                               int64_t width) {
  constexpr int wide = many_registers ? 4 : 2;
  for (int64_t r = 0; r < rows; r += 4) {
    int64_t c = 0;
    for (; c + wide * lanes <= head_size; c += wide * lanes) {
      add_few<wide, false>(weights + r, values, keys, c, head_size, correction + r, out + r * width,
                           width);
    }
    for (; c < width; c += lanes) {
      add_few<1, true>(weights + r, values, keys, c, head_size, correction + r, out + r * width,
                       width);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora::attention_cpu
HWY_AFTER_NAMESPACE();

#endif
