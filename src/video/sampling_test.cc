#include "video/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>

#include "base/error.h"
#include "video/source/live_read.h"

namespace kinora {
namespace {

std::vector<double> constant_rate(int64_t frames, double fps) {
  std::vector<double> times;
  for (int64_t i = 0; i < frames; ++i) times.push_back(static_cast<double>(i) / fps);
  return times;
}

std::vector<int64_t> pick(const SamplingRule& rule, const std::vector<double>& times,
                          double duration, double fps) {
  std::vector<int64_t> indices;
  for (const SampledFrame& sample : sample_frames(rule, times, duration, fps, {})) {
    EXPECT_EQ(sample.time, times[static_cast<size_t>(sample.index)]);
    indices.push_back(sample.index);
  }
  return indices;
}

std::vector<int64_t> pick(const SamplingRule& rule, int64_t frames, double fps) {
  return pick(rule, constant_rate(frames, fps), static_cast<double>(frames) / fps, fps);
}

// What qwen-vl-utils gives for 8 s at 24 fps.
TEST(SamplingTest, QwenAsInTraining) {
  const std::vector<int64_t> expected = {0, 27, 55, 82, 109, 136, 164, 191};
  EXPECT_EQ(pick(SamplingRule::qwen(1), 192, 24), expected);
}

TEST(SamplingTest, QwenLimits) {
  EXPECT_EQ(pick(SamplingRule::qwen(1), 24, 24).size(), 4u);        // at least 4
  EXPECT_EQ(pick(SamplingRule::qwen(2), 100000, 24).size(), 768u);  // at most 768
  EXPECT_EQ(pick(SamplingRule::qwen(2), 3, 24).size(), 2u);         // even, within the video
  EXPECT_EQ(pick(SamplingRule::qwen(2), 1, 24), std::vector<int64_t>{0});
  EXPECT_EQ(pick(SamplingRule::qwen(1), 24 * 7, 24).size(), 6u);  // floored to even
  SamplingRule counted = SamplingRule::qwen();
  counted.count = 10;
  EXPECT_EQ(pick(counted, 1000, 25).size(), 10u);
  EXPECT_EQ(pick(counted, 6, 25).size(), 6u);
}

// linspace in double precision differs from PyTorch's only where a value lies on a half.
TEST(SamplingTest, QwenIsEvenlySpaced) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const int64_t total = 10 + static_cast<int64_t>(random() % 100000);
    const std::vector<int64_t> picks = pick(SamplingRule::qwen(2), total, 24);
    const double step = static_cast<double>(total - 1) / static_cast<double>(picks.size() - 1);
    ASSERT_EQ(picks.front(), 0);
    ASSERT_EQ(picks.back(), total - 1);
    for (size_t i = 0; i < picks.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(picks[i]), step * static_cast<double>(i), 0.51) << total;
    }
  }
}

TEST(SamplingTest, EveryTakesTheFrameOnScreen) {
  const std::vector<int64_t> expected = {0, 24, 48, 72, 96, 120, 144, 168};
  EXPECT_EQ(pick(SamplingRule::every(1), 192, 24), expected);
  // NTSC times are not whole: 1 s lies within frame 29 (0.9676 to 1.001 s).
  EXPECT_EQ(pick(SamplingRule::every(1), 90, 30000.0 / 1001),
            (std::vector<int64_t>{0, 29, 59, 89}));
  // At the video's own rate every frame comes once, though 1/fps has no exact value.
  std::vector<int64_t> all(90);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(pick(SamplingRule::every(30000.0 / 1001), 90, 30000.0 / 1001), all);
}

TEST(SamplingTest, EveryRepeatsAFrameThatStays) {
  const std::vector<double> times = {0, 0.5, 4.25, 4.5};
  const std::vector<int64_t> expected = {0, 1, 1, 1, 1};
  EXPECT_EQ(pick(SamplingRule::every(1), times, 5, 0.8), expected);
}

TEST(SamplingTest, Uniform) {
  EXPECT_EQ(pick(SamplingRule::uniform(4), 10, 5), (std::vector<int64_t>{0, 3, 6, 9}));
  EXPECT_EQ(pick(SamplingRule::uniform(1), 10, 5), std::vector<int64_t>{0});
  EXPECT_EQ(pick(SamplingRule::uniform(100), 3, 5), (std::vector<int64_t>{0, 1, 2}));
}

TEST(SamplingTest, ListsAreSortedAndMayRepeat) {
  EXPECT_EQ(pick(SamplingRule::at_indices({7, 2, 7, 0}), 10, 5),
            (std::vector<int64_t>{0, 2, 7, 7}));
  EXPECT_EQ(pick(SamplingRule::at_times({1.99, 0, 0.2}), 10, 5), (std::vector<int64_t>{0, 1, 9}));
}

TEST(SamplingTest, Ranges) {
  EXPECT_EQ(pick(SamplingRule::all_frames().within(0.4, 1.0), 10, 5),
            (std::vector<int64_t>{2, 3, 4, 5}));
  EXPECT_EQ(pick(SamplingRule::every(5).within(0.4, 1.0), 10, 5), (std::vector<int64_t>{2, 3, 4}));
  EXPECT_EQ(pick(SamplingRule::uniform(2).within(1.0, 9), 10, 5), (std::vector<int64_t>{5, 9}));
  EXPECT_EQ(pick(SamplingRule::qwen(5).within(0.4, 1.5), 10, 5),
            (std::vector<int64_t>{2, 3, 4, 5, 6, 7}));
  // A range inside one frame.
  EXPECT_EQ(pick(SamplingRule::all_frames().within(0.41, 0.42), 10, 5), std::vector<int64_t>{2});
}

template <typename Action>
std::string message_of(ErrorKind kind, const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(SamplingTest, RefusesNonsenseWithTheNumber) {
  const auto refuses = [](const SamplingRule& rule, const std::string& number) {
    const std::string message = message_of(ErrorKind::usage, [&] { pick(rule, 100, 25); });
    EXPECT_NE(message.find(number), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  refuses(SamplingRule::every(0), "0 frames per second");
  refuses(SamplingRule::every(-2), "-2");
  refuses(SamplingRule::every(nan), "nan");
  refuses(SamplingRule::every(infinity), "inf");
  refuses(SamplingRule::qwen(0), "0 frames per second");
  refuses(SamplingRule::qwen(nan), "nan");
  refuses(SamplingRule::uniform(0), "0");
  refuses(SamplingRule::uniform(-5), "-5");
  refuses(SamplingRule::at_indices({100}), "100");
  refuses(SamplingRule::at_indices({-1}), "-1");
  refuses(SamplingRule::at_indices({}), "empty");
  refuses(SamplingRule::at_times({4.5}), "4.5");
  refuses(SamplingRule::at_times({-1}), "-1");
  refuses(SamplingRule::at_times({nan}), "nan");
  refuses(SamplingRule::all_frames().within(3, 2), "3 to 2");
  refuses(SamplingRule::all_frames().within(nan, 2), "nan");
  refuses(SamplingRule::all_frames().within(17, 20), "17.000");
}

TEST(SamplingTest, RefusesTooManyBeforeMakingThem) {
  const std::string message = message_of(
      ErrorKind::resource, [&] { pick(SamplingRule::every(1e6), constant_rate(2, 1), 1e9, 1); });
  EXPECT_NE(message.find("limit"), std::string::npos);
}

// Rules applied to frames as they come give what they give with all times known.
TEST(SamplingTest, LiveSamplingEqualsIndexedSampling) {
  std::mt19937 random(7);
  for (int round = 0; round < 100; ++round) {
    std::vector<double> times = {0};
    const int64_t frames = 20 + static_cast<int64_t>(random() % 200);
    while (static_cast<int64_t>(times.size()) < frames) {
      times.push_back(times.back() + 0.01 + static_cast<double>(random() % 1000) / 2000);
    }
    const double duration = times.back() + 0.1;
    const std::vector<SamplingRule> rules = {
        SamplingRule::every(1),
        SamplingRule::every(7.3),
        SamplingRule::every(2).within(duration / 4, duration / 2),
        SamplingRule::all_frames(),
        SamplingRule::all_frames().within(times[static_cast<size_t>(frames / 2)], duration + 1),
        SamplingRule::at_indices({frames - 1, 0, frames / 2, frames / 2}),
        SamplingRule::at_times({duration / 2, 0, duration / 3, times.back()})};
    for (const SamplingRule& rule : rules) {
      LiveSampler sampler(rule);
      std::vector<int64_t> live;
      for (int64_t i = 0; i < frames && !sampler.done(); ++i) {
        const int64_t count = sampler.arrive(times[static_cast<size_t>(i)]);
        for (int64_t k = 0; k < count; ++k) live.push_back(i - 1);
        if (i + 1 == frames && !sampler.done()) {
          const int64_t rest = sampler.finish(duration);
          for (int64_t k = 0; k < rest; ++k) live.push_back(i);
        }
      }
      EXPECT_EQ(live, pick(rule, times, duration, 3)) << sampling_kind_name(rule.kind);
    }
  }
}

TEST(SamplingTest, LiveSamplingNeedsNoLength) {
  EXPECT_THROW(LiveSampler(SamplingRule::qwen(1)), Error);
  EXPECT_THROW(LiveSampler(SamplingRule::uniform(4)), Error);
}

}  // namespace
}  // namespace kinora
