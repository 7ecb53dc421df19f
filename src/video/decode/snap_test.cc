#include "video/decode/snap.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "support/random_data.h"
#include "video/decode/interval_plan.h"

namespace kinora {
namespace {

constexpr TimeBase base{1, 24};

PacketFacts packet(int64_t pts, int64_t dts, bool start, bool disposable) {
  PacketFacts fact;
  fact.pts = pts;
  fact.dts = dts;
  fact.duration = 1;
  fact.size = 1000;
  fact.traits.start = start;
  fact.traits.disposable = disposable;
  return fact;
}

// Keyframes at random distances of up to `longest` frames; between them P pictures, some of which
// follow the disposable B that is shown before them.
VideoIndex random_index(Random& random, int64_t frames, int64_t longest) {
  std::vector<PacketFacts> facts;
  int64_t dts = 0, key = 0;
  for (int64_t frame = 0; frame < frames; ++frame) {
    if (frame == key) {
      facts.push_back(packet(frame, dts++, true, false));
      key += 1 + random.below(longest);
    } else if (frame + 1 < std::min(frames, key) && random.below(2) == 0) {
      facts.push_back(packet(frame + 1, dts++, false, false));
      facts.push_back(packet(frame, dts++, false, true));
      ++frame;
    } else {
      facts.push_back(packet(frame, dts++, false, false));
    }
  }
  return build_index(facts, base, 24, false);
}

std::vector<SampledFrame> every(const VideoIndex& index, int64_t step, int64_t phase) {
  std::vector<SampledFrame> samples;
  for (int64_t frame = phase; frame < index.frames(); frame += step) {
    samples.push_back({frame, index.times[static_cast<size_t>(frame)]});
  }
  return samples;
}

FrameChoice within(double seconds) {
  FrameChoice choice;
  choice.snap = seconds;
  return choice;
}

// Pictures that must be decoded for some frames: from each frame's start, all that others may refer
// to, and the frames themselves.
int64_t decoded(const VideoIndex& index, const std::vector<SampledFrame>& samples) {
  std::set<int64_t> needed;
  for (const SampledFrame& sample : samples) {
    const int64_t last = index.frame_packet[static_cast<size_t>(sample.index)];
    for (int64_t i = index.packet(last).start; i < last; ++i) {
      if (!index.packet(i).disposable) needed.insert(i);
    }
    needed.insert(last);
  }
  return static_cast<int64_t>(needed.size());
}

TEST(Snap, TakesTheCheapestFrameNearByAndNoneTwice) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 40; ++round) {
    const VideoIndex index = random_index(random, 1 + random.below(100), 1 + random.below(30));
    const int64_t step = 1 + random.below(40);
    const auto samples = every(index, step, random.below(std::min<int64_t>(step, index.frames())));
    const double distance = random.uniform(0, 2);
    const auto snapped = snap_samples(index, within(distance), samples);
    ASSERT_EQ(snapped.size(), samples.size());
    std::vector<SampledFrame> known;  // before each sample
    for (size_t i = 0; i < samples.size(); ++i) {
      const SampledFrame& taken = snapped[i];
      EXPECT_EQ(taken.time, index.times[static_cast<size_t>(taken.index)]);
      EXPECT_LE(std::abs(taken.time - samples[i].time), distance + 1e-6);
      if (i > 0) {
        EXPECT_GT(taken.index, snapped[i - 1].index);
      }
      // By definition: no other frame that it might take costs less, nor as much and is nearer.
      const auto cost = [&](int64_t frame) {
        std::vector<SampledFrame> more = known;
        more.push_back({frame, 0});
        return decoded(index, more);
      };
      const int64_t own = cost(taken.index);
      const int64_t end = i + 1 < samples.size() ? samples[i + 1].index : index.frames();
      for (int64_t frame = i > 0 ? snapped[i - 1].index + 1 : 0; frame < end; ++frame) {
        const double away = std::abs(index.times[static_cast<size_t>(frame)] - samples[i].time);
        if (away > distance - 1e-6) continue;
        EXPECT_LE(own, cost(frame));
        if (own == cost(frame)) {
          EXPECT_LE(std::abs(taken.time - samples[i].time), away + 1e-5);
        }
      }
      known.push_back(taken);
    }
    EXPECT_LE(decoded(index, snapped), decoded(index, samples));
    // The plan decodes just these.
    EXPECT_EQ(make_plan(index, snapped, 1).packets, decoded(index, snapped));
  }
}

TEST(Snap, OnShortGroupsOnlyKeyframesAreDecoded) {
  std::vector<PacketFacts> facts;
  for (int64_t frame = 0; frame < 24 * 60; ++frame) {
    facts.push_back(packet(frame, frame, frame % 48 == 0, false));
  }
  const VideoIndex index = build_index(facts, base, 24, false);
  for (int64_t phase = 0; phase < 48; ++phase) {
    const auto samples = every(index, 48, phase);
    const auto snapped = snap_samples(index, within(1.001), samples);
    EXPECT_LE(decoded(index, snapped), std::ssize(samples) + 24)
        << phase;  // the last may have none
  }
}

TEST(Snap, KeepsToThePartAndToWhatWasWantedTwice) {
  std::vector<PacketFacts> facts;
  for (int64_t frame = 0; frame < 48; ++frame) {
    facts.push_back(packet(frame, frame, frame % 24 == 0, false));
  }
  const VideoIndex index = build_index(facts, base, 24, false);
  FrameChoice choice = within(1);
  choice.start = 10 / 24.0;
  choice.end = 20 / 24.0;
  const auto part = snap_samples(index, choice, {{15, index.times[15]}, {18, index.times[18]}});
  EXPECT_EQ(part[0].index, 10);  // neither 0 nor 24
  EXPECT_EQ(part[1].index, 11);
  const auto twice = snap_samples(index, within(0), {{5, index.times[5]}, {5, index.times[5]}});
  EXPECT_EQ(twice[0].index, 5);
  EXPECT_EQ(twice[1].index, 5);
}

}  // namespace
}  // namespace kinora
