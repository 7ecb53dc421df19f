#include "eval/heat_map.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace kinora {
namespace {

EvalRecord record(const std::string& policy, int64_t length, double depth, double score) {
  EvalRecord made;
  made.policy = policy;
  made.length = length;
  made.depth = depth;
  made.score = score;
  return made;
}

bool greener(Colour colour) { return colour.green > colour.red; }

TEST(HeatMap, CellsShowTheShareOfTheirDepthAndLength) {
  EvalOutcome outcome;
  for (int i = 0; i < 10; ++i) {
    outcome.records.push_back(record("dense", 64, i / 10.0 + 0.05, i == 3 ? 0 : 1));
    outcome.records.push_back(record("dense", 4096, i / 10.0 + 0.05, 1));
  }
  outcome.records.push_back(record("dense", 64, 1.0, 1));  // the very end belongs to the last row
  outcome.records.push_back(record("dense", 64, -1, 0));   // no needle
  const Image image = chart_image(needle_heat_map(outcome, {"dense"}, "needles"));
  const Image two = chart_image(needle_heat_map(outcome, {"dense", "absent"}, "needles"));
  EXPECT_EQ(two.height(), image.height());  // a policy without answers has no map
  // A corner of each cell, away from its text.
  for (int column = 0; column < 2; ++column) {
    for (int row = 0; row < 10; ++row) {
      const Colour colour = image.at(92 + column * 72 + 2, 14 + 22 + 4 + 22 + row * 34 + 2);
      EXPECT_EQ(greener(colour), !(column == 0 && row == 3)) << column << " " << row;
    }
  }
}

TEST(HeatMap, NeedsDepths) {
  EvalOutcome outcome;
  outcome.records.push_back(record("dense", 64, -1, 1));
  EXPECT_THROW(needle_heat_map(outcome, {"dense"}, ""), Error);
}

}  // namespace
}  // namespace kinora
