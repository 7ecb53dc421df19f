#include "attention/search/search.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "attention/test_support.h"
#include "base/error.h"

namespace kinora {
namespace {

using testing::make_problem;
using testing::Problem;

// A head that attends to every 20th key only, whichever modality asks.
Problem grid_problem(Random& random, int64_t count) {
  Problem problem = make_problem(random, {.queries = count, .heads = 1, .head_size = 16});
  for (int64_t row = 0; row < count; ++row) {
    float* key = &problem.key_data[static_cast<size_t>(row * 16)];
    float* query = &problem.query_data[static_cast<size_t>(row * 16)];
    for (int64_t c = 0; c < 16; ++c) query[c] *= 0.1f;
    query[0] = 6;
    key[0] = row % 20 == 7 ? 6.0f : 0.0f;
  }
  problem.scale = 0.25f;
  return problem;
}

TEST(Search, FindsAPlantedGrid) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  const Problem problem = grid_problem(random, 1500);
  SearchOptions options;
  options.frame_stride = 50;
  // Time on a busy machine scatters; what is tested here is the choice, not the clock.
  const double budget = 1e3;
  options.spare = 0;
  options.candidates = {parse_pattern("a-shape:sink=128,local=1024"),
                        parse_pattern("grid:sink=128,stride=50,lines=v"),
                        parse_pattern("grid:sink=128,lines=v")};
  EXPECT_EQ(
      search_head(context, problem.queries(), problem.memory(), problem.scale, 0, budget, options)
          .patterns.front()
          .spec,
      PatternSpec());  // affordable, and nothing is closer
  HeadTable table;
  table.shape = {"m", 1, 1, 1, 16};
  table.heads.resize(1);
  int found = 0;
  options.grow = false;
  options.slack = 1e15;          // admit every candidate …
  table.budget_seconds = 1e-12;  // … but dense
  PatternSearch search(table, options, [&](int, int, const HeadChoice&) { ++found; });
  const RowSet rows[] = {problem.memory()};
  search.see(context, {0, problem.queries(), rows, problem.scale});
  EXPECT_EQ(found, 1);
  ASSERT_TRUE(table.complete());
  const HeadChoice& choice = *table.at(0, 0);
  EXPECT_EQ(choice.patterns.front().spec, options.candidates[2]);
  EXPECT_GT(choice.recall, 0.95);
  EXPECT_LT(choice.error, 0.3);
  search.see(context, {0, problem.queries(), rows, problem.scale});
  EXPECT_EQ(found, 1);  // what the table holds is not searched again
}

TEST(Search, BoundariesWinWhereModalitiesDiffer) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  // Video queries look at every 20th key, text queries at the nearest ones; they alternate.
  Problem problem = grid_problem(random, 1600);
  for (int64_t row = 0; row < 1600; ++row) {
    const bool text = row / 100 % 2 == 1;
    problem.row_modalities[static_cast<size_t>(row)] = text ? Modality::text : Modality::video;
    if (!text) continue;
    float* query = &problem.query_data[static_cast<size_t>(row * 16)];
    query[0] = 0;
    query[1] = 8;
  }
  problem.query_modalities = problem.row_modalities;
  for (int64_t row = 0; row < 1600; ++row) {
    problem.key_data[static_cast<size_t>(row * 16 + 1)] = 0.02f * static_cast<float>(row);
  }
  SearchOptions options;
  options.grow = false;
  options.slack = 1e15;
  options.boundaries = {Boundary::none, Boundary::query};
  options.candidates = {parse_pattern("a-shape:sink=128,local=2048"),
                        parse_pattern("grid:sink=128,local=1,lines=v")};  // lines only
  const HeadChoice choice =
      search_head(context, problem.queries(), problem.memory(), problem.scale, 0, 1e-12, options);
  EXPECT_EQ(choice.boundary, Boundary::query);
  ASSERT_EQ(choice.patterns.size(), 2u);
  EXPECT_EQ(choice.patterns[0].query, Modality::text);
  EXPECT_EQ(choice.patterns[0].spec.kind->name, "a-shape");
  EXPECT_EQ(choice.patterns[1].query, Modality::video);
  EXPECT_EQ(choice.patterns[1].spec.kind->name, "grid");
}

TEST(Search, CandidatesGrowIntoTheBudget) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  const Problem problem = make_problem(random, {.queries = 1000, .head_size = 16});
  SearchOptions options;
  options.boundaries = {Boundary::none};
  options.slack = 1e15;  // however long it takes
  for (const bool grow : {false, true}) {
    options.grow = grow;
    options.candidates = {parse_pattern("a-shape:sink=128,local=1024")};
    const HeadChoice small =
        search_head(context, problem.queries(), problem.memory(), problem.scale, 0, 1e-12, options);
    EXPECT_EQ(
        small.patterns.front().spec,
        parse_pattern("a-shape:sink=128,local=" + std::to_string(grow ? nominal_length : 1024)));
    EXPECT_EQ(small.error < 1e-6, grow);
    // Lines of a grid stay, its band grows.
    options.candidates = {parse_pattern("grid:sink=0,stride=10,lines=v")};
    const HeadChoice grid =
        search_head(context, problem.queries(), problem.memory(), problem.scale, 0, 1e-12, options);
    EXPECT_EQ(to_string(grid.patterns.front().spec), "grid stride 10 -v-");
    EXPECT_EQ(grid.patterns.front().spec != options.candidates.front(), grow);
  }
}

TEST(Search, RefusesSamplesItCannotSearch) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(1);
  const Context context(pool);
  const Problem one = make_problem(random, {.queries = 1, .head_size = 8});
  EXPECT_THROW(search_head(context, one.queries(), one.memory(), 1.0f, 0, 1.0, {}), Error);
  Problem silent = make_problem(random, {.queries = 200, .earlier = 10, .head_size = 8});
  silent.row_modalities[3] = Modality::audio;
  EXPECT_THROW(check_sample(silent.queries(), silent.memory()), Error);
}

TEST(Search, ComparesShapesNotSizesAtOneCost) {
  const auto distinct = distinct_at_one_cost(search_space(98));
  EXPECT_EQ(distinct.size(), 20u);  // one A-shape, and 2,000 + 4,096 lines are 1,000 + 2,048
  EXPECT_EQ(std::count_if(distinct.begin(), distinct.end(),
                          [](const auto& spec) { return spec.kind->name == "a-shape"; }),
            1);
  for (const PatternSpec& spec : distinct) EXPECT_EQ(make_pattern(*spec.kind, spec.sizes), spec);
}

TEST(Search, SpaceIsTheTable) {
  const auto space = search_space(98);
  EXPECT_EQ(space.size(), 24u);
  EXPECT_EQ(space.front(), parse_pattern("grid:sink=128,stride=98,lines=h"));
  EXPECT_EQ(space[6], parse_pattern("grid:sink=128,lines=h"));
  EXPECT_EQ(space[12], parse_pattern("a-shape:sink=128,local=1024"));
  EXPECT_EQ(space.back(), parse_pattern("vertical-slash:verticals=1000,slashes=2500"));
}

}  // namespace
}  // namespace kinora
