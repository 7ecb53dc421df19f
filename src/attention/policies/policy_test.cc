#include "attention/policies/policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "attention/policies/dense.h"
#include "attention/search/metrics.h"
#include "attention/search/search.h"
#include "attention/test_support.h"
#include "base/error.h"

namespace kinora {
namespace {

using testing::make_problem;
using testing::Problem;

// For one layer of two heads of 16.
std::shared_ptr<const HeadTable> a_shape_table(int32_t sink, int32_t local) {
  HeadTable table;
  table.shape = {"m", 1, 2, 1, 16};
  HeadChoice choice;
  choice.patterns.push_back({{}, {}, {.kind = PatternKind::a_shape, .sink = sink, .local = local}});
  table.heads.assign(2, choice);
  return std::make_shared<const HeadTable>(table);
}

TEST(Policy, EveryNameMakesAPolicyThatAttendsLikeItsPlans) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  Problem problem = make_problem(
      random, {.queries = 400, .earlier = 100, .heads = 2, .kv_heads = 1, .head_size = 16});
  testing::mix_modalities(random, problem, 2, 50);
  AttentionOptions options;
  options.sparse.dense_below = 0;
  options.table = a_shape_table(100, 2000);
  for (const std::string_view name : attention_names()) {
    const auto policy = make_attention(name, options);
    EXPECT_EQ(policy->name(), name);
    std::vector<float> out(static_cast<size_t>(problem.out_shape().elements()), NAN);
    policy->attend(context, 0, problem.queries(), problem.memory(), problem.scale,
                   TensorView::of(out.data(), problem.out_shape()));
    for (const float value : out) ASSERT_FALSE(std::isnan(value)) << name;
    auto* sparse = dynamic_cast<SparseAttention*>(policy.get());
    if (name == "dense") continue;
    ASSERT_NE(sparse, nullptr);
    EXPECT_EQ(sparse->report().calls, 1);
    EXPECT_EQ(sparse->report().dense_calls, 0);
    EXPECT_GT(sparse->report().share(), 0.0);
    for (const LabelledPlan& labelled :
         sparse->plans(context, 0, problem.queries(), problem.memory(), problem.scale)) {
      validate(labelled.plan, problem.queries(), problem.memory());
    }
  }
}

// Too few queries to choose for: every policy reads what there is.
TEST(Policy, OneTokenIsReadWhole) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  AttentionOptions options;
  options.sparse.dense_below = 0;
  options.table = a_shape_table(1, 1);
  for (const int64_t queries : {1, 63}) {
    for (const int64_t earlier : {0, 1, 300}) {
      Problem problem = make_problem(
          random,
          {.queries = queries, .earlier = earlier, .heads = 2, .kv_heads = 1, .head_size = 16});
      std::ranges::fill(problem.query_modalities, Modality::video);
      std::ranges::fill(problem.row_modalities, Modality::video);
      const auto dense = testing::reference(problem, [&](int64_t q, int64_t, int64_t row) {
        return testing::causal(problem, q, row);
      });
      for (const std::string_view name : attention_names()) {
        std::vector<float> out(static_cast<size_t>(problem.out_shape().elements()), NAN);
        make_attention(name, options)
            ->attend(context, 0, problem.queries(), problem.memory(), problem.scale,
                     TensorView::of(out.data(), problem.out_shape()));
        EXPECT_LT(testing::relative_error(std::span<const float>(out), std::span(dense.out)), 3e-6)
            << name << ", " << queries << " after " << earlier;
      }
    }
  }
}

// Text at the end of a group is a question: its rows are as dense ones under every policy, and what
// the policy does to the others does not depend on it.
TEST(Policy, TheLastTextOfAGroupReadsEverything) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  Problem problem = make_problem(
      random, {.queries = 500, .earlier = 100, .heads = 4, .kv_heads = 2, .head_size = 16});
  testing::mix_modalities(random, problem, 2, 50);
  const auto dense = testing::reference(
      problem, [&](int64_t q, int64_t, int64_t row) { return testing::causal(problem, q, row); });
  AttentionOptions options;
  options.sparse.dense_below = 0;
  options.frame_stride = 16;
  for (const int64_t tail : {1, 63, 130, 300}) {
    for (size_t i = 0; i < 500; ++i) {
      const auto from_end = static_cast<int64_t>(500 - i);
      if (from_end <= tail) problem.query_modalities[i] = Modality::text;
      if (from_end == tail + 1) problem.query_modalities[i] = Modality::video;
      problem.row_modalities[100 + i] = problem.query_modalities[i];
    }
    const int64_t last = std::min(tail, default_dense_last);
    EXPECT_EQ(last_text(problem.queries(), default_dense_last), last);
    for (const std::string name :
         {"momo:keys=32,window=32,sink=32", "a-shape:sink=100,local=900", "sf-strided",
          "oracle:keys=32,window=32,sink=32", "grid:stride=16,lines=vs+delta"}) {
      const auto run = [&](const std::string& policy, int64_t count) {
        std::vector<float> out(static_cast<size_t>(problem.out_shape().elements()));
        const QueryView queries = slice(problem.queries(), 0, count);
        make_attention(policy, options)
            ->attend(context, 0, queries, problem.memory(), problem.scale,
                     TensorView::of(out.data(), {count, 4, 16}));
        return out;
      };
      const auto out = run(name, 500);
      const auto at = static_cast<size_t>((500 - last) * 4 * 16);
      EXPECT_LT(
          testing::relative_error(std::span(out).subspan(at), std::span(dense.out).subspan(at)),
          3e-6)
          << name;
      EXPECT_GT(testing::relative_error(std::span(out).first(at), std::span(dense.out).first(at)),
                1e-3)
          << name;
      const std::string off = name.substr(0, name.find('+')) +
                              (name.find(':') == std::string::npos ? ":" : ",") + "last=0" +
                              (name.find('+') == std::string::npos ? "" : "+delta");
      const auto without = run(off, 500 - last);
      EXPECT_EQ(std::memcmp(out.data(), without.data(), at * sizeof(float)), 0) << name;
      // What is shown and judged is what was run.
      const auto policy = make_attention(name, options);
      auto& sparse = dynamic_cast<SparseAttention&>(*policy);
      const auto plans = sparse.plans(context, 0, problem.queries(), problem.memory(), 1.0f);
      for (int head = 0; head < 4; ++head) {
        const auto mask = expand(plans.front().plan, problem.queries(), problem.memory(), head);
        for (int64_t q = 500 - last; q < 500; ++q) {
          EXPECT_EQ(std::count(mask.begin() + q * 600, mask.begin() + (q + 1) * 600, 1), q + 101);
        }
      }
    }
  }
}

TEST(Policy, ReadsSettings) {
  AttentionOptions options;
  EXPECT_EQ(make_attention("a-shape:sink=4,local=100", options)->name(), "a-shape");
  EXPECT_EQ(make_attention("grid:stride=64,lines=vs,boundary=query+delta", options)->name(),
            "grid");
  EXPECT_EQ(make_attention(
                "momo:k=64,exact=64,block=64,keys=2048,top-k=tournament,trim=0,rank=mass,delta=0",
                options)
                ->name(),
            "momo");
  EXPECT_EQ(make_attention("oracle:keys=128", options)->name(), "oracle");
  for (const char* bad : {"",
                          "none",
                          "grid:stride",
                          "dense:last=3",
                          "grid:",
                          "grid:stride=4,",
                          "vertical-slash:slashes=1,x=2",
                          "a-shape:sink=1,local=2,x=3",
                          "grid:last=x",
                          "grid:stride=x",
                          "grid:stride=-1",
                          "grid:colour=3",
                          "grid:lines=xyz",
                          "grid:lines=",
                          "grid+sigma",
                          "momo:block=33",
                          "momo:query-stride=0",
                          "a-shape:local=99999999999999999999",
                          "dense:sink=1",
                          "mean-pool:block=1",
                          "sf-fixed:stride=0",
                          "grid:boundary=up",
                          "momo:top-k=bogo",
                          "momo:rank=best",
                          "mminference"}) {
    EXPECT_THROW(make_attention(bad, options), Error) << bad;
  }
  EXPECT_TRUE(needs_table("mminference+delta"));
  EXPECT_FALSE(needs_table("momo"));
}

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
  options.candidates = {{.kind = PatternKind::a_shape, .sink = 128, .local = 1024},
                        {.kind = PatternKind::grid, .sink = 128, .stride = 50, .vertical = true},
                        {.kind = PatternKind::grid, .sink = 128, .vertical = true}};
  EXPECT_EQ(
      search_head(context, problem.queries(), problem.memory(), problem.scale, 0, budget, options)
          .patterns.front()
          .spec.kind,
      PatternKind::dense);  // affordable, and nothing is closer
  HeadTable table;
  table.shape = {"m", 1, 1, 1, 16};
  table.heads.resize(1);
  int found = 0;
  options.grow = false;
  options.slack = 1e15;          // admit every candidate …
  table.budget_seconds = 1e-12;  // … but dense
  SearchAttention search(table, options, [&](int, int, const HeadChoice&) { ++found; });
  std::vector<float> out(static_cast<size_t>(problem.out_shape().elements()), NAN);
  search.attend(context, 0, problem.queries(), problem.memory(), problem.scale,
                TensorView::of(out.data(), problem.out_shape()));
  EXPECT_EQ(found, 1);
  ASSERT_TRUE(table.complete());
  const HeadChoice& choice = *table.at(0, 0);
  EXPECT_EQ(choice.patterns.front().spec, options.candidates[2]);
  EXPECT_GT(choice.recall, 0.95);
  EXPECT_LT(choice.error, 0.3);
  search.attend(context, 0, problem.queries(), problem.memory(), problem.scale,
                TensorView::of(out.data(), problem.out_shape()));
  EXPECT_EQ(found, 1);  // what the table holds is not searched again
  const auto dense = testing::reference(
      problem, [&](int64_t q, int64_t, int64_t row) { return testing::causal(problem, q, row); });
  EXPECT_LT(
      testing::relative_error(std::span<const float>(out), std::span<const double>(dense.out)),
      3e-6);
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
  options.candidates = {{.kind = PatternKind::a_shape, .sink = 128, .local = 2048},
                        {
                            .kind = PatternKind::grid,
                            .sink = 128,
                            .slash = false,
                        }};
  options.candidates[1].vertical = true;
  options.candidates[1].local = 1;  // lines only
  const HeadChoice choice =
      search_head(context, problem.queries(), problem.memory(), problem.scale, 0, 1e-12, options);
  EXPECT_EQ(choice.boundary, Boundary::query);
  ASSERT_EQ(choice.patterns.size(), 2u);
  EXPECT_EQ(choice.patterns[0].query, Modality::text);
  EXPECT_EQ(choice.patterns[0].spec.kind, PatternKind::a_shape);
  EXPECT_EQ(choice.patterns[1].query, Modality::video);
  EXPECT_EQ(choice.patterns[1].spec.kind, PatternKind::grid);
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
    options.candidates = {{.kind = PatternKind::a_shape, .sink = 128, .local = 1024}};
    const HeadChoice small =
        search_head(context, problem.queries(), problem.memory(), problem.scale, 0, 1e-12, options);
    ASSERT_EQ(small.patterns.front().spec.kind, PatternKind::a_shape);
    EXPECT_EQ(small.patterns.front().spec.local, grow ? nominal_length : 1024);
    EXPECT_EQ(small.error < 1e-6, grow);
    // Lines of a grid stay, its band grows.
    options.candidates = {{.kind = PatternKind::grid, .stride = 10, .vertical = true}};
    const HeadChoice grid =
        search_head(context, problem.queries(), problem.memory(), problem.scale, 0, 1e-12, options);
    EXPECT_EQ(grid.patterns.front().spec.stride, 10);
    EXPECT_EQ(grid.patterns.front().spec.local > 0, grow);
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
                          [](const auto& spec) { return spec.kind == PatternKind::a_shape; }),
            1);
  for (const PatternSpec& spec : distinct) check(spec);
}

TEST(Search, SpaceIsTheTable) {
  const auto space = search_space(98);
  EXPECT_EQ(space.size(), 24u);
  for (const PatternSpec& spec : space) check(spec);
}

}  // namespace
}  // namespace kinora
