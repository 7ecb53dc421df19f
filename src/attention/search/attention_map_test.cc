#include "attention/search/attention_map.h"

#include <gtest/gtest.h>

#include "attention/head_view.h"
#include "attention/plan/line_plan.h"
#include "attention/policies/dense.h"
#include "attention/test_support.h"

namespace kinora {
namespace {

using testing::make_problem;
using testing::Problem;

TEST(AttentionMap, PoolsTheTrueAttention) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Problem problem =
      make_problem(random, {.queries = 512, .heads = 4, .kv_heads = 2, .head_size = 16});
  const HeadViews head = view_head(problem.queries(), problem.memory(), 3);
  const int side = 8;  // buckets of 64 rows: whole units
  // Two groups of 256, the second over the rows of both: together they are the whole.
  HeadMaps maps(512, side);
  RowSet half = head.rows;
  half.keys = head.rows.keys.rows(0, 256);
  half.values = head.rows.values.rows(0, 256);
  half.ordinals = head.rows.ordinals.subspan(0, 256);
  half.modalities = head.rows.modalities.subspan(0, 256);
  maps.add_attention(Context(pool), slice(head.queries, 0, 256), half, problem.scale);
  maps.add_attention(Context(pool), slice(head.queries, 256, 256), head.rows, problem.scale);
  const PooledMap map = maps.attention();
  const auto whole = testing::reference(
      problem, [&](int64_t q, int64_t, int64_t row) { return testing::causal(problem, q, row); });
  for (int key = 0; key < side; ++key) {
    const auto part = testing::reference(problem, [&](int64_t q, int64_t, int64_t row) {
      return testing::causal(problem, q, row) && row / 64 == key;
    });
    for (int row = 0; row < side; ++row) {
      double expected = 0;
      for (int64_t q = row * 64; q < (row + 1) * 64; ++q) {
        const auto at = static_cast<size_t>(q * 4 + 3);
        expected += std::exp(part.log_sum[at] - whole.log_sum[at]) / 64;
      }
      EXPECT_NEAR(map.at(row, key), expected, 1e-4) << row << ' ' << key;
    }
  }
}

TEST(AttentionMap, CoverageIsTheExpandedPlanPooled) {
  KINORA_FRESH_RANDOM(random);
  const Problem problem =
      make_problem(random, {.queries = 301, .earlier = 99, .head_size = 1, .gaps = 0.2});
  LineIndex index;
  index.sink = 20;
  index.local = 40;
  index.columns = {100, 101, 150};
  PlanBuilder builder(problem.queries(), problem.memory());
  for (const Region& region : cut_regions(Boundary::none, problem.queries(), problem.memory())) {
    add_line_tiles(builder, region, index, 0);
  }
  const Plan plan = builder.take();
  const int side = 7;
  // The map is one of tokens: rows that were pruned leave gaps in it.
  const int32_t tokens = problem.row_ordinals.back() + 1;
  HeadMaps maps(tokens, side);
  maps.add_plan(plan, problem.queries(), problem.memory(), 0);
  const PooledMap map = maps.coverage();
  const auto mask = expand(plan, problem.queries(), problem.memory(), 0);
  std::vector<double> computed(49), visible(49);
  for (int64_t q = 0; q < 301; ++q) {
    for (int64_t row = 0; row < 400; ++row) {
      const int32_t query = problem.query_ordinals[static_cast<size_t>(q)];
      const int32_t key = problem.row_ordinals[static_cast<size_t>(row)];
      const auto at = static_cast<size_t>(query * side / tokens * side + key * side / tokens);
      computed[at] += mask[static_cast<size_t>(q * 400 + row)];
      visible[at] += testing::causal(problem, q, row);
    }
  }
  for (size_t i = 0; i < 49; ++i) {
    EXPECT_NEAR(map.values[i], visible[i] > 0 ? computed[i] / visible[i] : 0, 1e-5) << i;
  }
}

}  // namespace
}  // namespace kinora
