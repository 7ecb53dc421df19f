// The qwen rule against the table that qwen-vl-utils wrote (tests/fixtures/processor).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "video/sampling.h"

namespace kinora {
namespace {

using nlohmann::json;

SamplingRule rule_of(const json& options) {
  SamplingRule rule = SamplingRule::qwen(options.value("fps", 2.0));
  rule.count = options.value("nframes", int64_t{0});
  rule.min_frames = options.value("min_frames", rule.min_frames);
  rule.max_frames = options.value("max_frames", rule.max_frames);
  return rule;
}

std::vector<int64_t> pick(const json& row) {
  const int64_t total = row["total"];
  const double fps = row["fps"];
  std::vector<double> times;
  for (int64_t i = 0; i < total; ++i) times.push_back(static_cast<double>(i) / fps);
  std::vector<int64_t> picks;
  const double duration = static_cast<double>(total) / fps;
  for (const SampledFrame& one : sample_frames(rule_of(row["options"]), times, duration, fps, {})) {
    picks.push_back(one.index);
  }
  return picks;
}

TEST(SamplingReferenceTest, PicksWhatQwenVlUtilsPicks) {
  std::ifstream file(KINORA_FIXTURES "/processor/qwen_sampling.json");
  const json table = json::parse(file)["utils"];
  int compared = 0;
  for (const json& row : table) {
    SCOPED_TRACE(row.dump());
    const std::vector<int64_t> picks = pick(row);
    if (row["indices"].is_null()) {
      // The reference refuses to give more frames than there are; kinora gives those there are.
      EXPECT_GE(picks.size(), 1u);
      EXPECT_LE(picks.size(), row["total"].get<size_t>());
      continue;
    }
    ASSERT_EQ(picks.size(), row["count"].get<size_t>());
    const std::vector<int64_t> expected = row["indices"];
    if (!row.contains("index_sum")) {
      EXPECT_EQ(picks, expected);
    } else {  // a long list: its first and last twelve, and a sum
      EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + 12, picks.begin()));
      EXPECT_TRUE(std::equal(expected.rbegin(), expected.rbegin() + 12, picks.rbegin()));
      EXPECT_EQ(std::accumulate(picks.begin(), picks.end(), int64_t{0}),
                row["index_sum"].get<int64_t>());
    }
    ++compared;
  }
  EXPECT_GE(compared, 290);
}

}  // namespace
}  // namespace kinora
