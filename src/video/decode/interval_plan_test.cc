#include "video/decode/interval_plan.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"

namespace kinora {
namespace {

constexpr TimeBase base{1, 24};

PacketFacts packet(int64_t pts, int64_t dts, bool start, bool disposable = false) {
  PacketFacts fact;
  fact.pts = pts;
  fact.dts = dts;
  fact.duration = 1;
  fact.size = 1000;
  fact.traits.start = start;
  fact.traits.disposable = disposable;
  return fact;
}

// Groups of `length` frames; each P picture is followed by the disposable B that precedes it. With
// `open`, the last B of a group comes after the next keyframe.
VideoIndex make_groups(int64_t groups, int64_t length, bool open) {
  std::vector<PacketFacts> facts;
  int64_t dts = 0;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t first = group * length;
    facts.push_back(packet(first, dts++, true));
    if (open && group > 0) facts.push_back(packet(first - 1, dts++, false, true));
    for (int64_t i = 2; i < length; i += 2) {
      facts.push_back(packet(first + i, dts++, false));
      facts.push_back(packet(first + i - 1, dts++, false, true));
    }
    const bool tail = !open || group + 1 == groups;
    if (tail && length % 2 == 0) facts.push_back(packet(first + length - 1, dts++, false));
  }
  return build_index(facts, base, 24, false);
}

std::vector<SampledFrame> frames(const VideoIndex& index, const std::vector<int64_t>& picks) {
  std::vector<SampledFrame> samples;
  for (const int64_t pick : picks) {
    samples.push_back({pick, index.times[static_cast<size_t>(pick)]});
  }
  return samples;
}

TEST(PlanTest, GroupsEndWithTheirLastSample) {
  const VideoIndex index = make_groups(10, 24, false);
  const ReadPlan plan = make_plan(index, frames(index, {0, 10, 100, 101}), 2);
  ASSERT_EQ(plan.intervals.size(), 2u);
  EXPECT_EQ(plan.intervals[0].begin, 0);
  EXPECT_EQ(index.packet(plan.intervals[0].end).frame, 10);
  EXPECT_EQ(index.packet(plan.intervals[1].begin).frame, 96);
  EXPECT_EQ(plan.workers, 2);
  EXPECT_EQ(plan.packets, plan.intervals[0].packets + plan.intervals[1].packets);
  // Up to frame 10: one keyframe, five P pictures; the B pictures are not sampled.
  EXPECT_EQ(plan.intervals[0].packets, 6);
}

TEST(PlanTest, LeadingPicturesBeginAtTheGroupBefore) {
  const VideoIndex index = make_groups(4, 24, true);
  const ReadPlan plan = make_plan(index, frames(index, {47}), 2);
  ASSERT_EQ(plan.intervals.size(), 1u);
  EXPECT_EQ(index.packet(plan.intervals[0].begin).frame, 24);
  EXPECT_GT(plan.intervals[0].end, index.frame_packet[48]);
  EXPECT_EQ(threads_for(plan, 0, plan.packets), 2);
}

TEST(PlanTest, OneThreadNeverDecodesTwice) {
  const VideoIndex index = make_groups(8, 24, true);
  std::vector<int64_t> all;
  for (int64_t i = 0; i < index.frames(); ++i) all.push_back(i);
  const ReadPlan one = make_plan(index, frames(index, all), 1);
  ASSERT_EQ(one.intervals.size(), 1u);
  EXPECT_EQ(one.intervals[0].packets, index.frames());
  const ReadPlan many = make_plan(index, frames(index, all), 4);
  EXPECT_GT(many.intervals.size(), 1u);
  int64_t decoded = 0;
  for (const KeyframeInterval& interval : many.intervals) decoded += interval.packets;
  EXPECT_LE(decoded, index.frames() * 17 / 16 + 4);
}

// `count` equal intervals on `cores` cores, with `left` of them not yet decoded.
int threads_of_equals(size_t number, size_t count, int cores, double left, size_t urgent = 0) {
  ReadPlan plan;
  plan.intervals.resize(count);
  for (KeyframeInterval& interval : plan.intervals) interval.packets = 100;
  plan.packets = static_cast<int64_t>(100 * count);
  plan.threads = cores;
  plan.urgent = urgent;
  plan.urgent_packets = static_cast<int64_t>(100 * urgent);
  return threads_for(plan, number, static_cast<int64_t>(100 * left));
}

TEST(PlanTest, LastIntervalsShareTheCores) {
  EXPECT_EQ(threads_of_equals(0, 1, 1, 1), 1);
  EXPECT_EQ(threads_of_equals(0, 1, 16, 1), 16);
  EXPECT_EQ(threads_of_equals(0, 100, 2, 100), 1);
  // Two that began together: the second is not last.
  EXPECT_EQ(threads_of_equals(98, 100, 2, 2), 1);
  EXPECT_EQ(threads_of_equals(99, 100, 2, 1.96), 1);
  // The last one while the other worker is half through with its own, and when it has nothing.
  EXPECT_EQ(threads_of_equals(99, 100, 2, 1.5), 2);
  EXPECT_EQ(threads_of_equals(99, 100, 2, 1), 2);
  EXPECT_EQ(threads_of_equals(5, 7, 4, 2), 2);
  EXPECT_EQ(threads_of_equals(6, 7, 4, 2), 2);
  // Nothing left, as when damage made an interval end early: still one thread.
  EXPECT_EQ(threads_of_equals(0, 100, 1, 0), 1);
}

TEST(PlanTest, ManyCoresHurryTheFirstGroup) {
  EXPECT_EQ(threads_of_equals(0, 360, 16, 360, 2), 4);
  EXPECT_EQ(threads_of_equals(1, 360, 16, 359, 2), 4);
  EXPECT_EQ(threads_of_equals(2, 360, 16, 358, 2), 1);
  EXPECT_EQ(threads_of_equals(0, 360, 2, 360, 2), 1);
  EXPECT_EQ(threads_of_equals(0, 360, 16, 360, 16), 1);
  ReadPlan uneven;
  uneven.intervals.resize(100);
  for (KeyframeInterval& interval : uneven.intervals) interval.packets = 50;
  uneven.intervals[0].packets = 300;
  uneven.threads = 16;
  uneven.urgent = 3;
  uneven.urgent_packets = 400;
  EXPECT_EQ(threads_for(uneven, 0, 5250), 6);
  EXPECT_EQ(threads_for(uneven, 1, 4950), 1);
  const VideoIndex index = make_groups(40, 24, false);
  std::vector<int64_t> picks;
  for (int64_t i = 0; i < index.frames(); i += 4) picks.push_back(i);
  // Six samples in each group of pictures.
  EXPECT_EQ(make_plan(index, frames(index, picks), 8, 16).urgent, 3u);
  EXPECT_EQ(make_plan(index, frames(index, picks), 8, 6).urgent, 1u);
}

TEST(PlanTest, EverySampleIsATargetOnce) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const VideoIndex index =
        make_groups(1 + static_cast<int64_t>(random() % 9), 1 + static_cast<int64_t>(random() % 30),
                    random() % 2 == 0);
    std::vector<int64_t> picks;
    for (int64_t i = 0; i < index.frames(); ++i) {
      for (uint32_t copies = random() % 4 == 0 ? 1 + random() % 2 : 0; copies > 0; --copies) {
        picks.push_back(i);
      }
    }
    const ReadPlan plan = make_plan(index, frames(index, picks), 1 + static_cast<int>(round % 4));
    std::vector<int> seen(picks.size());
    for (const KeyframeInterval& interval : plan.intervals) {
      EXPECT_TRUE(index.packet(interval.begin).key);
      for (const Target& target : interval.targets) {
        EXPECT_GE(target.packet, index.packet(target.packet).start);
        EXPECT_LE(interval.begin, index.packet(target.packet).start);
        EXPECT_LE(target.packet, interval.end);
        EXPECT_TRUE(is_needed(index, interval, target.packet));
        for (int64_t i = 0; i < target.count; ++i) {
          const size_t sample = static_cast<size_t>(target.first + i);
          ++seen[sample];
          EXPECT_EQ(index.packet(target.packet).frame, picks[sample]);
        }
      }
    }
    for (const int times : seen) EXPECT_EQ(times, 1);
  }
}

TEST(PlanTest, RefusesSamplesOutOfOrder) {
  const VideoIndex index = make_groups(2, 10, false);
  EXPECT_THROW(make_plan(index, std::vector<SampledFrame>{{5, 0}, {3, 0}}, 1), Error);
  EXPECT_THROW(make_plan(index, std::vector<SampledFrame>{{20, 0}}, 1), Error);
  EXPECT_TRUE(make_plan(index, {}, 1).intervals.empty());
}

TEST(IndexTest, OrderNumbersReplaceMissingTimes) {
  // I0 P3 B1 B2 | I0 P1: picture order numbers begin anew at the second keyframe.
  std::vector<PacketFacts> facts;
  const std::vector<int32_t> orders = {0, 6, 2, 4, 0, 2};
  for (size_t i = 0; i < orders.size(); ++i) {
    PacketFacts fact = packet(AV_NOPTS_VALUE, AV_NOPTS_VALUE, i == 0 || i == 4);
    fact.traits.resets_order = fact.traits.start;
    fact.order = orders[i];
    facts.push_back(fact);
  }
  const VideoIndex index = build_index(facts, base, 24, true);
  EXPECT_TRUE(index.repaired_times);
  EXPECT_EQ(index.frame_packet, (std::vector<int32_t>{0, 2, 3, 1, 4, 5}));
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(index.times[i], static_cast<double>(i) / 24, 1e-9);
  EXPECT_EQ(index.reorder_depth, 1);
}

TEST(IndexTest, HiddenPacketsHaveNoRank) {
  std::vector<PacketFacts> facts = {packet(10, 10, true), packet(11, 11, false),
                                    packet(12, 12, false), packet(13, 13, false)};
  facts[0].discarded = true;
  facts[2].traits.shown = false;
  const VideoIndex index = build_index(facts, base, 24, false);
  EXPECT_EQ(index.frame_packet, (std::vector<int32_t>{1, 3}));
  EXPECT_NEAR(index.start_offset, 11.0 / 24, 1e-9);
  EXPECT_EQ(index.packet(3).start, 0);
}

TEST(IndexTest, SomeTimesMissing) {
  std::vector<PacketFacts> facts;
  for (int64_t i = 0; i < 8; ++i) {
    facts.push_back(packet(i % 3 == 0 ? 100 + 2 * i : AV_NOPTS_VALUE, AV_NOPTS_VALUE, i == 0));
  }
  const VideoIndex index = build_index(facts, base, 24, false);
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(index.times[i], static_cast<double>(i) / 12, 1e-9);
}

}  // namespace
}  // namespace kinora
