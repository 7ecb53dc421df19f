#include "eval/evidence_score.h"

#include <gtest/gtest.h>

#include "eval/calibrate.h"

namespace kinora {
namespace {

EvalItem item_with(std::vector<TimeStretch> times, bool all) {
  EvalItem item;
  item.parts = {{"a.mp4", ""}};
  item.times = std::move(times);
  item.all_times = all;
  return item;
}

TEST(EvidenceScore, TheMiddleOfTheShorterLiesInTheLonger) {
  EXPECT_TRUE(names({0, 4, 6, 1}, {0, 10}));
  EXPECT_TRUE(names({0, 0, 10, 1}, {9, 11}));
  EXPECT_FALSE(names({0, 0, 10, 1}, {10.5, 11}));
  EXPECT_FALSE(names({0, 8, 11, 1}, {0, 9}));
  EXPECT_TRUE(names({0, 7, 9, 1}, {0, 8}));
}

TEST(EvidenceScore, OneFactIsNamedByTheFirstSpan) {
  const std::vector<EvidenceSpan> spans{{0, 10, 12, 0.6}, {0, 50, 52, 0.4}};
  const EvalItem seen = item_with({{70, 90}, {5, 20}}, false);
  const EvidenceScore score = score_evidence(seen, spans, 0, 100);
  EXPECT_TRUE(score.judged);
  EXPECT_FALSE(score.several);
  EXPECT_EQ(score.found, 1);
  EXPECT_NEAR(score.guessed, 35.0 / 98, 0.01);
  EXPECT_NEAR(score.length, 0.02, 1e-12);
  EXPECT_EQ(score_evidence(item_with({{45, 60}}, false), spans, 0, 100).found, 0);
}

TEST(EvidenceScore, OfSeveralFactsTheShareIsCounted) {
  const std::vector<EvidenceSpan> spans{{0, 10, 12, 0.6}, {0, 50, 52, 0.4}};
  const EvalItem three = item_with({{5, 20}, {48, 53}, {80, 90}}, true);
  const EvidenceScore score = score_evidence(three, spans, 0, 100);
  EXPECT_TRUE(score.several);
  EXPECT_NEAR(score.found, 2.0 / 3, 1e-12);
  EXPECT_GT(score.guessed, 0.1);
  EXPECT_LT(score.guessed, 0.3);
}

TEST(EvidenceScore, JudgesOnlyWhatIsKnown) {
  const std::vector<EvidenceSpan> spans{{0, 10, 12, 0.6}};
  EXPECT_FALSE(score_evidence(item_with({}, false), spans, 0, 100).judged);
  EvalItem two = item_with({{5, 20}}, false);
  two.parts.push_back({"b.mp4", ""});
  EXPECT_FALSE(score_evidence(two, spans, 0, 100).judged);
  const EvidenceScore nothing = score_evidence(item_with({{5, 20}}, false), {}, 0, 100);
  EXPECT_TRUE(nothing.judged);
  EXPECT_EQ(nothing.found, 0);
}

// Three heads: one always looks at the beginning, two know the time of every other question.
TEST(Calibrate, ChoosesHeadsThatPointTogether) {
  std::vector<LookedAt> looked;
  for (int i = 0; i < 8; ++i) {
    LookedAt one;
    const auto right = static_cast<size_t>(2 + i % 3);
    for (int unit = 0; unit < 6; ++unit) one.heads.units.push_back({1.0 * unit, unit + 1.0, 0});
    one.heads.mass.assign(18, 0.01f);
    one.heads.mass[0] = 0.5f;
    one.heads.mass[static_cast<size_t>(6 + 6 * (i % 2)) + right] = 0.9f;
    one.times = {{static_cast<double>(right), static_cast<double>(right) + 1}};
    looked.push_back(one);
  }
  const std::vector<size_t> chosen = choose_heads(looked, 3);
  ASSERT_EQ(chosen.size(), 2u);
  EXPECT_EQ(chosen[0] + chosen[1], 3u);
  EXPECT_EQ(pointing_of(looked, chosen).named, 1);
  EXPECT_EQ(pointing_of(looked, {0}).named, 0);
  EXPECT_TRUE(choose_heads({}, 3).empty());
}

}  // namespace
}  // namespace kinora
