// One progress for a whole question: its share, its time left, its line.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "cli/terminal/work_progress.h"
#include "support/random_data.h"

namespace kinora::cli {
namespace {

const std::vector<ExpectedStage> question = {
    {"decode", 25, 0}, {"vision", 5, 0}, {"prefill", 60, 0}, {"answer", 10, 50}};

TEST(WorkProgress, OneShareStandsForAllStages) {
  WorkProgress work;
  work.expect(question);
  EXPECT_EQ(work.share(), 0.0);
  work.update("decode", 60, 120, 1);
  EXPECT_NEAR(*work.share(), 0.125, 1e-12);
  // Frames that were prefilled have been decoded and seen, whatever those stages last said.
  work.update("prefill", 3000, 4000, 2);
  EXPECT_NEAR(*work.share(), 0.75 * 0.9, 1e-12);
  work.update("prefill", 4000, 4000, 3);
  EXPECT_NEAR(*work.share(), 0.9, 1e-12);
  work.update("answer", 25, 0, 4);
  EXPECT_NEAR(*work.share(), 0.95, 1e-12);
  work.update("answer", 500, 0, 5);  // longer than usual
  EXPECT_EQ(work.share(), 1.0);
}

TEST(WorkProgress, TheTimeLeftDoesNotJump) {
  KINORA_FRESH_RANDOM(random);
  // The machine is slower or faster than the forecast says, each stage by a factor of its own, and
  // prefill reports in large steps.
  for (int run = 0; run < 20; ++run) {
    WorkProgress work;
    work.expect(question);
    const auto factor = [&] { return std::exp2(static_cast<double>(random.below(400)) / 100 - 2); };
    const double decoding = 30 * factor(), prefilling = 60 * factor(), answering = 10 * factor();
    const double all = decoding + prefilling + answering;
    double before = 0;
    bool known = false;
    for (double now = 0.1; now < all; now += 0.1) {
      const double decoded = std::min(1.0, now / decoding);
      const double prefilled = std::clamp((now - decoding) / prefilling, 0.0, 1.0);
      work.update("decode", std::lround(120 * decoded), 120, now);
      work.update("prefill", std::lround(std::floor(8 * prefilled) / 8 * 4000), 4000, now);
      if (prefilled >= 1) {
        work.update("answer", std::lround(50 * (now - decoding - prefilling) / answering), 0, now);
      }
      ASSERT_TRUE(work.seconds_left());
      const double left = *work.seconds_left();
      ASSERT_TRUE(std::isfinite(left) && left >= 0) << left;
      // A tenth of a second later it is that much less, give or take a few percent.
      if (known) {
        ASSERT_LE(std::abs(left - (before - 0.1)), 0.1 + 0.05 * std::max(all, 100.0)) << now;
      }
      before = left;
      known = true;
    }
    EXPECT_LE(before, 0.15 * all) << all;  // by the end it has come down
  }
}

TEST(WorkProgress, ATrueForecastCountsDownEvenly) {
  WorkProgress work;
  work.expect({{"prefill", 50, 0}});
  for (int step = 1; step < 500; ++step) {
    work.update("prefill", step, 500, 0.1 * step);
    ASSERT_NEAR(*work.seconds_left(), 50 - 0.1 * step, 0.6) << step;
  }
}

TEST(WorkProgress, TheLineFitsFortyColumns) {
  WorkProgress work;
  work.expect(question);
  work.update("decode", 45, 120, 0);
  work.update("vision", 32, 120, 0.1);
  work.update("prefill", 812, 3629, 0.2);
  EXPECT_EQ(work.text(200).substr(0, 4), "24 %");
  EXPECT_NE(work.text(200).find(" left, decode 45/120 frames, vision 32/120 frames, prefill "
                                "812/3629 tokens"),
            std::string::npos)
      << work.text(200);
  const std::string narrow = work.text(39);
  EXPECT_LE(narrow.size(), 39u);
  EXPECT_NE(narrow.find(" left"), std::string::npos) << narrow;
  EXPECT_EQ(work.text(4), "24 %");
  EXPECT_EQ(work.text(2), "");
}

TEST(WorkProgress, AStageThatNobodyExpectedStandsForItself) {
  WorkProgress work;
  work.update("loading", 0, 0, 0);
  EXPECT_EQ(work.text(80), "loading");
  work.update("questions", 0, 200, 0);
  work.update("questions", 20, 200, 10);
  EXPECT_EQ(work.text(80), "10 %, 1 min 30 s left, loading, questions 20/200");
  WorkProgress download;
  download.update("download", 1 << 20, 5 << 20, 0);  // resumed
  download.update("download", 3 << 20, 5 << 20, 2);
  EXPECT_EQ(download.text(80), "50 %, 2 s left, download 3.0 MiB of 5.0 MiB, 1.0 MiB/s");
  WorkProgress pipe;  // nobody knows how much will come
  pipe.update("download", 0, 0, 0);
  pipe.update("download", 3 << 20, 0, 2);
  EXPECT_EQ(pipe.text(80), "download 3.0 MiB, 1.5 MiB/s");
}

TEST(WorkProgress, LongTimesAreRound) {
  EXPECT_EQ(rough_seconds(0.2), "1 s");
  EXPECT_EQ(rough_seconds(7.1), "8 s");
  EXPECT_EQ(rough_seconds(22), "25 s");
  EXPECT_EQ(rough_seconds(58), "1 min");
  EXPECT_EQ(rough_seconds(125), "2 min 10 s");
  EXPECT_EQ(rough_seconds(1700), "29 min");
  EXPECT_EQ(rough_seconds(3900), "1 h 05 min");
}

}  // namespace
}  // namespace kinora::cli
