#include "attention/plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "attention/policies/dense.h"
#include "attention/test_support.h"
#include "base/error.h"

namespace kinora {
namespace {

using testing::make_problem;
using testing::Problem;
using testing::ProblemShape;

TEST(Plan, DenseExpandsToTheCausalMask) {
  KINORA_FRESH_RANDOM(random);
  for (const ProblemShape& shape :
       {ProblemShape{.queries = 1},
        ProblemShape{.queries = 65, .earlier = 63, .heads = 6, .kv_heads = 2, .gaps = 0.3},
        ProblemShape{.queries = 129, .earlier = 1, .heads = 7}}) {
    const Problem problem = make_problem(random, shape);
    const Plan plan = dense_plan(problem.queries(), problem.memory());
    validate(plan, problem.queries(), problem.memory());
    int64_t pairs = 0;
    for (int head = 0; head < shape.heads; ++head) {
      const auto mask = expand(plan, problem.queries(), problem.memory(), head);
      for (int64_t q = 0; q < shape.queries; ++q) {
        for (int64_t row = 0; row < problem.rows(); ++row) {
          const int reads = mask[static_cast<size_t>(q * problem.rows() + row)];
          ASSERT_EQ(reads, testing::causal(problem, q, row) ? 1 : 0) << q << ' ' << row;
          pairs += reads;
        }
      }
    }
    EXPECT_EQ(attended_pairs(plan, problem.queries(), problem.memory()), pairs);
    EXPECT_EQ(dense_pairs(shape.heads, problem.queries(), problem.memory()), pairs);
  }
}

TEST(Plan, BuilderCutsStridedAndGatheredRowsAtTheEdgeOfCausality) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 200; ++round) {
    const Problem problem = make_problem(random, {.queries = 1 + random.below(40),
                                                  .earlier = random.below(40),
                                                  .head_size = 4,
                                                  .gaps = 0.2});
    PlanBuilder builder(problem.queries(), problem.memory());
    const int64_t first = random.below(problem.shape.queries);
    const int64_t end = first + 1 + random.below(problem.shape.queries - first);
    builder.begin_queries();
    builder.add_query_range(first, end);
    builder.begin_segments();
    const int64_t begin = random.below(problem.rows());
    const auto stride = static_cast<int32_t>(1 + random.below(5));
    const int64_t count = random.below((problem.rows() - begin - 1) / stride + 2);
    const bool gather = random.below(2) == 1;
    std::vector<int32_t> rows;
    for (int64_t i = 0; i < count; ++i) rows.push_back(static_cast<int32_t>(begin + i * stride));
    gather ? builder.add_gathered(rows) : builder.add_rows(begin, count, stride);
    builder.add_tile(0);
    const Plan plan = builder.take();
    validate(plan, problem.queries(), problem.memory());
    const auto mask = expand(plan, problem.queries(), problem.memory(), 0);
    for (int64_t q = 0; q < problem.shape.queries; ++q) {
      for (int64_t row = 0; row < problem.rows(); ++row) {
        const bool wanted = q >= first && q < end && testing::causal(problem, q, row) &&
                            std::find(rows.begin(), rows.end(), row) != rows.end();
        ASSERT_EQ(mask[static_cast<size_t>(q * problem.rows() + row)], wanted ? 1 : 0);
      }
    }
    for (const Segment& segment : plan.segments) EXPECT_GT(segment.count, 0);
  }
}

TEST(Plan, RefusesWhatDoesNotFit) {
  KINORA_FRESH_RANDOM(random);
  const Problem problem =
      make_problem(random, {.queries = 9, .earlier = 4, .heads = 4, .kv_heads = 2, .head_size = 8});
  const Plan good = dense_plan(problem.queries(), problem.memory());
  const auto refuses = [&](const std::function<void(Plan&)>& damage, const char* words) {
    Plan plan = good;
    damage(plan);
    try {
      validate(plan, problem.queries(), problem.memory());
      ADD_FAILURE() << "accepted: " << words;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input);
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  constexpr int64_t huge = std::numeric_limits<int64_t>::max();
  refuses([](Plan& p) { p.query_count = 8; }, "made for 8 queries");
  refuses([](Plan& p) { p.row_count = 14; }, "given 9 and 13");
  refuses([](Plan& p) { p.heads = 6; }, "made for 6 heads");
  refuses([](Plan& p) { p.query_rows[2] = 9; }, "query row 9 of 9");
  refuses([](Plan& p) { p.query_rows[2] = -1; }, "query row -1");
  refuses([](Plan& p) { p.query_rows[1] = p.query_rows[0]; }, "in two tiles of pass 0");
  refuses([](Plan& p) { p.tiles[0].pass = 8; }, "pass 8");
  refuses([](Plan& p) { p.tiles[0].pass = -1; }, "pass -1");
  refuses([](Plan& p) { p.tiles[0].heads = 3; }, "different kv heads");
  refuses([](Plan& p) { p.tiles[0].heads = 5; }, "tile 0 has heads [0, 5) of 4");
  refuses([](Plan& p) { p.tiles[0].head = -1; }, "tile 0 has heads");
  refuses([](Plan& p) { p.tiles[0].query_end = huge; }, "query list");
  refuses([](Plan& p) { p.tiles[0].segment_end = huge; }, "has segments");
  refuses([](Plan& p) { p.tiles[0].segment_begin = -1; }, "has segments");
  refuses([](Plan& p) { p.segments[0].count = 14; }, "points outside the 13 rows");
  refuses([](Plan& p) { p.segments[0].count = huge; }, "points outside");
  refuses([](Plan& p) { p.segments[0].begin = huge; }, "points outside");
  refuses([](Plan& p) { p.segments[0].begin = -1; }, "negative");
  refuses([](Plan& p) { p.segments[0].stride = -3; }, "negative");
  refuses([](Plan& p) { p.segments[0].stride = std::numeric_limits<int32_t>::max(); },
          "points outside");
  refuses([](Plan& p) { p.segments[0].stride = 0; }, "gathered rows");
  refuses(
      [](Plan& p) {
        p.gathered = {13};
        p.segments[0] = {0, 1, 0, false};
      },
      "gathered row 13 of 13");
  refuses(
      [](Plan& p) {
        p.gathered = {1};
        p.segments[0] = {huge, 1, 0, false};
      },
      "gathered rows");
  Plan unplaced = good;
  RowSet bare = problem.memory();
  bare.ordinals = {};
  EXPECT_THROW(validate(unplaced, problem.queries(), bare), Error);
  PlanBuilder builder(problem.queries(), problem.memory());
  EXPECT_THROW(builder.add_rows(0, 1, 0), Error);
}

TEST(Plan, JoiningIsAppendingOnAnyNumberOfThreads) {
  KINORA_FRESH_RANDOM(random);
  const Problem problem = make_problem(
      random, {.queries = 50, .earlier = 30, .heads = 4, .kv_heads = 2, .head_size = 1});
  std::vector<Plan> parts;
  for (int part = 0; part < 6; ++part) {
    PlanBuilder builder(problem.queries(), problem.memory());
    for (int tile = 0; tile < part; ++tile) {  // the first is empty
      builder.begin_queries();
      builder.add_query_range(10 * tile, 10 * tile + 1 + random.below(10));
      builder.begin_segments();
      builder.add_rows(random.below(20), 1 + random.below(20), static_cast<int32_t>(1 + part % 3));
      const std::vector<int32_t> rows = {21, 40, static_cast<int32_t>(50 + random.below(20))};
      builder.add_gathered(rows);
      builder.add_tile(part % 4, 1, part);
    }
    parts.push_back(builder.take());
  }
  Plan appended = parts.front();
  int64_t pairs = 0;
  for (const Plan& part : parts) pairs += attended_pairs(part, problem.queries(), problem.memory());
  for (size_t i = 1; i < parts.size(); ++i) append(appended, parts[i]);
  const ThreadPool pool(3);
  for (const ThreadPool* threads : {static_cast<const ThreadPool*>(nullptr), &pool}) {
    const Plan joined = join(parts, threads);
    validate(joined, problem.queries(), problem.memory(), threads);
    EXPECT_EQ(joined.query_rows, appended.query_rows);
    EXPECT_EQ(joined.gathered, appended.gathered);
    EXPECT_EQ(joined.segments, appended.segments);
    ASSERT_EQ(joined.tiles.size(), appended.tiles.size());
    for (int head = 0; head < 4; ++head) {
      EXPECT_EQ(expand(joined, problem.queries(), problem.memory(), head),
                expand(appended, problem.queries(), problem.memory(), head));
    }
    EXPECT_EQ(attended_pairs(joined, problem.queries(), problem.memory(), threads), pairs);
    Plan wrong = joined;
    wrong.gathered.back() = 80;
    EXPECT_THROW(validate(wrong, problem.queries(), problem.memory(), threads), Error);
  }
  EXPECT_TRUE(join({}).tiles.empty());
}

}  // namespace
}  // namespace kinora
