// The inner loops of add_mass (row_mass.h) on the CPU. Private to attention/.
#pragma once

#include <cstdint>
#include <span>

#include "attention/row_mass.h"

namespace kinora::attention_cpu {

// Some rows of a set and their kv head, against queries of that kv head:
//   scores[p · stride + k] = factor · query p · key k
//   keys: [count] heads of rows of the type; queries: [pairs] rows of f32
void score_rows(DType type, std::span<const std::byte* const> keys,
                std::span<const float* const> queries, int64_t head_size, float factor,
                float* scores, int64_t stride);

struct ScoreState {
  float max;  // −∞ where nothing was read
  float sum;  // Σ 2^(score − max)
};
// Scores in powers of two become 2^(score − max).
ScoreState weigh_scores(std::span<float> scores);

void add_mass(const Context& context, const QueryView& queries, std::span<const RowSet> sets,
              float scale, int64_t counted, const LayerHeads& chosen, const MassTarget& target);

}  // namespace kinora::attention_cpu
