#include "generate/draft_pace.h"

#include <gtest/gtest.h>

#include <span>
#include <vector>

namespace kinora {
namespace {

// On a CPU a guess that comes true one time in five is not worth its time, one that comes true nine
// times in ten is; on a GPU both are.
TEST(DraftPace, TakesOfAChainWhatIsWorthChecking) {
  const std::vector<double> unlikely{0.2, 0.05}, likely{0.9, 0.8, 0.75}, mixed{0.9, 0.1, 0.05};
  const auto taken = [](Device device, std::span<const double> confidences) {
    DraftPace pace({9, 8, 1}, true, device, 0);
    EXPECT_TRUE(pace.begin(true));
    const int64_t count = pace.take(confidences);
    pace.end();
    return count;
  };
  EXPECT_EQ(taken(Device::cpu(), unlikely), 0);
  EXPECT_EQ(taken(Device::cpu(), likely), 3);
  EXPECT_EQ(taken(Device::cpu(), mixed), 1);
  EXPECT_EQ(taken(Device::cuda(), likely), 3);
  EXPECT_EQ(taken(Device::cuda(), unlikely), 2);
  DraftPace always({9, 8, 1}, false, Device::cpu(), 0);
  EXPECT_TRUE(always.begin(true));
  EXPECT_EQ(always.take(unlikely), 2);
}

// A pass that took longer than such passes do, as a graph was made for it, says nothing.
TEST(DraftPace, LearnsFromWhatIsUsual) {
  DraftPace pace({9, 8, 1}, true, Device::cuda(), 0.2);
  const auto pass = [&](bool usual) {
    EXPECT_FALSE(pace.begin(false));
    pace.end();
    pace.learn(0, usual);
    return pace.costs().pass(1);
  };
  EXPECT_EQ(pass(false), 0);
  EXPECT_EQ(pass(false), 0);
  const double known = pass(true);
  EXPECT_GT(known, 0);
  EXPECT_EQ(pass(false), known);
}

}  // namespace
}  // namespace kinora
