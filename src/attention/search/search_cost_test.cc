#include "attention/search/search_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "attention/plan/line_plan.h"
#include "attention/policies/gpu_cost.h"
#include "attention/search/grid_search.h"
#include "attention/test_support.h"
#include "base/error.h"

namespace kinora {
namespace {

using testing::make_problem;
using testing::Problem;

Plan plan_of(const Problem& problem, const PatternSpec& spec, const Probe& probe = {}) {
  const Region region = cut_regions(Boundary::none, problem.queries(), problem.memory()).front();
  PlanBuilder builder(problem.queries(), problem.memory());
  add_line_tiles(builder, region, resolve(spec, region, probe), 0);
  return builder.take();
}

TEST(PlanWork, CountsWhatAPlanReads) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t count : {1, 63, 65, 127, 129, 500}) {
    const Problem problem =
        make_problem(random, {.queries = count, .earlier = random.below(90), .head_size = 8});
    const Region region = cut_regions(Boundary::none, problem.queries(), problem.memory()).front();
    LineIndex index;
    index.sink = 1 + static_cast<int32_t>(random.below(9));
    index.local = 1 + static_cast<int32_t>(random.below(40));
    index.stride = 8;
    index.vertical = {static_cast<int32_t>(random.below(8))};
    PlanBuilder builder(problem.queries(), problem.memory());
    add_line_tiles(builder, region, index, 0);
    const Plan plan = builder.take();
    // Key by key, from the tiles' own lists.
    double attended = 0, pairs = 0, keys = 0, scattered = 0, longest = 0;
    for (const Tile& tile : plan.tiles) {
      std::multiset<int64_t> read;
      for (int64_t s = tile.segment_begin; s < tile.segment_end; ++s) {
        const Segment& segment = plan.segments[static_cast<size_t>(s)];
        for (int64_t i = 0; i < segment.count; ++i) {
          const auto at = static_cast<size_t>(segment.begin + i);
          read.insert(segment.gathered() ? plan.gathered[at] : segment.begin + i * segment.stride);
          scattered += segment.stride != 1 ? 1 : 0;
        }
      }
      keys += static_cast<double>(read.size());
      longest = std::max(longest, static_cast<double>(read.size()));
      for (int64_t q = tile.query_begin; q < tile.query_end; ++q) {
        const int32_t query = plan.query_rows[static_cast<size_t>(q)];
        for (const int64_t row : read) {
          pairs += 1;
          attended += problem.memory().ordinals[static_cast<size_t>(row)] <=
                              problem.queries().ordinals[static_cast<size_t>(query)]
                          ? 1
                          : 0;
        }
      }
    }
    const PlanWork work = work_of(plan, problem.queries(), problem.memory());
    EXPECT_EQ(work.attended, attended) << count;
    EXPECT_EQ(work.pairs, pairs) << count;
    EXPECT_EQ(work.keys, keys) << count;
    EXPECT_EQ(work.scattered, scattered) << count;
    EXPECT_EQ(work.longest, longest) << count;
    EXPECT_EQ(work.tiles, static_cast<double>(plan.tiles.size()));
    EXPECT_EQ(work.segments, static_cast<double>(plan.segments.size()));
  }
}

TEST(PlanWork, CountsALook) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(1);
  const Context context(pool);
  const int64_t count = 65 + random.below(300);
  const Problem problem = make_problem(random, {.queries = count, .head_size = 8});
  const Region region = cut_regions(Boundary::none, problem.queries(), problem.memory()).front();
  const Probe probe = probe_region(context, problem.queries(), problem.memory(), region, 0, 1.0f);
  const auto n = static_cast<double>(count);
  const auto look = [&](const char* text) { return look_of(parse_pattern(text), region, probe); };
  EXPECT_EQ(look("a-shape").looks, 0);
  EXPECT_EQ(look("a-shape").pairs, 0);
  EXPECT_EQ(look("vertical-slash").looks, 1);
  EXPECT_EQ(look("vertical-slash").pairs, 64 * n);
  EXPECT_EQ(look("vertical-slash").ranked, 2 * n);
  EXPECT_EQ(look("vertical-slash").folded, 0);
  EXPECT_EQ(look("grid:stride=9").folded, 2 * n);
  EXPECT_EQ(look("grid").ranked, 0);
  EXPECT_EQ(look("grid").folded, 2 * n * (largest_stride(region) - least_stride + 1));
}

TEST(SearchCost, FlopsAreThePairsOfAPlan) {
  KINORA_FRESH_RANDOM(random);
  const Problem problem = make_problem(random, {.queries = 300, .head_size = 8});
  const SearchCost cost(CostUnit::flops, 4, 64);
  const CostCall call{300, 300};
  const auto run = [&](const char* text) {
    return cost.run(
        work_of(plan_of(problem, parse_pattern(text)), problem.queries(), problem.memory()), call);
  };
  EXPECT_EQ(run("dense"), 300 * 301 / 2);
  EXPECT_EQ(run("a-shape:sink=0,local=1"),  // a tile shares what its queries see
            2 * 128 * 129 / 2 + 44 * 45 / 2);
  EXPECT_EQ(cost.look({.looks = 1, .pairs = 1e6, .ranked = 1e6, .folded = 1e6}, call), 0);
  EXPECT_EQ(look_pairs({.looks = 1, .pairs = 64}), 32);
}

// More of anything never takes less time, and twice the work twice as long.
TEST(SearchCost, TimesGrowWithTheWork) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t columns : {32, 64, 80, 128, 256}) {
    const SearchCost cost(CostUnit::cpu, 4, columns);
    const auto work = [&](size_t more, double by) {
      std::array<double, PlanWork::term_count> terms = {1e6, 1e4, 1e3, 30, 400};
      if (more < terms.size()) terms[more] *= by;
      PlanWork made;
      std::tie(made.pairs, made.keys, made.scattered, made.tiles, made.segments) =
          std::tie(terms[0], terms[1], terms[2], terms[3], terms[4]);
      return cost.run(made, {2048, 8192});
    };
    const double plain = work(PlanWork::term_count, 1);
    EXPECT_GT(plain, 0) << columns;
    for (size_t term = 0; term < PlanWork::term_count; ++term) {
      EXPECT_GE(work(term, random.uniform(1, 9)), plain) << columns << " " << term;
    }
    EXPECT_GT(work(0, 2), plain) << columns;
    const LookWork look{.looks = 1, .pairs = 64 * 8192.0, .ranked = 2 * 8192.0};
    LookWork twice = look;
    twice.pairs *= 2;
    twice.ranked *= 2;
    EXPECT_GT(cost.look(look, {2048, 8192}), 0) << columns;
    EXPECT_NEAR(cost.look(twice, {2048, 8192}), 2 * cost.look(look, {2048, 8192}), 1e-12);
  }
}

// A head's part of what the device's own estimate says for all heads.
TEST(SearchCost, AGpusTimesAreItsEstimates) {
  KINORA_FRESH_RANDOM(random);
  const int64_t heads = 1 + random.below(32), rows = 4096 + random.below(100'000);
  const SearchCost cost(CostUnit::gpu, heads, 128);
  const CostCall call{2048, rows};
  const double keys = random.uniform(100, 3000), longest = random.uniform(3000, 4000);
  const GpuCall all{2048, rows, heads, 128};
  const auto each = static_cast<double>(heads);
  PlanWork work;
  work.pairs = keys * 2048;
  work.tiles = 16;
  work.longest = longest;
  EXPECT_DOUBLE_EQ(
      cost.run(work, call),
      sparse_seconds(all, {.keys = keys, .longest = static_cast<int64_t>(longest)}) / each);
  EXPECT_DOUBLE_EQ(cost.dense(work, call), dense_seconds(all) / each);
  EXPECT_EQ(cost.run({}, call), 0);
  EXPECT_NEAR(cost.look({.looks = 1, .pairs = 1}, call),
              (sparse_seconds(all, {.probes = 1}) - sparse_seconds(all, {})) / each, 1e-15);
  EXPECT_EQ(cost.look({}, call), 0);
  EXPECT_EQ(cost.slash_queries(), line_tile);
  EXPECT_EQ(cost.with(CostUnit::cpu).slash_queries(), slash_tile);
}

TEST(SearchCost, UnitsHaveNames) {
  for (const std::string& name : cost_unit_names()) {
    EXPECT_EQ(cost_unit_name(parse_cost_unit(name)), name);
    EXPECT_FALSE(cost_unit_text(name).empty());
  }
  EXPECT_THROW(parse_cost_unit("seconds"), Error);
}

}  // namespace
}  // namespace kinora
