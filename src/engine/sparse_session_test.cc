// Sparse attention as a session uses it: every group of a video is planned against the rows that
// are in memory then, pruned or not.
#include <gtest/gtest.h>
#include <kinora/session.h>

#include <array>
#include <string>
#include <utility>

#include "support/film.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

class SparseSession : public ::testing::Test {
 protected:
  const testing::TempDir directory_;
  const Engine engine_{
      {.model = std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_tied_new", .device = "cpu"}};

  Answer ask(const std::string& film, const std::string& attention, const std::string& retain,
             int64_t frames_per_group) const {
    SessionOptions options;
    options.attention = attention;
    options.retain = retain;
    options.row_type = "f32";
    options.frames_per_group = frames_per_group;
    options.max_group_tokens = 1;
    options.dense_below = 0;
    Session session(engine_, options);
    InputOptions every;
    every.frames = FrameChoice::all();
    session.add(film, every);
    AnswerOptions greedy;
    greedy.temperature = 0;
    greedy.max_tokens = 8;
    greedy.ignore_stop_tokens = true;
    return session.ask("What is it?", greedy);
  }
  // From the report: % of the dense FLOPs, and calls that were not dense.
  static std::pair<double, int64_t> share_and_sparse_calls(const Answer& answer) {
    EXPECT_TRUE(answer.attention_report.has_value());
    const AttentionSummary report = answer.attention_report.value_or(AttentionSummary());
    double parts = 0;
    for (const AttentionSummary::Part& part : report.parts) {
      EXPECT_GT(part.heads, 0) << part.name;
      parts += part.share;
    }
    EXPECT_NEAR(parts, 1, 1e-9);
    return {100 * report.computed_share, report.calls - report.dense_calls};
  }
};

TEST_F(SparseSession, APatternThatReadsAllRowsInMemoryIsDenseAttention) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 32, 120, 160);
  for (const char* retain : {"all", "key-norm:0.4", "value-norm:0.7"}) {
    const int64_t group = std::array<int64_t, 3>{8, 12, 32}[random.below(3)];
    const Answer dense = ask(film, "dense", retain, group);
    ASSERT_GT(dense.visual_tokens, 64 * 32 / group);
    EXPECT_FALSE(dense.attention_report.has_value());
    for (const char* attention :
         {"a-shape:sink=128,local=100000", "tri-shape:sink=128,local=100000", "grid:stride=1",
          "sf-fixed:stride=1", "vertical-slash:verticals=100000,slashes=100000", "momo:keys=100000",
          "oracle:keys=100000"}) {
      SCOPED_TRACE(std::string(attention) + " " + retain + " " + std::to_string(group));
      const Answer answer = ask(film, attention, retain, group);
      EXPECT_EQ(answer.ids, dense.ids);
      EXPECT_EQ(answer.row_bytes, dense.row_bytes);
      EXPECT_GT(share_and_sparse_calls(answer).second, 0);
    }
    const auto [share, sparse_calls] =
        share_and_sparse_calls(ask(film, "a-shape:sink=1,local=64", retain, group));
    EXPECT_GT(sparse_calls, 0);
    EXPECT_LT(share, 99);
  }
}

}  // namespace
}  // namespace kinora
