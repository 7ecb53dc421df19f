#include "attention/policies/online_top_k.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "support/random_data.h"

namespace kinora {
namespace {

constexpr float nan_score = std::numeric_limits<float>::quiet_NaN();
constexpr float no_score = -std::numeric_limits<float>::infinity();

std::vector<BlockScore> sorted(std::vector<BlockScore> blocks) {
  std::sort(blocks.begin(), blocks.end(), [](const BlockScore& a, const BlockScore& b) {
    return a.score != b.score ? a.score > b.score : a.block < b.block;
  });
  return blocks;
}

std::vector<BlockScore> run(TopKMethod method, int64_t k, int64_t exact,
                            const std::vector<float>& scores) {
  OnlineTopK top(method, k, exact, static_cast<int64_t>(scores.size()));
  for (size_t i = 0; i < scores.size(); ++i) top.offer(static_cast<int32_t>(i), scores[i]);
  return sorted(top.take());
}

std::vector<BlockScore> by_sorting(int64_t k, const std::vector<float>& scores) {
  std::vector<BlockScore> all;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] > no_score) all.push_back({static_cast<int32_t>(i), scores[i]});
  }
  all = sorted(all);
  if (static_cast<int64_t>(all.size()) > k) all.resize(static_cast<size_t>(k));
  return all;
}

TEST(OnlineTopK, ExactOnesEqualASort) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 300; ++round) {
    std::vector<float> scores;
    const bool ties = random.below(2) == 1;
    const int64_t count = random.below(300);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t odd = random.below(12);
      scores.push_back(odd == 0   ? nan_score
                       : odd == 1 ? no_score
                       : ties     ? static_cast<float>(random.below(6))
                                  : static_cast<float>(random.normal()));
    }
    for (const int64_t k : {0, 1, 2, 3, 7, 8, 64, 129}) {
      const auto expected = by_sorting(k, scores);
      EXPECT_EQ(run(TopKMethod::exact, k, 0, scores), expected) << "k " << k;
      EXPECT_EQ(run(TopKMethod::tournament, k, 0, scores), expected) << "k " << k;
      EXPECT_EQ(run(TopKMethod::hybrid, k, k, scores), expected) << "k " << k;
    }
  }
}

TEST(OnlineTopK, EstimatesKeepAtMostKAndMostOfTheMass) {
  KINORA_FRESH_RANDOM(random);
  double kept_hybrid = 0, kept_threshold = 0, kept_best = 0;
  for (int round = 0; round < 100; ++round) {
    std::vector<float> scores;
    for (int64_t i = 0; i < 1024; ++i) scores.push_back(static_cast<float>(random.normal() * 2));
    const auto mass = [](const std::vector<BlockScore>& blocks) {
      double total = 0;
      std::set<int32_t> seen;
      for (const BlockScore& block : blocks) {
        EXPECT_TRUE(seen.insert(block.block).second) << "a block twice";
        total += std::exp(static_cast<double>(block.score));
      }
      return total;
    };
    const auto threshold = run(TopKMethod::threshold, 128, 0, scores);
    const auto hybrid = run(TopKMethod::hybrid, 128, 8, scores);
    EXPECT_LE(threshold.size(), 128u);
    EXPECT_LE(hybrid.size(), 128u);
    EXPECT_GE(hybrid.size(), 100u);
    kept_threshold += mass(threshold);
    kept_hybrid += mass(hybrid);
    kept_best += mass(by_sorting(128, scores));
    // The strongest are never missed by the hybrid.
    const auto best = by_sorting(8, scores);
    for (size_t i = 0; i < best.size(); ++i) EXPECT_EQ(hybrid[i], best[i]);
  }
  EXPECT_GT(kept_threshold, 0.85 * kept_best);
  EXPECT_GT(kept_hybrid, 0.9 * kept_best);
}

// The threshold by its definition: mean and deviation of all scores so far, anew for every block,
// and the quantile by bisection.
std::vector<BlockScore> by_definition(int64_t k, int64_t exact, const std::vector<float>& scores) {
  std::deque<BlockScore> buffer, accepted;
  for (size_t i = 0; i < scores.size(); ++i) {
    BlockScore left{static_cast<int32_t>(i), scores[i]};
    if (std::ssize(buffer) < exact) {
      buffer.push_back(left);
      continue;
    }
    if (exact > 0) {
      const auto weakest = std::min_element(
          buffer.begin(), buffer.end(), [](const BlockScore& a, const BlockScore& b) {
            return a.score != b.score ? a.score < b.score : a.block > b.block;
          });
      if (weakest->score < left.score) std::swap(*weakest, left);
    }
    const int64_t slots = k - exact - std::ssize(accepted);
    const auto remaining = static_cast<int64_t>(scores.size() - i);
    if (slots <= 0) continue;
    double mean = 0, square = 0;
    for (size_t j = 0; j <= i; ++j) mean += static_cast<double>(scores[j]);
    mean /= static_cast<double>(i + 1);
    for (size_t j = 0; j <= i; ++j) {
      square += (static_cast<double>(scores[j]) - mean) * (static_cast<double>(scores[j]) - mean);
    }
    const double deviation = std::sqrt(square / static_cast<double>(i + 1));
    double low = -40, high = 40;  // in deviations
    for (int step = 0; step < 100; ++step) {
      const double middle = (low + high) / 2;
      const bool more = 0.5 * std::erfc(middle / std::sqrt(2.0)) * static_cast<double>(remaining) >
                        static_cast<double>(slots);
      (more ? low : high) = middle;
    }
    if (slots >= remaining || static_cast<double>(left.score) > mean + deviation * low) {
      accepted.push_back(left);
    }
  }
  buffer.insert(buffer.end(), accepted.begin(), accepted.end());
  return sorted({buffer.begin(), buffer.end()});
}

// Scores that a normal distribution does not describe: strong blocks late or early in the scan, a
// change on the way, and heavy tails.
TEST(OnlineTopK, ThresholdsFollowTheDefinitionWhereScoresDriftOrHaveHeavyTails) {
  KINORA_FRESH_RANDOM(random);
  constexpr int64_t count = 600, k = 96;
  const auto place = [](int64_t i) { return static_cast<double>(i) / count; };
  const auto tail = [&] {  // Student's t with three degrees of freedom
    double squares = 0;
    for (int i = 0; i < 3; ++i) squares += std::pow(random.normal(), 2);
    return std::min(30.0, 2 * random.normal() / std::sqrt(squares / 3));
  };
  const std::vector<std::pair<std::string, std::function<double(int64_t)>>> kinds = {
      {"later ones stronger", [&](int64_t i) { return random.normal() + 6 * place(i); }},
      {"earlier ones stronger", [&](int64_t i) { return random.normal() - 6 * place(i); }},
      {"a step", [&](int64_t i) { return random.normal() + (place(i) > 0.75 ? 4 : 0); }},
      {"heavy tails", [&](int64_t) { return tail(); }},
      {"all but one equal", [&](int64_t i) { return i == 311 ? 2.0 : 1.0; }}};
  const auto mass = [](const std::vector<BlockScore>& blocks) {
    double total = 0;
    for (const BlockScore& block : blocks) total += std::exp(static_cast<double>(block.score));
    return total;
  };
  for (const auto& [name, draw] : kinds) {
    for (int round = 0; round < 5; ++round) {
      std::vector<float> scores;
      for (int64_t i = 0; i < count; ++i) scores.push_back(static_cast<float>(draw(i)));
      EXPECT_EQ(run(TopKMethod::threshold, k, 0, scores), by_definition(k, 0, scores)) << name;
      const auto hybrid = run(TopKMethod::hybrid, k, 8, scores);
      EXPECT_EQ(hybrid, by_definition(k, 8, scores)) << name;
      EXPECT_LE(std::ssize(hybrid), k) << name;
      // Whatever the statistics say, the strongest are there.
      const auto best = by_sorting(8, scores);
      ASSERT_GE(hybrid.size(), best.size()) << name;
      EXPECT_TRUE(std::equal(best.begin(), best.end(), hybrid.begin())) << name;
      // With heavy tails that is nearly all; where scores drift, much of the rest is missed.
      const double kept = mass(hybrid) / mass(by_sorting(k, scores));
      EXPECT_GT(kept, name == "heavy tails" ? 0.9 : 0.15) << name;
    }
  }
}

TEST(OnlineTopK, FewBlocksAreAllTaken) {
  for (const TopKMethod method :
       {TopKMethod::exact, TopKMethod::tournament, TopKMethod::threshold, TopKMethod::hybrid}) {
    const std::vector<float> scores{3, 1, 2, 1, no_score, nan_score};
    EXPECT_EQ(run(method, 6, 2, scores), by_sorting(6, scores)) << top_k_name(method);
  }
}

TEST(OnlineTopK, InverseErfInvertsErf) {
  for (double x = -5; x <= 5; x += 0.01) {
    EXPECT_NEAR(inverse_erf(std::erf(x)), x, x * x > 9 ? 1e-3 : 1e-9) << x;
  }
  EXPECT_EQ(inverse_erf(1), std::numeric_limits<double>::infinity());
  EXPECT_EQ(inverse_erf(-1), -std::numeric_limits<double>::infinity());
}

TEST(OnlineTopK, ThresholdIsTheNormalQuantile) {
  // Quantiles of the standard normal, from tables.
  EXPECT_NEAR(acceptance_threshold(0, 1, 25, 1000), 1.959964, 1e-6);   // 97.5 %
  EXPECT_NEAR(acceptance_threshold(0, 1, 100, 1000), 1.281552, 1e-6);  // 90 %
  EXPECT_NEAR(acceptance_threshold(0, 1, 1, 1000), 3.090232, 1e-6);    // 99.9 %
  EXPECT_NEAR(acceptance_threshold(0, 1, 500, 1000), 0, 1e-9);
  EXPECT_NEAR(acceptance_threshold(0, 1, 975, 1000), -1.959964, 1e-6);
  EXPECT_NEAR(acceptance_threshold(7, 3, 25, 1000), 7 + 3 * 1.959964, 1e-5);
  EXPECT_EQ(acceptance_threshold(0, 1, 8, 8), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(acceptance_threshold(0, 1, 0, 8), std::numeric_limits<double>::infinity());
  KINORA_FRESH_RANDOM(random);
  const double threshold = acceptance_threshold(-2, 0.5, 200, 1000);
  int64_t above = 0;
  for (int i = 0; i < 100000; ++i) above += random.normal() * 0.5 - 2 > threshold;
  EXPECT_NEAR(static_cast<double>(above) / 100000, 0.2, 0.01);
}

}  // namespace
}  // namespace kinora
