#include "video/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "video/source/live_read.h"

namespace kinora {
namespace {

std::vector<double> constant_rate(int64_t frames, double fps) {
  std::vector<double> times;
  for (int64_t i = 0; i < frames; ++i) times.push_back(static_cast<double>(i) / fps);
  return times;
}

std::vector<int64_t> pick(const FrameChoice& choice, const std::vector<double>& times,
                          double duration) {
  std::vector<int64_t> indices;
  for (const SampledFrame& sample : sample_frames(choice, times, duration, {})) {
    EXPECT_EQ(sample.time, times[static_cast<size_t>(sample.index)]);
    indices.push_back(sample.index);
  }
  return indices;
}

std::vector<int64_t> pick(const FrameChoice& choice, int64_t frames, double fps) {
  return pick(choice, constant_rate(frames, fps), static_cast<double>(frames) / fps);
}

TEST(SamplingTest, RateTakesTheFrameOnScreen) {
  const std::vector<int64_t> expected = {0, 24, 48, 72, 96, 120, 144, 168};
  EXPECT_EQ(pick(FrameChoice::rate(1), 192, 24), expected);
  // NTSC times are not whole: 1 s lies within frame 29 (0.9676 to 1.001 s).
  EXPECT_EQ(pick(FrameChoice::rate(1), 90, 30000.0 / 1001), (std::vector<int64_t>{0, 29, 59, 89}));
  // At the video's own rate every frame comes once, though 1/fps has no exact value.
  std::vector<int64_t> all(90);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(pick(FrameChoice::rate(30000.0 / 1001), 90, 30000.0 / 1001), all);
}

TEST(SamplingTest, RateRepeatsAFrameThatStays) {
  const std::vector<double> times = {0, 0.5, 4.25, 4.5};
  const std::vector<int64_t> expected = {0, 1, 1, 1, 1};
  EXPECT_EQ(pick(FrameChoice::rate(1), times, 5), expected);
}

TEST(SamplingTest, Evenly) {
  EXPECT_EQ(pick(FrameChoice::evenly(4), 10, 5), (std::vector<int64_t>{0, 3, 6, 9}));
  EXPECT_EQ(pick(FrameChoice::evenly(1), 10, 5), std::vector<int64_t>{0});
  EXPECT_EQ(pick(FrameChoice::evenly(100), 3, 5), (std::vector<int64_t>{0, 1, 2}));
}

TEST(SamplingTest, ListsAreSortedAndMayRepeat) {
  EXPECT_EQ(pick(FrameChoice::at_indices({7, 2, 7, 0}), 10, 5), (std::vector<int64_t>{0, 2, 7, 7}));
  EXPECT_EQ(pick(FrameChoice::at_times({1.99, 0, 0.2}), 10, 5), (std::vector<int64_t>{0, 1, 9}));
}

TEST(SamplingTest, Ranges) {
  EXPECT_EQ(pick(FrameChoice::all().within(0.4, 1.0), 10, 5), (std::vector<int64_t>{2, 3, 4, 5}));
  EXPECT_EQ(pick(FrameChoice::rate(5).within(0.4, 1.0), 10, 5), (std::vector<int64_t>{2, 3, 4}));
  EXPECT_EQ(pick(FrameChoice::evenly(2).within(1.0, 9), 10, 5), (std::vector<int64_t>{5, 9}));
  // A range inside one frame.
  EXPECT_EQ(pick(FrameChoice::all().within(0.41, 0.42), 10, 5), std::vector<int64_t>{2});
}

TEST(SamplingTest, FramesWithinAPart) {
  const std::vector<double> times = constant_rate(10, 5);
  const auto within = [&](double start, double end) {
    const FrameRange range = frames_within(times, start, end);
    return std::pair(range.first, range.count);
  };
  EXPECT_EQ(within(0, 100), std::pair(int64_t{0}, int64_t{10}));
  EXPECT_EQ(within(0.4, 1.0), std::pair(int64_t{2}, int64_t{4}));
  EXPECT_EQ(within(0.6000000001, 0.7999999999), std::pair(int64_t{3}, int64_t{2}));
  EXPECT_EQ(within(0.41, 0.42).second, 0);
  EXPECT_EQ(within(7, 9).second, 0);
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
  const auto refuses = [](const FrameChoice& choice, const std::string& number) {
    const std::string message = message_of(ErrorKind::usage, [&] { pick(choice, 100, 25); });
    EXPECT_NE(message.find(number), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  refuses(FrameChoice::rate(0), "0 frames per second");
  refuses(FrameChoice::rate(-2), "-2");
  refuses(FrameChoice::rate(nan), "nan");
  refuses(FrameChoice::rate(infinity), "inf");
  refuses(FrameChoice{}, "no model");
  refuses(FrameChoice::evenly(0), "0");
  refuses(FrameChoice::evenly(-5), "-5");
  refuses(FrameChoice::at_indices({100}), "100");
  refuses(FrameChoice::at_indices({-1}), "-1");
  refuses(FrameChoice::at_indices({}), "empty");
  refuses(FrameChoice::at_times({4.5}), "4.5");
  refuses(FrameChoice::at_times({-1}), "-1");
  refuses(FrameChoice::at_times({nan}), "nan");
  refuses(FrameChoice::all().within(3, 2), "3 to 2");
  refuses(FrameChoice::all().within(nan, 2), "nan");
  refuses(FrameChoice::all().within(17, 20), "17.000");
}

TEST(SamplingTest, RefusesTooManyBeforeMakingThem) {
  const std::string message = message_of(
      ErrorKind::resource, [&] { pick(FrameChoice::rate(1e6), constant_rate(2, 1), 1e9); });
  EXPECT_NE(message.find("limit"), std::string::npos);
}

// Choices applied to frames as they come give what they give with all times known.
TEST(SamplingTest, LiveSamplingEqualsIndexedSampling) {
  std::mt19937 random(7);
  for (int round = 0; round < 100; ++round) {
    std::vector<double> times = {0};
    const int64_t frames = 20 + static_cast<int64_t>(random() % 200);
    while (static_cast<int64_t>(times.size()) < frames) {
      times.push_back(times.back() + 0.01 + static_cast<double>(random() % 1000) / 2000);
    }
    const double duration = times.back() + 0.1;
    const std::vector<FrameChoice> choices = {
        FrameChoice::rate(1),
        FrameChoice::rate(7.3),
        FrameChoice::rate(2).within(duration / 4, duration / 2),
        FrameChoice::all(),
        FrameChoice::all().within(times[static_cast<size_t>(frames / 2)], duration + 1),
        FrameChoice::at_indices({frames - 1, 0, frames / 2, frames / 2}),
        FrameChoice::at_times({duration / 2, 0, duration / 3, times.back()})};
    for (const FrameChoice& choice : choices) {
      LiveSampler sampler(choice);
      std::vector<int64_t> live;
      for (int64_t i = 0; i < frames && !sampler.done(); ++i) {
        const int64_t count = sampler.arrive(times[static_cast<size_t>(i)]);
        for (int64_t k = 0; k < count; ++k) live.push_back(i - 1);
        if (i + 1 == frames && !sampler.done()) {
          const int64_t rest = sampler.finish(duration);
          for (int64_t k = 0; k < rest; ++k) live.push_back(i);
        }
      }
      EXPECT_EQ(live, pick(choice, times, duration)) << static_cast<int>(choice.way);
    }
  }
}

TEST(SamplingTest, LiveSamplingNeedsNoLength) {
  EXPECT_THROW(LiveSampler(FrameChoice{}), Error);
  EXPECT_THROW(LiveSampler(FrameChoice::evenly(4)), Error);
}

}  // namespace
}  // namespace kinora
