#include "model/families/qwen3_vl/positions.h"

#include <gtest/gtest.h>

#include <vector>

namespace kinora {
namespace {

TEST(UnitPositionsTest, EveryUnitBeginsAfterWhatStandsBeforeIt) {
  VisualPlan plan;
  plan.source.modality = Modality::video;
  plan.units = 3;
  plan.tokens_per_unit = 6;
  plan.grid = {3, 2};
  const auto counter = unit_positions();
  std::vector<TokenInfo> tokens;
  counter->text(5, tokens);
  const std::vector<double> times = {0.5, 1.5};
  counter->visual(plan, 0, 2, times, false, tokens);
  ASSERT_EQ(tokens.size(), 17u);
  EXPECT_EQ(tokens[5].position, (Position{5, 5, 5}));
  EXPECT_EQ(tokens[10].position, (Position{5, 6, 7}));
  EXPECT_EQ(tokens[11].position, (Position{8, 8, 8}));
  EXPECT_EQ(tokens[16].position, (Position{8, 9, 10}));
  EXPECT_EQ(tokens[16].time, 1.5);
  counter->text(1, tokens);
  EXPECT_EQ(tokens.back().position, (Position{11, 11, 11}));
  const auto copy = counter->clone();
  copy->visual(plan, 2, 1, {}, true, tokens);
  EXPECT_EQ(tokens.back().position, (Position{12, 13, 14}));
  EXPECT_EQ(copy->next(), 15);
  EXPECT_EQ(counter->next(), 12);
}

}  // namespace
}  // namespace kinora
