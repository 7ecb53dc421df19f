#include "generate/stop_filter.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/random_data.h"

namespace kinora {
namespace {

TEST(StopFilter, EqualsSearchingTheWholeText) {
  KINORA_FRESH_RANDOM(random);
  const auto word = [&](int64_t most) {
    std::string text;
    for (int64_t n = random.below(most + 1); n > 0; --n) text += "abc"[random.below(3)];
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (int64_t n = random.below(4); n > 0; --n) stops.push_back("a" + word(4));
    const std::string text = word(40);
    size_t cut = text.size();
    bool expected_stop = false;
    for (const auto& stop : stops) {
      const size_t at = text.find(stop);
      if (at == std::string::npos) continue;
      expected_stop = true;
      cut = std::min(cut, at);
    }
    StopFilter filter(stops);
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const auto length = static_cast<size_t>(1 + random.below(5));
      shown += filter.feed(std::string_view(text).substr(at, length));
      at += length;
    }
    shown += filter.finish();
    // A piece may hold two stop strings; the earliest in the text wins unless an earlier piece
    // completed another one first, which then lies before it or overlaps it.
    EXPECT_EQ(filter.stopped(), expected_stop);
    if (!expected_stop) {
      EXPECT_EQ(shown, text);
    } else {
      EXPECT_EQ(text.substr(0, shown.size()), shown);
      EXPECT_GE(shown.size(), cut);
      bool at_a_stop = false;
      for (const auto& stop : stops)
        at_a_stop |= text.compare(shown.size(), stop.size(), stop) == 0;
      EXPECT_TRUE(at_a_stop);
    }
  }
}

TEST(StopFilter, ShowsNothingOfAStopString) {
  StopFilter filter({"END"});
  EXPECT_EQ(filter.feed("one E"), "one ");
  EXPECT_EQ(filter.feed("N"), "");
  EXPECT_EQ(filter.feed("D two"), "");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.finish(), "");
}

TEST(StopFilter, RefusesAnEmptyStop) { EXPECT_THROW(StopFilter({""}), Error); }

}  // namespace
}  // namespace kinora
