#include "generate/token_scores.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/random_data.h"

namespace kinora {
namespace {

TEST(TokenScores, AreTheLogarithmOfTheSoftmax) {
  KINORA_FRESH_RANDOM(random);
  for (const int size : {1, 2, 63, 257, 1000}) {
    std::vector<float> logits;
    for (int i = 0; i < size; ++i) logits.push_back(static_cast<float>(random.uniform(-10, 10)));
    const auto token = static_cast<int32_t>(random.below(size));
    const TokenScores scores = score_token(logits, token, 5);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double{logit});
    EXPECT_EQ(scores.chosen.token, token);
    EXPECT_NEAR(scores.chosen.log_probability,
                std::log(std::exp(double{logits[static_cast<size_t>(token)]}) / sum), 1e-9);
    ASSERT_EQ(std::ssize(scores.best), std::min(5, size));
    for (size_t i = 0; i < scores.best.size(); ++i) {
      int larger = 0;
      const float own = logits[static_cast<size_t>(scores.best[i].token)];
      for (const float logit : logits) larger += logit > own;
      EXPECT_LE(larger, static_cast<int>(i));
      EXPECT_NEAR(scores.best[i].log_probability, std::log(std::exp(double{own}) / sum), 1e-9);
    }
  }
}

TEST(TokenScores, LargeLogitsDoNotOverflow) {
  const std::vector<float> logits{1000, 999, -1000};
  const TokenScores scores = score_token(logits, 1, 1);
  EXPECT_NEAR(scores.best.at(0).log_probability, -std::log1p(std::exp(-1)), 1e-9);
  EXPECT_NEAR(scores.chosen.log_probability, -1 - std::log1p(std::exp(-1)), 1e-9);
}

}  // namespace
}  // namespace kinora
