#include "model/families/qwen2_5_vl/positions.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"

namespace kinora {
namespace {

// A video of unknown length comes unit by unit, with a question in between.
TEST(MultimodalPositionsTest, TextWithinAVideoComesAfterWhatWasSeen) {
  VisualPlan plan;
  plan.source.modality = Modality::video;
  plan.units = 100;
  plan.tokens_per_unit = 6;
  plan.grid = {3, 2};
  plan.seconds_per_unit = 1;
  const auto counter = multimodal_positions(2);
  std::vector<TokenInfo> tokens;
  counter->text(5, tokens);
  const std::vector<double> times = {0, 1};
  counter->visual(plan, 0, 2, times, false, tokens);  // two tokens a second: times 0 and 2
  EXPECT_EQ(tokens.back().position, (Position{7, 6, 7}));
  EXPECT_EQ(tokens.back().time, 1);
  EXPECT_EQ(counter->next(), 8);
  counter->visual(plan, 2, 1, {}, false, tokens);
  EXPECT_EQ(tokens.back().position, (Position{9, 6, 7}));
  counter->text(1, tokens);
  EXPECT_EQ(tokens.back().position, (Position{10, 10, 10}));
  counter->visual(plan, 3, 1, {}, true, tokens);  // begins anew after the text
  EXPECT_EQ(tokens.back().position, (Position{11, 12, 13}));
  EXPECT_EQ(counter->next(), 14);
}

TEST(MultimodalPositionsTest, RefusesPositionsThatNoRowCanHold) {
  VisualPlan plan;
  plan.source.modality = Modality::video;
  plan.tokens_per_unit = 1;
  plan.grid = {1, 1};
  for (const double seconds : {1e10, 1e300}) {
    plan.seconds_per_unit = seconds;
    std::vector<TokenInfo> tokens;
    EXPECT_THROW(multimodal_positions(2)->visual(plan, 0, 2, {}, true, tokens), Error);
  }
}

}  // namespace
}  // namespace kinora
