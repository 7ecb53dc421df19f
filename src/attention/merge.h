// Joins attention over two disjoint sets of keys into attention over their union, exactly: split
// lists, offloaded clusters and tree verification all end here.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace kinora {

// Attention of one query and head over some set of keys.
struct PartialRow {
  float* out = nullptr;  // [head size], normalised
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;
};

// target ← target ∪ other. Either side may be empty (sum 0).
inline void merge_row(PartialRow& target, const float* other_out, float other_max, float other_sum,
                      int64_t head_size) {
  if (other_sum == 0) return;
  if (target.sum == 0) {
    for (int64_t i = 0; i < head_size; ++i) target.out[i] = other_out[i];
    target.max = other_max;
    target.sum = other_sum;
    return;
  }
  const float max = std::fmax(target.max, other_max);
  const float weight = target.sum * std::exp(target.max - max);
  const float other_weight = other_sum * std::exp(other_max - max);
  const float sum = weight + other_weight;
  const float share = weight / sum;
  const float other_share = other_weight / sum;
  for (int64_t i = 0; i < head_size; ++i) {
    target.out[i] = share * target.out[i] + other_share * other_out[i];
  }
  target.max = max;
  target.sum = sum;
}

}  // namespace kinora
