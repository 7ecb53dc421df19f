// Work that is linear in the file: each case is counted on an input and on one twice as long.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "support/random_data.h"
#include "video/decode/index_walk.h"
#include "video/decode/interval_plan.h"
#include "video/index/index.h"

namespace kinora {
namespace {

constexpr int64_t base_packets = 20000;
constexpr TimeBase base{1, 1000};

std::vector<PacketFacts> make_facts(int64_t count,
                                    const std::function<void(int64_t, PacketFacts&)>& make) {
  std::vector<PacketFacts> facts(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    PacketFacts& fact = facts[static_cast<size_t>(i)];
    fact.dts = fact.pts = 40 * i;
    fact.duration = 40;
    fact.size = 100;
    fact.traits.shown = true;
    make(i, fact);
  }
  return facts;
}

struct Hostile {
  const char* name;
  std::function<void(int64_t, PacketFacts&)> make;
};

// Each was or could be a reason to walk through the packets again and again.
std::vector<Hostile> hostile_files() {
  return {
      {"every packet a keyframe", [](int64_t, PacketFacts& fact) { fact.traits.start = true; }},
      {"keyframes that run backwards in time",
       [](int64_t i, PacketFacts& fact) {
         fact.traits.start = true;
         fact.pts = 40 * (1'000'000 - i);
       }},
      {"many keyframes, then pictures from before them",
       [](int64_t i, PacketFacts& fact) {
         fact.traits.start = i % 4 != 3;
         if (i % 4 == 3) fact.pts = 0;
       }},
      {"one keyframe", [](int64_t i, PacketFacts& fact) { fact.traits.start = i == 0; }},
      {"no keyframe", [](int64_t, PacketFacts&) {}},
      {"clocks that jump back at every packet",
       [](int64_t i, PacketFacts& fact) {
         fact.traits.start = true;
         fact.dts = fact.pts = 1'000'000'000 - 4000 * i;
       }},
      {"hidden pictures",
       [](int64_t i, PacketFacts& fact) {
         fact.traits.start = i == 0;
         fact.traits.shown = i == 0;
       }},
      {"no times at all",
       [](int64_t i, PacketFacts& fact) {
         fact.traits.start = i % 100 == 0;
         fact.pts = fact.dts = INT64_MIN;
       }},
  };
}

int64_t turns_of(const Hostile& hostile, int64_t count) {
  LoopGuard guard;
  const VideoIndex index = build_index(make_facts(count, hostile.make), base, 25, false, guard);
  // A damaged file is asked about at every packet, by a worker that goes through them.
  IndexWalk walk(index), ahead(index);
  for (int64_t i = 0; i < count; ++i) {
    walk.last_shown(i);
    const int64_t next = walk.next_key(i);
    if (next < count) ahead.last_shown(next);
  }
  return guard.turns() + walk.turns() + ahead.turns();
}

TEST(IndexWork, IsLinearInThePackets) {
  for (const Hostile& hostile : hostile_files()) {
    SCOPED_TRACE(hostile.name);
    const int64_t once = turns_of(hostile, base_packets);
    const int64_t twice = turns_of(hostile, 2 * base_packets);
    EXPECT_GE(once, base_packets);
    EXPECT_LE(twice, 2.2 * static_cast<double>(once));
    EXPECT_LE(once, 12 * base_packets);
  }
}

TEST(IndexWork, EndsWhenCancelled) {
  const CancelToken cancel;
  cancel.cancel();
  LoopGuard guard(cancel);
  const auto facts = make_facts(base_packets, [](int64_t, PacketFacts&) {});
  EXPECT_THROW(build_index(facts, base, 25, false, guard), Error);
  EXPECT_LE(guard.turns(), 4096);
}

// The starts that the definition gives: the last keyframe before a packet that is not presented
// after it.
TEST(IndexWork, FindsTheStartsOfTheDefinition) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 50; ++round) {
    const int64_t count = 1 + random.below(120);
    const auto facts = make_facts(count, [&](int64_t, PacketFacts& fact) {
      fact.pts = 40 * random.below(60);
      fact.traits.start = random.below(3) == 0;
    });
    const VideoIndex index = build_index(facts, base, 25, false);
    for (int64_t i = 0; i < count; ++i) {
      int64_t expected = -1;
      for (int64_t k = 0; k <= i; ++k) {
        if (index.packet(k).key && index.packet(k).pts <= index.packet(i).pts) expected = k;
      }
      EXPECT_EQ(index.packet(i).start, expected) << "packet " << i;
    }
  }
}

TEST(IndexWork, WalksToTheNeighboursOfTheDefinition) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 50; ++round) {
    const int64_t count = 1 + random.below(200);
    const auto facts = make_facts(count, [&](int64_t, PacketFacts& fact) {
      fact.traits.shown = random.below(4) == 0;
      fact.traits.start = random.below(8) == 0;
    });
    const VideoIndex index = build_index(facts, base, 25, false);
    IndexWalk walk(index);
    for (int asked = 0; asked < 300; ++asked) {
      const int64_t packet = random.below(2) == 0 ? asked % count : random.below(count);
      int64_t key = packet + 1, shown = packet;
      while (key < count && !index.packet(key).key) ++key;
      while (shown > 0 && index.packet(shown).frame < 0) --shown;
      EXPECT_EQ(walk.next_key(packet), key);
      EXPECT_EQ(walk.last_shown(packet), shown);
    }
  }
}

// Ends of the range of times, where sums would overflow.
TEST(IndexWork, TakesAnyTimes) {
  KINORA_FRESH_RANDOM(random);
  constexpr int64_t ends[] = {INT64_MIN, INT64_MIN + 1,    -(int64_t{1} << 60), -1,       0, 1,
                              40,        int64_t{1} << 60, INT64_MAX - 1,       INT64_MAX};
  const auto any = [&] { return ends[random.below(std::size(ends))]; };
  for (int round = 0; round < 500; ++round) {
    const auto facts = make_facts(1 + random.below(40), [&](int64_t, PacketFacts& fact) {
      fact.pts = any();
      fact.dts = any();
      fact.duration = any();
      fact.traits.start = random.below(2) == 0;
    });
    const VideoIndex index = build_index(facts, {1, INT32_MAX}, 25, false);
    EXPECT_EQ(index.frames(), static_cast<int64_t>(facts.size()));
    for (size_t i = 1; i < index.times.size(); ++i) EXPECT_LE(index.times[i - 1], index.times[i]);
  }
}

// Recordings joined end to end: open GOPs present pictures before their keyframe, and the length is
// the sum of the parts.
TEST(IndexWork, JoinedRecordingsFollowTheTimesOfPresentation) {
  std::vector<PacketFacts> facts;
  constexpr int64_t parts = 10, pictures = 100;
  for (int64_t part = 0; part < parts; ++part) {
    for (int64_t i = 0; i < pictures; ++i) {
      // Decoding order I B B P B B P …: presentation 2 0 1 5 3 4 …, and decoding runs ahead.
      const int64_t place = i % 3 == 0 ? std::min(i + 2, pictures - 1) : i - 1;
      PacketFacts fact;
      fact.pts = 1000 + 40 * place;
      fact.dts = 1000 + 40 * (i - 2);
      fact.duration = 40;
      fact.size = 10;
      fact.traits.shown = true;
      fact.traits.start = i == 0;
      facts.push_back(fact);
    }
  }
  const VideoIndex index = build_index(facts, base, 25, false);
  EXPECT_DOUBLE_EQ(index.duration, 0.04 * parts * pictures);
  for (size_t i = 0; i < index.times.size(); ++i) {
    EXPECT_NEAR(index.times[i], 0.04 * static_cast<double>(i), 1e-9);
  }
}

}  // namespace
}  // namespace kinora
