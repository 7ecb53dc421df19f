#include "attention/cpu/bundle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <tuple>

#include "attention/cpu/runner_cpu.h"
#include "attention/cuda/device_test_support.h"
#include "attention/runner.h"
#include "attention/test_support.h"

namespace kinora {
namespace {

using attention_cpu::Bundle;
using attention_cpu::bundle_tiles;
using attention_cpu::job_rows;
using attention_cpu::rows_in_bundle;
using testing::make_problem;
using testing::Problem;

// Every head has columns, ranges at some distances and sometimes a line of its own; tiles of `tile`
// queries that follow one another read much the same keys. A few tiles are empty.
Plan neighbours(Random& random, const Problem& problem, int64_t tile) {
  PlanBuilder builder(problem.queries(), problem.memory());
  const auto heads = static_cast<int>(problem.shape.heads);
  const int group = heads / static_cast<int>(problem.shape.kv_heads);
  const int64_t rows = problem.rows();
  for (int head = 0; head < heads;) {
    const int take = 1 + static_cast<int>(random.below(group - head % group) * random.below(2));
    const int64_t third = rows / 3;
    std::vector<int32_t> columns;
    for (int64_t row = 0; row < third; ++row) {
      if (random.below(4) == 0) columns.push_back(static_cast<int32_t>(row));
    }
    const int64_t kept = builder.keep_rows(columns);
    const int64_t distance = random.below(third), width = 1 + random.below(2 * tile);
    const auto stride = static_cast<int32_t>(2 + random.below(9));
    const bool line = random.below(2) == 0;
    for (int64_t begin = 0; begin < problem.shape.queries; begin += tile) {
      const int64_t end = std::min(begin + tile, problem.shape.queries);
      builder.begin_queries();
      builder.add_query_range(begin, end);
      builder.begin_segments();
      if (random.below(12) > 0) {
        const int64_t first = std::min<int64_t>(random.below(3), std::ssize(columns));
        builder.add_kept(kept + first, std::ssize(columns) - first);
        const int64_t half = third + (rows - third) / 2;
        if (line) builder.add_rows(third, (half - third) / stride, stride);
        const int64_t low = std::max(half, problem.shape.earlier + begin - distance);
        builder.add_rows(low, std::min(width + tile, rows - low));
        // The same rows at the end: masked for the tiles that they are too late for.
        if (low + width + tile < rows)
          builder.add_rows(low + width + tile, rows - low - width - tile);
      }
      builder.add_tile(head, take);
    }
    head += take;
  }
  return builder.take();
}

using Key = std::tuple<int64_t, bool>;  // row, masked

std::vector<Key> keys_of(const Plan& plan, const Segment& segment) {
  std::vector<Key> keys;
  for (int64_t i = 0; i < segment.count; ++i) {
    const int64_t row = segment.gathered()
                            ? int64_t{plan.gathered[static_cast<size_t>(segment.begin + i)]}
                            : segment.begin + i * segment.stride;
    keys.emplace_back(row, segment.masked);
  }
  return keys;
}

// Bundles as the runner may make them, whether or not they pay.
std::vector<Bundle> bundles_of(const Plan& plan) {
  std::vector<Bundle> bundles;
  const int32_t group = plan.heads / plan.kv_heads;
  const auto count = std::ssize(plan.tiles);
  for (int64_t first = 0; first < count;) {
    int64_t last = first, rows = 0;
    const auto tile = [&](int64_t t) -> const Tile& { return plan.tiles[static_cast<size_t>(t)]; };
    for (; last < count && tile(last).head / group == tile(first).head / group; ++last) {
      rows += rows_in_bundle(tile(last));
      if (rows > job_rows) break;
    }
    last = std::max(last, first + 1);
    if (auto bundle = bundle_tiles(plan, first, last)) bundles.push_back(std::move(*bundle));
    first = last;
  }
  return bundles;
}

TEST(Bundle, ListsAKeyOnceAndGivesEveryTileItsOwn) {
  KINORA_FRESH_RANDOM(random);
  size_t made = 0;
  for (int round = 0; round < 30; ++round) {
    const Problem problem = make_problem(random, {.queries = 1 + random.below(500),
                                                  .earlier = 500 + random.below(500),
                                                  .heads = 6,
                                                  .kv_heads = 2,
                                                  .head_size = 1});
    const Plan plan = random.below(4) == 0 ? testing::random_plan(random, problem)
                                           : neighbours(random, problem, 1 + random.below(130));
    for (const Bundle& bundle : bundles_of(plan)) {
      ++made;
      std::vector<int64_t> rows;
      for (const Segment& segment : bundle.list) {
        for (const auto& [row, masked] : keys_of(plan, segment)) rows.push_back(row);
      }
      ASSERT_EQ(std::ssize(rows), bundle.length);
      std::set<std::tuple<bool, int64_t, int64_t>> distinct;  // gathered, stride, place
      for (const Bundle::Member& member : bundle.members) {
        const Tile& tile = plan.tiles[static_cast<size_t>(member.tile)];
        std::vector<Key> own, given;
        for (int64_t s = tile.segment_begin; s < tile.segment_end; ++s) {
          const Segment& segment = plan.segments[static_cast<size_t>(s)];
          const std::vector<Key> keys = keys_of(plan, segment);
          own.insert(own.end(), keys.begin(), keys.end());
          for (int64_t i = 0; i < segment.count; ++i) {
            distinct.emplace(segment.gathered(), segment.stride,
                             segment.begin + i * std::max(segment.stride, 1));
          }
        }
        int64_t last = 0;
        for (const Bundle::Stretch& stretch : member.stretches) {
          ASSERT_GE(stretch.begin, last);
          ASSERT_GT(stretch.end, stretch.begin);
          ASSERT_LE(stretch.end, bundle.length);
          last = stretch.end;
          for (int64_t i = stretch.begin; i < stretch.end; ++i) {
            given.emplace_back(rows[static_cast<size_t>(i)], stretch.masked);
          }
        }
        std::sort(own.begin(), own.end());
        std::sort(given.begin(), given.end());
        ASSERT_EQ(given, own);
        ASSERT_EQ(member.keys, std::ssize(own));
      }
      EXPECT_EQ(std::ssize(distinct), bundle.length);
    }
  }
  EXPECT_GT(made, 20u);
}

TEST(Bundle, IsNotMadeWhereItWouldNotPay) {
  KINORA_FRESH_RANDOM(random);
  const Problem problem =
      make_problem(random, {.queries = 128, .earlier = 4000, .heads = 1, .head_size = 1});
  const auto bundle = [&](int64_t first_begin, int64_t second_begin, bool twice) {
    PlanBuilder builder(problem.queries(), problem.memory());
    for (const int64_t begin : {first_begin, second_begin}) {
      builder.begin_queries();
      builder.add_query_range(begin == first_begin ? 0 : 64, begin == first_begin ? 64 : 128);
      builder.begin_segments();
      builder.add_rows(begin, 1000);
      if (twice) builder.add_rows(begin + 500, 1);
      builder.add_tile(0);
    }
    return bundle_tiles(builder.take(), 0, 2);
  };
  EXPECT_TRUE(bundle(0, 100, false).has_value());
  EXPECT_FALSE(bundle(0, 2000, false).has_value());  // nothing is shared
  EXPECT_FALSE(bundle(0, 995, false).has_value());   // too little is
  EXPECT_FALSE(bundle(0, 100, true).has_value());    // a key is read twice
}

// Runs every bundle that can be made, and the other tiles alone.
void run_bundled(const Context& context, const Problem& problem, const Plan& plan,
                 std::span<const Bundle> bundles, TensorView out, const RunOptions& options) {
  std::vector<attention_cpu::Job> jobs;
  std::set<int64_t> taken;
  for (const Bundle& bundle : bundles) {
    for (const Bundle::Member& member : bundle.members) taken.insert(member.tile);
    jobs.push_back({bundle.members.front().tile, 0, 0, 0, 0, -1, &bundle});
  }
  for (int64_t t = 0; t < std::ssize(plan.tiles); ++t) {
    if (taken.contains(t)) continue;
    const Tile& tile = plan.tiles[static_cast<size_t>(t)];
    int64_t keys = 0;
    for (int64_t s = tile.segment_begin; s < tile.segment_end; ++s) {
      keys += plan.segments[static_cast<size_t>(s)].count;
    }
    const int64_t rows = tile.queries() * tile.heads;
    for (int64_t begin = 0; begin < rows; begin += job_rows) {
      jobs.push_back({t, begin, std::min(begin + job_rows, rows), 0, keys, -1});
    }
  }
  const QueryView queries = problem.queries();
  const RowSet rows = problem.memory();
  const attention_cpu::Run run{plan, queries, rows, problem.scale, out, options, {}};
  attention_cpu::run_jobs(context, run, jobs, {});
}

TEST(Bundle, RunsAsItsTilesByTheDefinition) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool one(1), three(3);
  size_t bundled = 0, largest = 0;
  for (const int64_t tile : {15, 31, 63, 64, 65, 127, 128}) {
    for (const DType dtype : {DType::f32, tile % 2 == 0 ? DType::bf16 : DType::i8}) {
      Problem problem = make_problem(random, {.queries = 5 * tile + random.below(tile),
                                              .earlier = 700,
                                              .heads = 12,
                                              .kv_heads = 4,
                                              .head_size = 1 + random.below(20),
                                              .dtype = dtype,
                                              .gaps = random.below(2) * 0.3});
      if (dtype == DType::f32 && random.below(2) == 0) testing::weigh_rows(random, problem);
      const Plan plan = neighbours(random, problem, tile);
      const std::vector<Bundle> bundles = bundles_of(plan);
      bundled += bundles.size();
      for (const Bundle& bundle : bundles) largest = std::max(largest, bundle.members.size());
      const auto expected = testing::reference_of(problem, plan);
      const auto run = [&](const ThreadPool& pool, std::vector<float>& log_sum) {
        std::vector<float> out(static_cast<size_t>(problem.out_shape().elements()), NAN);
        std::vector<float> max(out.size()), sum(out.size());
        run_bundled(Context(pool), problem, plan, bundles,
                    TensorView::of(out.data(), problem.out_shape()),
                    {.state = {max.data(), sum.data()}});
        log_sum.clear();
        for (size_t i = 0; i < expected.log_sum.size(); ++i) {
          log_sum.push_back(max[i] + std::log(sum[i]));
        }
        return out;
      };
      SCOPED_TRACE(::testing::Message() << "tiles of " << tile << ", " << dtype_name(dtype));
      std::vector<float> log_sum, again_sum;
      const auto out = run(three, log_sum), again = run(one, again_sum);
      EXPECT_EQ(std::memcmp(out.data(), again.data(), out.size() * sizeof(float)), 0);
      EXPECT_LE(testing::relative_error(std::span<const float>(out),
                                        std::span<const double>(expected.out)),
                testing::f32_tolerance(expected));
      for (size_t i = 0; i < log_sum.size(); ++i) {
        if (std::isinf(expected.log_sum[i])) {
          EXPECT_EQ(log_sum[i], -std::numeric_limits<float>::infinity());
        } else {
          EXPECT_NEAR(log_sum[i], expected.log_sum[i], expected.log_errors[i]);
        }
      }
    }
  }
  EXPECT_GT(bundled, 20u);  // or it would say nothing about them
  EXPECT_GT(largest, 4u);
}

// The runner makes bundles of many tiles by itself; of few rows, which it lays out otherwise, none.
TEST(Bundle, AreMadeOfManyTilesAndNeverOfFewRows) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  for (const int64_t queries : {8, 600}) {
    const int64_t heads = 32, kv_heads = queries == 8 ? 32 : 8;
    const Problem problem = make_problem(random, {.queries = queries,
                                                  .earlier = 400,
                                                  .heads = heads,
                                                  .kv_heads = kv_heads,
                                                  .head_size = 12});
    PlanBuilder builder(problem.queries(), problem.memory());
    const int64_t tile = queries == 8 ? 1 : 64;
    for (int head = 0; head < heads; ++head) {
      for (int64_t begin = 0; begin < queries; begin += tile) {
        builder.begin_queries();
        builder.add_query_range(begin, std::min(begin + tile, queries));
        builder.begin_segments();
        builder.add_rows(0, 300 + begin);
        builder.add_tile(head);
      }
    }
    const Plan plan = builder.take();
    EXPECT_FALSE(bundles_of(plan).empty());
    const auto expected = testing::reference_of(problem, plan);
    std::vector<float> out(static_cast<size_t>(problem.out_shape().elements()), NAN);
    run_plan(Context(pool), plan, problem.queries(), problem.memory(), problem.scale,
             TensorView::of(out.data(), problem.out_shape()));
    EXPECT_LE(
        testing::relative_error(std::span<const float>(out), std::span<const double>(expected.out)),
        testing::f32_tolerance(expected))
        << queries << " queries";
  }
}

}  // namespace
}  // namespace kinora
