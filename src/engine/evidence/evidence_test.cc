#include "engine/evidence/evidence.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "support/random_data.h"

namespace kinora {
namespace {

InputMass input_of(const std::vector<double>& masses, int64_t longest) {
  InputMass input;
  for (size_t i = 0; i < masses.size(); ++i) {
    const auto start = 2.0 * static_cast<double>(i);
    input.units.push_back({start, start + 2, masses[i]});
  }
  input.longest = longest;
  return input;
}

TEST(Evidence, IsTheHighestPeak) {
  const std::vector<InputMass> inputs{input_of({1, 1, 9, 1, 1}, 1)};
  const std::vector<EvidenceSpan> spans = find_evidence(inputs);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].input, 0u);
  EXPECT_DOUBLE_EQ(spans[0].start, 4);
  EXPECT_DOUBLE_EQ(spans[0].end, 6);
  EXPECT_NEAR(spans[0].share, 9.0 / 13, 1e-12);
}

TEST(Evidence, GrowsWhileNeighboursHaveAPartOfThePeak) {
  const std::vector<InputMass> inputs{input_of({0, 3, 9, 5, 4, 1, 0}, 5)};
  const std::vector<EvidenceSpan> spans = find_evidence(inputs);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_DOUBLE_EQ(spans[0].start, 2);
  EXPECT_DOUBLE_EQ(spans[0].end, 10);
  EXPECT_NEAR(spans[0].share, 21.0 / 22, 1e-12);
  // No further than allowed, and to the side that has more.
  const std::vector<InputMass> shorter{input_of({0, 3, 9, 5, 4, 1, 0}, 2)};
  const std::vector<EvidenceSpan> cut = find_evidence(shorter);
  EXPECT_DOUBLE_EQ(cut.at(0).start, 4);
  EXPECT_DOUBLE_EQ(cut.at(0).end, 8);
}

TEST(Evidence, FurtherSpansHaveAtLeastHalfAsMuch) {
  const std::vector<InputMass> inputs{input_of({0, 10, 0, 0, 6, 0, 0, 4}, 1),
                                      input_of({0, 0, 7, 0}, 1)};
  const std::vector<EvidenceSpan> spans = find_evidence(inputs);
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[0].input, 0u);
  EXPECT_DOUBLE_EQ(spans[0].start, 2);
  EXPECT_EQ(spans[1].input, 1u);
  EXPECT_DOUBLE_EQ(spans[1].start, 4);
  EXPECT_EQ(spans[2].input, 0u);
  EXPECT_DOUBLE_EQ(spans[2].start, 8);
  EXPECT_EQ(find_evidence(inputs, 1).size(), 1u);
}

TEST(Evidence, OfNothingIsNothing) {
  EXPECT_TRUE(find_evidence({}).empty());
  EXPECT_TRUE(find_evidence(std::vector<InputMass>{input_of({0, 0}, 1)}).empty());
  EXPECT_TRUE(find_evidence(std::vector<InputMass>{input_of({}, 1)}).empty());
}

TEST(Evidence, SpansAreDisjointAndShortWhateverTheMasses) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> masses(static_cast<size_t>(1 + random.below(60)));
    for (double& mass : masses) mass = random.below(3) == 0 ? 0 : std::exp(random.normal());
    const int64_t longest = 1 + random.below(6);
    const std::vector<EvidenceSpan> spans =
        find_evidence(std::vector<InputMass>{input_of(masses, longest)}, 4);
    double shares = 0;
    for (size_t i = 0; i < spans.size(); ++i) {
      EXPECT_LE(spans[i].end - spans[i].start, 2.0 * static_cast<double>(longest));
      shares += spans[i].share;
      for (size_t k = 0; k < i; ++k) {
        EXPECT_TRUE(spans[i].end <= spans[k].start || spans[k].end <= spans[i].start);
        EXPECT_GE(spans[k].share, spans[i].share);
      }
    }
    EXPECT_LE(shares, 1 + 1e-9);
  }
}

TEST(Evidence, ASpanIsATwentiethOrTwoFrames) {
  EXPECT_EQ(longest_span(4, 1), 2);
  EXPECT_EQ(longest_span(4, 2), 1);
  EXPECT_EQ(longest_span(100, 1), 5);
  EXPECT_EQ(longest_span(99, 2), 4);
  EXPECT_EQ(longest_span(1, 4), 1);
}

TEST(Evidence, RowsBelongToUnits) {
  const VisualRows rows{0, 100, 26, 3, 8};  // three units and two rows behind them
  EXPECT_EQ(rows.unit_of(0, 6), 3);
  EXPECT_EQ(rows.unit_of(7, 6), 3);
  EXPECT_EQ(rows.unit_of(8, 6), 4);
  EXPECT_EQ(rows.unit_of(25, 6), 5);
}

}  // namespace
}  // namespace kinora
