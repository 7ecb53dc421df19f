#include "generate/token_scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kinora {

TokenScores score_token(std::span<const float> logits, int32_t token, int64_t best) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - largest);
  const double norm = largest + std::log(sum);
  const auto score = [&](int32_t id) {
    return TokenScore{id, double{logits[static_cast<size_t>(id)]} - norm};
  };
  TokenScores scores{score(token), {}};
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto count = std::min<int64_t>(best, std::ssize(ids));
  std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), [&](int32_t a, int32_t b) {
    const float left = logits[static_cast<size_t>(a)], right = logits[static_cast<size_t>(b)];
    return left != right ? left > right : a < b;
  });
  for (int64_t i = 0; i < count; ++i) scores.best.push_back(score(ids[static_cast<size_t>(i)]));
  return scores;
}

}  // namespace kinora
