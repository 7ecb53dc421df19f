#include "video/decode/interval_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <queue>
#include <random>
#include <set>

namespace kinora {
namespace {

constexpr int64_t everything = std::numeric_limits<int64_t>::max();

// Intervals of `lengths` packets of a thousand bytes, a sample every four packets.
ReadPlan make_intervals(const std::vector<int64_t>& lengths, int workers) {
  VideoIndex index;
  std::vector<PacketFacts> facts;
  for (const int64_t length : lengths) {
    for (int64_t i = 0; i < length; ++i) {
      PacketFacts fact;
      fact.pts = fact.dts = static_cast<int64_t>(facts.size());
      fact.duration = 1;
      fact.size = 1000;
      fact.traits.start = i == 0;
      facts.push_back(fact);
    }
  }
  index = build_index(facts, {1, 24}, 24, false);
  std::vector<SampledFrame> samples;
  int64_t first = 0;
  for (const int64_t length : lengths) {
    for (int64_t i = 0; i < length; i += 4) samples.push_back({first + i, 0});
    if (length % 4 != 1) samples.push_back({first + length - 1, 0});
    first += length;
  }
  return make_plan(index, samples, workers, 4);
}

std::vector<int64_t> random_lengths(std::mt19937& random, size_t count) {
  std::vector<int64_t> lengths(count);
  for (int64_t& length : lengths) {
    length = 1 + static_cast<int64_t>(random() % (random() % 3 == 0 ? 120 : 12));
  }
  return lengths;
}

// Packets without content, of the size that the index states, and what was read.
class CountingFeed final : public PacketFeed {
 public:
  explicit CountingFeed(std::vector<int64_t>& reads)
      : reads_(reads), parameters_(avcodec_parameters_alloc()) {}
  ~CountingFeed() override { avcodec_parameters_free(&parameters_); }

  std::vector<NumberedPacket> read(const KeyframeInterval& interval, int64_t& from, int64_t,
                                   int64_t max_bytes) override {
    std::vector<NumberedPacket> packets;
    for (int64_t bytes = 0; from <= interval.end && bytes < max_bytes; bytes += 1000) {
      reads_.push_back(from);
      packets.push_back({from++, make_packet()});
    }
    return packets;
  }
  const AVCodecParameters& parameters() const override { return *parameters_; }
  int64_t seeks() const override { return 0; }

 private:
  std::vector<int64_t>& reads_;
  AVCodecParameters* parameters_;
};

TEST(IntervalSourceTest, HandsOutEveryPacketOnceInTheOrderOfTheFile) {
  std::mt19937 random(11);
  for (int round = 0; round < 100; ++round) {
    const int workers = 1 + static_cast<int>(random() % 17);
    const ReadPlan plan = make_intervals(random_lengths(random, 1 + random() % 60), workers);
    const int64_t most_bytes = 1000 * (1 + static_cast<int64_t>(random() % 300));
    std::vector<int64_t> reads;
    IntervalSource source(plan, std::make_unique<CountingFeed>(reads), most_bytes);
    std::set<size_t> taken;
    std::set<int64_t> packets;
    int64_t open = 0;
    int64_t taken_packets = 0;
    while (std::optional<IntervalSource::Work> work = source.take(open)) {
      ASSERT_TRUE(taken.insert(work->number).second) << "interval " << work->number << " twice";
      const KeyframeInterval& interval = plan.intervals[work->number];
      size_t first_left = 0;
      while (taken.contains(first_left)) ++first_left;
      // Out of order only what the queue has room for.
      if (first_left < work->number) {
        EXPECT_LE(interval.samples_end, open);
      }
      ASSERT_NE(work->parameters, nullptr);
      while (true) {
        for (const NumberedPacket& packet : work->packets) {
          EXPECT_TRUE(packets.insert(packet.number).second);
          EXPECT_GE(packet.number, interval.begin);
          EXPECT_LE(packet.number, interval.end);
        }
        if (work->from > interval.end) break;
        source.read_on(*work);
      }
      taken_packets += interval.packets;
      // What was read and not handed out is bounded.
      EXPECT_LE(1000 * (static_cast<int64_t>(reads.size()) - taken_packets), most_bytes);
      open += static_cast<int64_t>(random() % 12);
    }
    EXPECT_EQ(taken.size(), plan.intervals.size());
    EXPECT_EQ(static_cast<int64_t>(packets.size()), plan.packets);
    EXPECT_TRUE(std::is_sorted(reads.begin(), reads.end()));
  }
}

TEST(IntervalSourceTest, EqualIntervalsBeginInOrder) {
  const ReadPlan plan = make_intervals(std::vector<int64_t>(40, 25), 16);
  std::vector<int64_t> reads;
  IntervalSource source(plan, std::make_unique<CountingFeed>(reads));
  for (size_t i = 0; i < 40; ++i) EXPECT_EQ(source.take(everything)->number, i);
  EXPECT_FALSE(source.take(everything).has_value());
}

TEST(IntervalSourceTest, OneWorkerGoesFromTheFirstToTheLast) {
  std::mt19937 random(12);
  const ReadPlan plan = make_intervals(random_lengths(random, 50), 1);
  std::vector<int64_t> reads;
  IntervalSource source(plan, std::make_unique<CountingFeed>(reads));
  for (size_t i = 0; i < 50; ++i) EXPECT_EQ(source.take(everything)->number, i);
}

// Workers that decode a packet per unit of time.
struct Times {
  double end = 0;
  double lag = 0;    // mean over samples: from its decoding until all before it are there too
  double first = 0;  // the first group is there
};

Times simulate(const ReadPlan& plan, bool as_planned) {
  std::vector<int64_t> reads;
  IntervalSource source(plan, std::make_unique<CountingFeed>(reads));
  std::vector<double> done(plan.intervals.size());
  std::priority_queue<double, std::vector<double>, std::greater<>> free;
  for (int i = 0; i < plan.workers; ++i) free.push(0);
  Times times;
  // Without room in the queue nothing begins before its turn.
  while (const auto work = source.take(as_planned ? everything : 0)) {
    const double now = free.top();
    free.pop();
    done[work->number] = now + static_cast<double>(plan.intervals[work->number].packets);
    free.push(done[work->number]);
  }
  double all_before = 0;
  for (size_t i = 0; i < done.size(); ++i) {
    all_before = std::max(all_before, done[i]);
    times.lag += (all_before - done[i]) / static_cast<double>(done.size());
    if (i + 1 == plan.urgent) times.first = all_before;
  }
  times.end = all_before;
  return times;
}

TEST(IntervalSourceTest, IntervalsEndInOrder) {
  std::vector<int64_t> film;  // as scene cuts make them
  for (int i = 0; i < 60; ++i) film.insert(film.end(), {12, 48, 60, 125});
  const ReadPlan plan = make_intervals(film, 16);
  const Times in_turn = simulate(plan, false);
  const Times planned = simulate(plan, true);
  EXPECT_LT(planned.lag, in_turn.lag / 3);
  EXPECT_LT(planned.end, in_turn.end);
  EXPECT_LE(planned.first, in_turn.first);
  // All workers busy to the end but for half of the longest interval.
  EXPECT_LT(planned.end, static_cast<double>(plan.packets) / 16 + 63);
}

TEST(IntervalSourceTest, NothingToRead) {
  const ReadPlan plan = make_plan(VideoIndex{}, {}, 4);
  std::vector<int64_t> reads;
  IntervalSource source(plan, std::make_unique<CountingFeed>(reads));
  EXPECT_FALSE(source.take(everything).has_value());
  EXPECT_EQ(samples_under_way(plan), 0);
}

TEST(PlanTest, TheWindowReachesFromTheEarliestToWhatBeganEarly) {
  // Equal intervals of seven samples: two for every worker and one.
  EXPECT_EQ(samples_under_way(make_intervals(std::vector<int64_t>(40, 25), 4)), 7 * 9);
  std::vector<int64_t> film;
  for (int i = 0; i < 60; ++i) film.insert(film.end(), {12, 48, 60, 125});
  const ReadPlan plan = make_intervals(film, 16);
  for (size_t i = plan.urgent; i < plan.intervals.size(); ++i) {
    int64_t before = 0;
    for (size_t j = 0; j < i; ++j) before += plan.intervals[j].packets;
    EXPECT_EQ(plan.intervals[i].begin_at,
              std::max<int64_t>(0, before - 15 * plan.intervals[i].packets));
  }
  // Samples of fifteen longest intervals and what lies between.
  EXPECT_GT(samples_under_way(plan), 15 * 125 / 4);
  EXPECT_LT(samples_under_way(plan), 2 * 16 * 125 / 4);
}

}  // namespace
}  // namespace kinora
