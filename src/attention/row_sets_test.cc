// Attention over several sets of rows against the definition over all of them, in double precision.
#include "attention/row_sets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/policies/dense.h"
#include "attention/policies/policy.h"
#include "attention/row_sets_test_support.h"
#include "base/error.h"

namespace kinora {
namespace {

using testing::all_devices;
using testing::deal;
using testing::Dealt;
using testing::error_of;
using testing::expect_state;
using testing::Expected;
using testing::limit_of;
using testing::make_problem;
using testing::mark_sets;
using testing::PlacedProblem;
using testing::PlacedSets;
using testing::Problem;
using testing::random_parents;
using testing::random_problem;
using testing::random_sizes;
using testing::reference;
using testing::with_parents;

void check_sets(const Problem& problem, const Dealt& dealt) {
  const ThreadPool pool(2);
  for (const Device device : all_devices(problem.shape.dtype)) {
    const Expected expected = dealt.expected(testing::read_on(device, problem));
    SCOPED_TRACE(to_string(problem.out_shape()) + ", " + std::to_string(problem.rows()) +
                 " rows in " + std::to_string(dealt.sets.size()) + " sets on " + to_string(device));
    const PlacedSets sets(problem, dealt, device);
    const double limit = limit_of(problem, device, expected);
    PlacedProblem placed(problem, device), through(problem, device);
    const QueryView queries = with_parents(placed.queries(), dealt.parents);
    attend_densely(placed.context(pool), queries, sets.sets(), problem.scale, placed.out(),
                   placed.state());
    EXPECT_LE(error_of(placed.result(), expected.out), limit);
    expect_state(placed, expected, device);
    DenseAttention dense;
    attend_sets(dense, through.context(pool), 0, queries, sets.sets(), problem.scale,
                through.out());
    EXPECT_LE(error_of(through.result(), expected.out), limit);
  }
}

class DealtRows : public ::testing::TestWithParam<std::tuple<int64_t, DType>> {};

TEST_P(DealtRows, MatchTheDefinition) {
  KINORA_FRESH_RANDOM(random);
  const auto [head_size, dtype] = GetParam();
  for (const int64_t queries : {1, 7, 64, 130}) {
    for (const bool tree : {false, true}) {
      const std::vector<int64_t> sizes = random_sizes(random, queries);
      Problem problem = random_problem(random, queries, head_size, dtype, sizes);
      Dealt dealt = deal(random, problem, sizes);
      if (random.below(2) == 0) mark_sets(random, problem, dealt);
      if (tree) dealt.parents = random_parents(random, queries);
      check_sets(problem, dealt);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(RowSets, DealtRows,
                         ::testing::Combine(::testing::Values(16, 37, 64, 128),
                                            ::testing::Values(DType::f32, DType::bf16, DType::f16,
                                                              DType::i8, DType::u8)));

// Rows [begin, begin + count) of a set without a list.
RowSet piece(const RowSet& all, int64_t begin, int64_t count) {
  const auto first = static_cast<size_t>(begin), size = static_cast<size_t>(count);
  RowSet part{all.keys.rows(begin, count), all.values.rows(begin, count),
              all.ordinals.subspan(first, size), all.modalities.subspan(first, size)};
  if (all.weighted()) part.weights = all.weights.rows(begin, count);
  return part;
}

TEST(RowSets, ASetInPiecesIsTheSet) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool weighted : {false, true}) {
      Problem problem = make_problem(random, {.queries = 64,
                                              .earlier = 636,
                                              .heads = 4,
                                              .kv_heads = 2,
                                              .head_size = 64,
                                              .dtype = dtype});
      if (dtype == DType::bf16) testing::narrow_queries(problem);
      if (weighted) testing::weigh_rows(random, problem);
      const Expected expected = reference(problem, [&](int64_t q, int64_t, int64_t row) {
        return testing::causal(problem, q, row);
      });
      for (const Device device : all_devices()) {
        const double limit = limit_of(problem, device, expected);
        PlacedProblem whole(problem, device);
        const std::vector<RowSet> one{whole.memory()};
        attend_densely(whole.context(pool), whole.queries(), one, problem.scale, whole.out());
        const std::vector<float> wide = whole.result();
        const std::vector<double> result(wide.begin(), wide.end());
        EXPECT_LE(error_of(wide, expected.out), limit);
        for (const int64_t pieces : {2, 3, 4}) {
          std::vector<int64_t> ends{0, 700};
          for (int64_t i = 1; i < pieces; ++i) ends.push_back(random.below(701));
          std::sort(ends.begin(), ends.end());
          PlacedProblem placed(problem, device);
          std::vector<RowSet> sets;  // some of them may be empty
          for (size_t i = 0; i + 1 < ends.size(); ++i) {
            sets.push_back(piece(placed.memory(), ends[i], ends[i + 1] - ends[i]));
          }
          attend_densely(placed.context(pool), placed.queries(), sets, problem.scale, placed.out());
          EXPECT_LE(error_of(placed.result(), result), 2 * limit)
              << pieces << " pieces of " << dtype_name(dtype) << " on " << to_string(device);
        }
      }
    }
  }
}

// A tree without branches is a chain.
TEST(RowSets, AChainOfParentsIsAChain) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t queries : {1, 7, 64, 130}) {
    const std::vector<int64_t> sizes = random_sizes(random, queries);
    const Problem problem = random_problem(random, queries, 64, DType::f32, sizes);
    Dealt dealt = deal(random, problem, sizes);
    const Expected chain = dealt.expected(problem);
    for (int32_t i = 0; i < queries; ++i) dealt.parents.push_back(i - 1);
    EXPECT_EQ(dealt.expected(problem).out, chain.out);
    check_sets(problem, dealt);
  }
}

// A policy that chooses rows sees all of them together.
TEST(RowSets, APolicyReadsPlainSetsAsOne) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  Problem problem = make_problem(
      random, {.queries = 400, .earlier = 100, .heads = 2, .kv_heads = 1, .head_size = 16});
  testing::mix_modalities(random, problem, 2, 50);
  AttentionOptions options;
  options.sparse.dense_below = 0;
  const auto dense = testing::reference(problem, [&](int64_t query, int64_t, int64_t row) {
    return testing::causal(problem, query, row);
  });
  for (const std::string& name : attention_point().names()) {
    if (find_attention(name).needs_table) continue;
    const auto attend = [&](std::span<const RowSet> sets) {
      std::vector<float> out(static_cast<size_t>(problem.out_shape().elements()), NAN);
      const auto policy = make_attention(name, options);
      attend_sets(*policy, context, 0, problem.queries(), sets, problem.scale,
                  TensorView::of(out.data(), problem.out_shape()));
      return out;
    };
    const std::vector<RowSet> one{problem.memory()};
    const std::vector<float> joined = attend(one);
    // Dense attention merges what it makes of each set: both ways are off by what f32 may lose.
    const double most = name == "dense" ? 2 * testing::f32_tolerance(dense) : 0.0;
    const std::vector<double> wide(joined.begin(), joined.end());
    for (const int64_t cut : {1, 63, 129, 499}) {
      const std::vector<RowSet> two{piece(problem.memory(), 0, cut),
                                    piece(problem.memory(), cut, problem.rows() - cut)};
      EXPECT_LE(error_of(attend(two), wide), most) << name << ' ' << cut;
    }
  }
}

// A plan over odd rows, then one in two passes over the even ones onto its result. Each leaves out
// queries that the other has.
TEST(RowSets, APlanRunsOntoTheResultOfAnother) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  for (const int64_t queries : {1, 3, 70, 130}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const bool weighted : {false, true}) {
        Problem problem = make_problem(random, {.queries = queries,
                                                .earlier = 2300,
                                                .heads = 4,
                                                .kv_heads = 2,
                                                .head_size = 72,
                                                .dtype = dtype,
                                                .gaps = 0.1});
        if (dtype == DType::bf16) testing::narrow_queries(problem);
        if (weighted) testing::weigh_rows(random, problem);
        const auto in_first = [](int64_t q) { return q % 3 != 1; };
        const auto in_second = [](int64_t q) { return q % 5 != 2; };
        const auto add = [&](PlanBuilder& builder, const auto& member, int64_t begin,
                             int32_t stride, int pass) {
          builder.begin_queries();
          for (int32_t q = 0; q < queries; ++q) {
            if (member(q)) builder.add_query(q);
          }
          builder.begin_segments();
          builder.add_rows(begin, (problem.rows() - begin + stride - 1) / stride, stride);
          for (int head = 0; head < 4; head += 2) builder.add_tile(head, 2, pass);
        };
        PlanBuilder odd(problem.queries(), problem.memory());
        add(odd, in_first, 1, 2, 0);
        const Plan first = odd.take();
        PlanBuilder even(problem.queries(), problem.memory());
        add(even, in_second, 0, 4, 0);
        add(even, in_second, 2, 4, 1);
        const Plan second = even.take();
        const Expected expected = reference(problem, [&](int64_t q, int64_t, int64_t row) {
          return testing::causal(problem, q, row) && (row % 2 == 1 ? in_first(q) : in_second(q));
        });
        for (const Device device : all_devices()) {
          SCOPED_TRACE(std::to_string(queries) + " " + std::string(dtype_name(dtype)) + " " +
                       std::to_string(weighted) + " " + to_string(device));
          PlacedProblem placed(problem, device);
          run_plan(placed.context(pool), first, placed.queries(), placed.memory(), problem.scale,
                   placed.out(), {.state = placed.state()});
          run_plan(placed.context(pool), second, placed.queries(), placed.memory(), problem.scale,
                   placed.out(), {.state = placed.state(), .onto = true});
          EXPECT_LE(error_of(placed.result(), expected.out), limit_of(problem, device, expected));
          expect_state(placed, expected, device);
        }
      }
    }
  }
}

TEST(RowSets, AnyPlanOverWeightedRowsMatchesItsMask) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(3);
  for (const int64_t queries : {1, 2, 63, 130}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Problem problem = make_problem(random, {.queries = queries,
                                              .earlier = 1500,
                                              .heads = 6,
                                              .kv_heads = 2,
                                              .head_size = 37,
                                              .dtype = dtype,
                                              .gaps = 0.1});
      if (dtype == DType::bf16) testing::narrow_queries(problem);
      testing::weigh_rows(random, problem);
      const Plan plan = testing::random_plan(random, problem);
      const Expected expected = testing::reference_of(problem, plan);
      for (const Device device : all_devices()) {
        SCOPED_TRACE(to_string(problem.out_shape()) + " " + to_string(device));
        PlacedProblem placed(problem, device);
        run_plan(placed.context(pool), plan, placed.queries(), placed.memory(), problem.scale,
                 placed.out(), {.state = placed.state()});
        EXPECT_LE(error_of(placed.result(), expected.out), limit_of(problem, device, expected));
        expect_state(placed, expected, device);
      }
    }
  }
}

TEST(RowSets, RefuseMisuse) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(1);
  const Context context(pool);
  Problem problem = make_problem(random, {.queries = 5, .earlier = 4, .head_size = 8});
  PlacedProblem placed(problem, Device::cpu());
  const QueryView queries = placed.queries();
  const auto densely = [&](std::span<const RowSet> sets) {
    attend_densely(context, queries, sets, 1.0f, placed.out());
  };
  EXPECT_THROW(densely({}), Error);
  const std::vector<RowSet> empty{piece(placed.memory(), 0, 0)};
  EXPECT_THROW(densely(empty), Error);

  RowSet weighted = placed.memory();
  const std::vector<float> weights(8, 1.0f);
  weighted.weights = ConstTensorView::of(weights.data(), {8});  // of nine rows
  const std::vector<RowSet> short_weights{weighted};
  EXPECT_THROW(densely(short_weights), Error);

  const Plan plan = dense_plan(queries, placed.memory());
  RunOptions options;
  options.onto = true;
  EXPECT_THROW(run_plan(context, plan, queries, placed.memory(), 1.0f, placed.out(), options),
               Error);
  options.state.max = placed.state().max;
  EXPECT_THROW(run_plan(context, plan, queries, placed.memory(), 1.0f, placed.out(), options),
               Error);
  for (const float value : placed.result()) EXPECT_TRUE(std::isnan(value));
}

}  // namespace
}  // namespace kinora
