#include "attention/plan/line_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "attention/policies/dense.h"
#include "attention/runner.h"
#include "attention/test_support.h"
#include "base/error.h"

namespace kinora {
namespace {

using testing::make_problem;
using testing::Problem;

constexpr Boundary boundaries[] = {Boundary::none, Boundary::key, Boundary::query, Boundary::both};

LineIndex random_index(Random& random, int64_t rows) {
  LineIndex index;
  const auto size = [&] { return static_cast<int32_t>(random.below(rows / 3 + 2)); };
  const auto sorted = [&](int64_t count) {
    std::vector<int32_t> values;
    for (int32_t i = 0; i < rows; ++i) {
      if (random.below(rows) < count) values.push_back(i);
    }
    return values;
  };
  if (random.below(2)) index.sink = size();
  if (random.below(3) == 0) index.bottom = size();
  if (random.below(2)) index.columns = sorted(10);
  const int64_t kind = random.below(3);
  if (kind == 0) {
    index.stride = static_cast<int32_t>(1 + random.below(40));
    const auto phase = [&] {
      return static_cast<int32_t>(random.below(2) ? random.below(index.stride) : -1);
    };
    index.vertical = phase();
    index.slash = phase();
    index.horizontal = phase();
    if (random.below(3) == 0) index.local = size();
    if (random.below(4) == 0) index.segment = 1 + size();
  } else {
    if (kind == 1) index.slashes = sorted(8);
    if (random.below(2)) index.local = size();
    if (random.below(3) == 0) index.segment = 1 + size();
  }
  return index;
}

// What one query asks for by the definition, before its tile adds what its neighbours ask for.
bool asks(const Region& region, const LineIndex& index, size_t query, size_t key) {
  const int64_t c = region.query_coordinates[query];
  const int64_t j = region.row_coordinates[key];
  if (index.everything || query + static_cast<size_t>(index.bottom) >= region.queries.size()) {
    return true;
  }
  const auto within = [](const std::vector<int32_t>& list, int64_t value) {
    return std::find(list.begin(), list.end(), value) != list.end();
  };
  return static_cast<int64_t>(key) < index.sink || c - j < index.local ||
         (index.segment > 0 && c / index.segment == j / index.segment) ||
         within(index.columns, j) || within(index.slashes, c - j) ||
         (index.vertical >= 0 && j % index.stride == index.vertical) ||
         (index.slash >= 0 && (c - j) % index.stride == index.slash) ||
         (index.horizontal >= 0 && c % index.stride == index.horizontal);
}

std::vector<uint8_t> brute_force(const Problem& problem, Boundary boundary,
                                 const LineIndex& index) {
  std::vector<uint8_t> mask(static_cast<size_t>(problem.shape.queries * problem.rows()));
  for (const Region& region : cut_regions(boundary, problem.queries(), problem.memory())) {
    for (const auto& tile : group_queries(region, index)) {
      for (const int32_t q : tile) {
        const int64_t query = region.queries[static_cast<size_t>(q)];
        for (size_t key = 0; key < region.rows.size(); ++key) {
          if (!testing::causal(problem, query, region.rows[key])) continue;
          // A neighbour asks for keys it could see itself, and for nothing later.
          for (const int32_t other : tile) {
            if (region.row_coordinates[key] <=
                    region.query_coordinates[static_cast<size_t>(other)] &&
                asks(region, index, static_cast<size_t>(other), key)) {
              mask[static_cast<size_t>(query * problem.rows() + region.rows[key])] = 1;
              break;
            }
          }
        }
      }
    }
  }
  return mask;
}

Plan plan_of(const Problem& problem, Boundary boundary, const LineIndex& index) {
  PlanBuilder builder(problem.queries(), problem.memory());
  for (const Region& region : cut_regions(boundary, problem.queries(), problem.memory())) {
    add_line_tiles(builder, region, index, 0);
  }
  return builder.take();
}

TEST(LinePlan, ExpandsToTheDefinitionOverAnyInterleaving) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 40; ++round) {
    Problem problem = make_problem(random, {.queries = 1 + random.below(300),
                                            .earlier = random.below(200),
                                            .head_size = 1,
                                            .gaps = random.below(2) * 0.3});
    testing::mix_modalities(random, problem, 1 + static_cast<int>(random.below(4)),
                            1 + random.below(60));
    const LineIndex index = random_index(random, problem.rows());
    for (const Boundary boundary : boundaries) {
      const Plan plan = plan_of(problem, boundary, index);
      validate(plan, problem.queries(), problem.memory());
      // Equal to a mask of zeros and ones: the right keys, and each at most once.
      ASSERT_EQ(expand(plan, problem.queries(), problem.memory(), 0),
                brute_force(problem, boundary, index))
          << "round " << round << " boundary " << boundary_name(boundary);
    }
  }
}

TEST(LinePlan, EveryQueryOfARegionIsInOneTile) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 50; ++round) {
    Problem problem = make_problem(random, {.queries = 1 + random.below(400), .head_size = 1});
    testing::mix_modalities(random, problem, 4, 30);
    const LineIndex index = random_index(random, problem.rows());
    for (const Boundary boundary : boundaries) {
      for (const Region& region : cut_regions(boundary, problem.queries(), problem.memory())) {
        std::vector<int32_t> seen;
        for (const auto& tile : group_queries(region, index)) {
          EXPECT_TRUE(std::is_sorted(tile.begin(), tile.end()));
          seen.insert(seen.end(), tile.begin(), tile.end());
        }
        std::sort(seen.begin(), seen.end());
        std::vector<int32_t> wanted;
        for (size_t i = 0; i < region.queries.size(); ++i) {
          if (region.query_coordinates[i] >= 0) wanted.push_back(static_cast<int32_t>(i));
        }
        EXPECT_EQ(seen, wanted);
      }
    }
  }
}

TEST(LinePlan, SelectingEverythingIsDenseToTheLastBit) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  Problem problem = make_problem(
      random, {.queries = 500, .earlier = 77, .heads = 2, .kv_heads = 1, .head_size = 72});
  testing::mix_modalities(random, problem, 3, 40);
  const auto run = [&](const Plan& plan) {
    std::vector<float> out(static_cast<size_t>(problem.out_shape().elements()));
    run_plan(Context(pool), plan, problem.queries(), problem.memory(), problem.scale,
             TensorView::of(out.data(), problem.out_shape()));
    return out;
  };
  const auto dense = run(dense_plan(problem.queries(), problem.memory()));
  std::vector<LineIndex> indexes(6);
  indexes[0].everything = true;
  indexes[1].local = 1000;
  indexes[2].stride = 1;
  indexes[2].vertical = 0;
  indexes[3].stride = 1;
  indexes[3].slash = 0;
  indexes[4].bottom = 500;
  indexes[5].slashes.resize(600);
  std::iota(indexes[5].slashes.begin(), indexes[5].slashes.end(), 0);
  for (const LineIndex& index : indexes) {
    for (const Boundary boundary : {Boundary::none, Boundary::query}) {
      PlanBuilder builder(problem.queries(), problem.memory());
      for (const Region& region : cut_regions(boundary, problem.queries(), problem.memory())) {
        add_line_tiles(builder, region, index, 0);
        add_line_tiles(builder, region, index, 1);
      }
      const auto out = run(builder.take());
      EXPECT_EQ(std::memcmp(out.data(), dense.data(), dense.size() * sizeof(float)), 0);
    }
    // Key boundaries change the order of summation, hence the last bits and nothing else.
    for (const Boundary boundary : {Boundary::key, Boundary::both}) {
      PlanBuilder builder(problem.queries(), problem.memory());
      for (const Region& region : cut_regions(boundary, problem.queries(), problem.memory())) {
        add_line_tiles(builder, region, index, 0, 2);
      }
      const auto out = run(builder.take());
      EXPECT_LT(testing::relative_error(std::span<const float>(out), std::span<const float>(dense)),
                2e-6);
    }
  }
}

TEST(LinePlan, GridNeedsNoGatherInAnUnbrokenRun) {
  KINORA_FRESH_RANDOM(random);
  const Problem problem = make_problem(random, {.queries = 1000, .head_size = 1});
  LineIndex index;
  index.sink = 4;
  index.stride = 64;
  index.vertical = 3;
  index.slash = 0;
  index.horizontal = 3;
  const Plan plan = plan_of(problem, Boundary::none, index);
  EXPECT_TRUE(plan.gathered.empty());
}

// Every 16th key back and the nearest 16: what a query asks for is 1/16 of the keys and a little,
// and what its tile adds must not grow beyond a band of `comb_tile` strides.
TEST(LinePlan, AStridedPatternOfAdjacentFramesStaysSparse) {
  KINORA_FRESH_RANDOM(random);
  const Problem problem = make_problem(random, {.queries = 4096, .head_size = 1});
  LineIndex index;
  index.local = 16;
  index.stride = 16;
  index.slash = 0;
  const Plan plan = plan_of(problem, Boundary::none, index);
  EXPECT_TRUE(plan.gathered.empty());
  const auto pairs = static_cast<double>(attended_pairs(plan, problem.queries(), problem.memory()));
  const auto dense = static_cast<double>(dense_pairs(1, problem.queries(), problem.memory()));
  EXPECT_LT(pairs / dense, 1.0 / 16 + 1.0 * comb_tile * 16 / 4096 + 0.01);
}

TEST(LinePlan, RefusesNonsense) {
  KINORA_FRESH_RANDOM(random);
  const Problem problem = make_problem(random, {.queries = 10, .head_size = 1});
  LineIndex zero_stride;
  zero_stride.vertical = 0;
  EXPECT_THROW(plan_of(problem, Boundary::none, zero_stride), Error);
  LineIndex phase;
  phase.stride = 4;
  phase.slash = 4;
  EXPECT_THROW(plan_of(problem, Boundary::none, phase), Error);
  LineIndex negative;
  negative.local = -1;
  EXPECT_THROW(plan_of(problem, Boundary::none, negative), Error);
  EXPECT_THROW(parse_boundary("diagonal"), Error);
}

}  // namespace
}  // namespace kinora
