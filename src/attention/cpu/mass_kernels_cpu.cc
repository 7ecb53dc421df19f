#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "attention/cpu/mass_cpu.h"
#include "ops/rows.h"
#include "ops/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/mass_kernels_cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "attention/cpu/few_rows-inl.h"
#include "attention/cpu/kernels-inl.h"
#include "ops/packed_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kinora::attention_cpu {
namespace HWY_NAMESPACE {

// Scores of `count` keys at a time and `rows` queries; fewer queries leave registers for more keys.
template <int rows>
constexpr int group_keys = rows == 1 ? 8 : 4;

// out[k · 4 + r].  queries: [rows][width], zero beyond the head size
template <int rows, typename T>
HWY_INLINE void score_group(const T* const* keys, const float* queries, int64_t head_size,
                            int64_t width, float* out) {
  constexpr int count = group_keys<rows>;
  const Tag d;
  Vector sums[count][rows];
  repeat<count>([&](auto k)
                    HWY_ATTR { repeat<rows>([&](auto r) HWY_ATTR { sums[k][r] = hn::Zero(d); }); });
  const auto step = [&](int64_t c, auto at_end) HWY_ATTR {
    Vector query[rows];
    repeat<rows>([&](auto r) HWY_ATTR { query[r] = hn::Load(d, queries + r * width + c); });
    repeat<count>([&](auto k) HWY_ATTR {
      Vector key;
      if constexpr (at_end) {
        key = load_row(d, keys[k], c, head_size);
      } else {
        key = load_f32(d, keys[k] + c);
      }
      repeat<rows>([&](auto r) HWY_ATTR { sums[k][r] = hn::MulAdd(query[r], key, sums[k][r]); });
    });
  };
  int64_t c = 0;
  for (; c + lanes <= head_size; c += lanes) step(c, std::false_type());
  if (c < head_size) step(c, std::true_type());
  repeat<count>([&](auto k) HWY_ATTR {
    repeat<rows>([&](auto r)
                     HWY_ATTR { out[k * 4 + r] = hn::GetLane(hn::SumOfLanes(d, sums[k][r])); });
  });
}

template <int rows, typename T>
void score_pairs(std::span<const std::byte* const> keys, const float* queries, int64_t head_size,
                 int64_t width, float* room, float* scores, int64_t stride) {
  constexpr int64_t group = group_keys<rows>, ahead = 2 * group;
  const auto count = static_cast<int64_t>(keys.size());
  const auto row = [&](int64_t k) {  // a short last group repeats its last key
    return reinterpret_cast<const T*>(keys[static_cast<size_t>(std::min(k, count - 1))]);
  };
  float out[group * 4];
  using Read = std::conditional_t<is_code<T>, float, T>;
  for (int64_t k = 0; k < count; k += group) {
    const Read* group_rows[group];
    for (int64_t i = 0; i < group; ++i) {
      if constexpr (is_code<T>) {
        widen_head(row(k + i), head_size, room + i * width);
        group_rows[i] = room + i * width;
      } else {
        group_rows[i] = row(k + i);
      }
      fetch_row(row(k + i + ahead), head_size);
    }
    score_group<rows>(group_rows, queries, head_size, width, out);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < std::min(group, count - k); ++i) {
        scores[r * stride + k + i] = out[i * 4 + r];
      }
    }
  }
}

template <typename T>
void score_typed(std::span<const std::byte* const> keys, const float* queries, int64_t pairs,
                 int64_t head_size, int64_t width, float* room, float* scores, int64_t stride) {
  for (int64_t p = 0; p < pairs; p += 4) {
    const auto score = [&](auto rows) {
      score_pairs<rows, T>(keys, queries + p * width, head_size, width, room, scores + p * stride,
                           stride);
    };
    switch (std::min<int64_t>(4, pairs - p)) {
      case 1:
        score(std::integral_constant<int, 1>());
        break;
      case 2:
        score(std::integral_constant<int, 2>());
        break;
      case 3:
        score(std::integral_constant<int, 3>());
        break;
      default:
        score(std::integral_constant<int, 4>());
    }
  }
}

void score_rows_here(DType type, std::span<const std::byte* const> keys,
                     std::span<const float* const> queries, int64_t head_size, float factor,
                     float* scores, int64_t stride) {
  const int64_t width = round_up(head_size, lanes);
  const auto pairs = static_cast<int64_t>(queries.size());
  const int64_t padded = round_up(pairs, 4);
  const ScratchLease lease(static_cast<size_t>((padded + group_keys<1>)*width) * sizeof(float));
  auto* packed = lease.as<float>();
  std::fill_n(packed, padded * width, 0.0f);
  for (int64_t p = 0; p < pairs; ++p) {
    const float* from = queries[static_cast<size_t>(p)];
    for (int64_t c = 0; c < head_size; ++c) packed[p * width + c] = from[c] * factor;
  }
  with_row_type(type, [&]<typename T>(T) {
    score_typed<T>(keys, packed, pairs, head_size, width, packed + padded * width, scores, stride);
  });
}

ScoreState weigh_scores_here(std::span<float> scores) {
  const Tag d;
  const auto count = static_cast<int64_t>(scores.size());
  Vector highest = hn::Set(d, -std::numeric_limits<float>::infinity());
  int64_t seen = 0;
  for (; seen + lanes <= count; seen += lanes) {
    highest = hn::Max(highest, hn::LoadU(d, scores.data() + seen));
  }
  float max = hn::GetLane(hn::MaxOfLanes(d, highest));
  for (; seen < count; ++seen) max = std::max(max, scores[static_cast<size_t>(seen)]);
  if (std::isinf(max)) {  // all −∞
    std::fill(scores.begin(), scores.end(), 0.0f);
    return {max, 0};
  }
  const Vector high = hn::Set(d, max);
  Vector sums = hn::Zero(d);
  int64_t at = 0;
  for (; at + lanes <= count; at += lanes) {
    const Vector weight = exp2(hn::Sub(hn::LoadU(d, scores.data() + at), high));
    hn::StoreU(weight, d, scores.data() + at);
    sums = hn::Add(sums, weight);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, sums));
  for (; at < count; ++at) {
    float& weight = scores[static_cast<size_t>(at)];
    weight = std::exp2(weight - max);
    sum += weight;
  }
  return {max, sum};
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora::attention_cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kinora::attention_cpu {

HWY_EXPORT(score_rows_here);
HWY_EXPORT(weigh_scores_here);

void score_rows(DType type, std::span<const std::byte* const> keys,
                std::span<const float* const> queries, int64_t head_size, float factor,
                float* scores, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(score_rows_here)
  (type, keys, queries, head_size, factor, scores, stride);
}

ScoreState weigh_scores(std::span<float> scores) {
  return HWY_DYNAMIC_DISPATCH(weigh_scores_here)(scores);
}

}  // namespace kinora::attention_cpu
#endif
