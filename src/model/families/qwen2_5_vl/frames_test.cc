// Qwen's choice of frames, against the table that qwen-vl-utils wrote (tests/fixtures/processor).
#include "model/families/qwen2_5_vl/frames.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "model/reference_case.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using nlohmann::json;

std::vector<int64_t> by_rate(double fps, int64_t total, double source_fps) {
  QwenFrameRule rule;
  rule.fps = fps;
  return qwen_frames(rule, 0, total, source_fps);
}

std::vector<int64_t> by_count(int64_t count, int64_t total) {
  QwenFrameRule rule;
  rule.count = count;
  return qwen_frames(rule, 0, total, 25);
}

TEST(QwenFramesTest, AreWhatQwenVlUtilsPicks) {
  const json table =
      json::parse(real_files().read(KINORA_FIXTURES "/processor/qwen_sampling.json"))["utils"];
  int compared = 0;
  for (const json& row : table) {
    SCOPED_TRACE(row.dump());
    const json& options = row["options"];
    QwenFrameRule rule;
    rule.fps = options.value("fps", rule.fps);
    rule.count = options.value("nframes", rule.count);
    rule.min_frames = options.value("min_frames", rule.min_frames);
    rule.max_frames = options.value("max_frames", rule.max_frames);
    const std::vector<int64_t> frames = qwen_frames(rule, 0, row["total"], row["fps"]);
    if (row["indices"].is_null()) {
      // The reference refuses to give more frames than there are; kinora gives those there are.
      EXPECT_GE(frames.size(), 1u);
      EXPECT_LE(frames.size(), row["total"].get<size_t>());
      continue;
    }
    ASSERT_EQ(frames.size(), row["count"].get<size_t>());
    const std::vector<int64_t> expected = row["indices"];
    if (!row.contains("index_sum")) {
      EXPECT_EQ(frames, expected);
    } else {  // a long list: its first and last twelve, and a sum
      EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + 12, frames.begin()));
      EXPECT_TRUE(std::equal(expected.rbegin(), expected.rbegin() + 12, frames.rbegin()));
      EXPECT_EQ(std::accumulate(frames.begin(), frames.end(), int64_t{0}),
                row["index_sum"].get<int64_t>());
    }
    ++compared;
  }
  EXPECT_GE(compared, 290);
}

// What qwen-vl-utils gives for 8 s at 24 fps.
TEST(QwenFramesTest, AreThoseOfTraining) {
  EXPECT_EQ(by_rate(1, 192, 24), (std::vector<int64_t>{0, 27, 55, 82, 109, 136, 164, 191}));
}

TEST(QwenFramesTest, KeepTheirLimits) {
  EXPECT_EQ(by_rate(1, 24, 24).size(), 4u);        // at least 4
  EXPECT_EQ(by_rate(2, 100000, 24).size(), 768u);  // at most 768
  EXPECT_EQ(by_rate(2, 3, 24).size(), 2u);         // even, within the video
  EXPECT_EQ(by_rate(2, 1, 24), std::vector<int64_t>{0});
  EXPECT_EQ(by_rate(1, 24 * 7, 24).size(), 6u);  // floored to even
  EXPECT_EQ(by_rate(1, 24, 0).size(), 4u);       // no rate known
  EXPECT_EQ(by_count(10, 1000).size(), 10u);
  EXPECT_EQ(by_count(10, 6).size(), 6u);
  EXPECT_TRUE(by_rate(1, 0, 24).empty());
}

// linspace in double precision differs from PyTorch's only where a value lies on a half.
TEST(QwenFramesTest, AreEvenlySpaced) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 200; ++round) {
    const auto total = 10 + static_cast<int64_t>(random.below(100000));
    const std::vector<int64_t> frames = by_rate(2, total, 24);
    const double step = static_cast<double>(total - 1) / static_cast<double>(frames.size() - 1);
    ASSERT_EQ(frames.front(), 0);
    ASSERT_EQ(frames.back(), total - 1);
    for (size_t i = 0; i < frames.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(frames[i]), step * static_cast<double>(i), 0.51) << total;
    }
  }
}

// A part of a video: places are computed in single precision from the frames' numbers in the whole
// of it, as in the reference, and round differently far from its beginning.
TEST(QwenFramesTest, OfAPartAreCountedInTheWhole) {
  QwenFrameRule rule;
  rule.fps = 5;
  EXPECT_EQ(qwen_frames(rule, 2, 6, 5), (std::vector<int64_t>{2, 3, 4, 5, 6, 7}));
  rule.count = 700;
  const int64_t first = 3000001, total = 50000;
  const std::vector<int64_t> frames = qwen_frames(rule, first, total, 25);
  ASSERT_EQ(frames.size(), 700u);
  EXPECT_EQ(frames.front(), first);
  EXPECT_EQ(frames.back(), first + total - 1);
  const double step = static_cast<double>(total - 1) / 699;
  std::vector<int64_t> from_zero = qwen_frames(rule, 0, total, 25);
  for (size_t i = 0; i < frames.size(); ++i) {
    // Half a frame, and the spacing of floats at three million.
    EXPECT_NEAR(static_cast<double>(frames[i] - first), step * static_cast<double>(i), 0.76);
    from_zero[i] += first;
  }
  EXPECT_NE(frames, from_zero);
}

TEST(QwenFramesTest, FollowTheWish) {
  const ThreadPool pool(2);
  const Context context(pool);
  const auto model =
      load_model(context, real_files(), testing::model_directory("qwen2_5_vl_untied_old"));
  const auto chosen = [&](int64_t total, const FrameWish& wish) {
    return model->choose_frames(total, 24, wish);
  };
  EXPECT_EQ(chosen(192, {}), by_rate(2, 192, 24));
  EXPECT_EQ(chosen(100000, {}).size(), 768u);
  EXPECT_EQ(chosen(192, {1.0, {}}), by_rate(1, 192, 24));
  // A rate that a person asks for is not cut short.
  EXPECT_EQ(chosen(100000, {6.0, {}}).size(), 25000u);
  EXPECT_EQ(chosen(100000, {{}, 1000}).size(), 1000u);
  // Indices count from the first frame of the part, whose rounding is that of the whole video.
  QwenFrameRule rule;
  rule.count = 700;
  for (const int64_t first : {0, 7, 3000001}) {
    std::vector<int64_t> expected = qwen_frames(rule, first, 50000, 24);
    for (int64_t& frame : expected) frame -= first;
    EXPECT_EQ(chosen(50000, {{}, 700, first}), expected);
  }
}

}  // namespace
}  // namespace kinora
