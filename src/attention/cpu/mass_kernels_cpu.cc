#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/cpu/mass_cpu.h"
#include "ops/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/mass_kernels_cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "attention/cpu/few_rows-inl.h"
#include "attention/cpu/kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kinora::attention_cpu {
namespace HWY_NAMESPACE {

template <typename T>
void score_typed(std::span<const std::byte* const> keys, const float* queries, int64_t pairs,
                 int64_t head_size, int64_t width, float* scores, int64_t stride) {
  constexpr int64_t ahead = 8;
  const auto count = static_cast<int64_t>(keys.size());
  const auto row = [&](int64_t k) {
    return reinterpret_cast<const T*>(keys[static_cast<size_t>(std::min(k, count - 1))]);
  };
  float few[few_keys * strip];
  for (int64_t k = 0; k < count; k += few_keys) {
    const T* group[few_keys];
    for (int64_t i = 0; i < few_keys; ++i) {
      group[i] = row(k + i);
      fetch_row(row(k + i + ahead), head_size);
    }
    for (int64_t p = 0; p < pairs; p += 4) {
      score_few(group, queries + p * width, head_size, width, few);
      for (int64_t r = p; r < std::min(p + 4, pairs); ++r) {
        for (int64_t i = 0; i < std::min<int64_t>(few_keys, count - k); ++i) {
          scores[r * stride + k + i] = few[i * strip + r - p];
        }
      }
    }
  }
}

void score_rows_here(DType type, std::span<const std::byte* const> keys,
                     std::span<const float* const> queries, int64_t head_size, float factor,
                     float* scores, int64_t stride) {
  const int64_t width = round_up(head_size, lanes);
  const auto pairs = static_cast<int64_t>(queries.size());
  const ScratchLease lease(static_cast<size_t>(round_up(pairs, 4) * width) * sizeof(float));
  auto* packed = lease.as<float>();
  std::fill_n(packed, round_up(pairs, 4) * width, 0.0f);
  for (int64_t p = 0; p < pairs; ++p) {
    const float* from = queries[static_cast<size_t>(p)];
    for (int64_t c = 0; c < head_size; ++c) packed[p * width + c] = from[c] * factor;
  }
  if (type == DType::f32) {
    score_typed<float>(keys, packed, pairs, head_size, width, scores, stride);
  } else {
    score_typed<bf16>(keys, packed, pairs, head_size, width, scores, stride);
  }
}

ScoreState weigh_scores_here(std::span<float> scores) {
  const Tag d;
  const auto count = static_cast<int64_t>(scores.size());
  const float max = *std::max_element(scores.begin(), scores.end());
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
