// Plans on a GPU over rows that weigh more or less than one, and plans whose result joins attention
// over other rows that is there already.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/cuda/device_test_support.h"
#include "attention/policies/dense.h"

namespace kinora {
namespace {

using testing::allowed;
using testing::error_of;
using testing::Expected;
using testing::make_problem;
using testing::OnGpu;
using testing::PlacedProblem;
using testing::Problem;

using CudaWeightedRows = OnGpu;

// f32 and odd sizes take the plain kernel, bf16 the one for tensor cores of any card.
struct Kind {
  int64_t head_size;
  DType type;
};
constexpr Kind kinds[] = {{128, DType::bf16}, {64, DType::bf16}, {80, DType::bf16},
                          {33, DType::bf16},  {128, DType::f32}, {40, DType::f32}};

Problem random_problem(Random& random, const Kind& kind, int64_t queries, int64_t earlier) {
  Problem problem = make_problem(random, {.queries = queries,
                                          .earlier = earlier,
                                          .heads = 6,
                                          .kv_heads = 2,
                                          .head_size = kind.head_size,
                                          .dtype = kind.type,
                                          .gaps = 0.1});
  if (kind.type == DType::bf16) testing::narrow_queries(problem);
  return problem;
}

double limit_of(const Kind& kind, const Expected& expected) {
  return kind.type == DType::bf16 ? allowed(expected) : 3e-6;
}

void expect_state(PlacedProblem& placed, const Expected& expected) {
  const auto max = placed.max(), sum = placed.sum();
  for (size_t i = 0; i < max.size(); ++i) {
    if (std::isinf(expected.log_sum[i])) {
      EXPECT_EQ(sum[i], 0);
      EXPECT_EQ(max[i], -std::numeric_limits<float>::infinity());
    } else {
      EXPECT_NEAR(max[i] + std::log(sum[i]), expected.log_sum[i], 1e-3);
    }
  }
}

TEST_F(CudaWeightedRows, CountAsManyRows) {
  KINORA_FRESH_RANDOM(random);
  for (const Kind& kind : kinds) {
    for (const int64_t queries : {1, 90}) {
      Problem problem = random_problem(random, kind, queries, 700);
      testing::weigh_rows(random, problem);
      const Plan plan = testing::random_plan(random, problem);
      const Expected expected = testing::reference_of(problem, plan);
      PlacedProblem placed(problem, device_, kind.type);
      run_plan(placed.context(pool_), plan, placed.queries(), placed.memory(), problem.scale,
               placed.out(), {.state = placed.state()});
      SCOPED_TRACE(std::to_string(kind.head_size) + ' ' + std::string(dtype_name(kind.type)) + ' ' +
                   std::to_string(queries));
      EXPECT_LE(error_of(placed.result(), expected.out), limit_of(kind, expected));
      expect_state(placed, expected);
    }
  }
}

TEST_F(CudaWeightedRows, CountInDenseAttention) {
  KINORA_FRESH_RANDOM(random);
  for (const Kind& kind : kinds) {
    for (const int64_t queries : {1, 130}) {
      Problem problem = random_problem(random, kind, queries, 900);
      testing::weigh_rows(random, problem);
      const Expected expected = testing::reference(problem, [&](int64_t q, int64_t, int64_t row) {
        return testing::causal(problem, q, row);
      });
      PlacedProblem placed(problem, device_, kind.type, kind.type);
      DenseAttention().attend(placed.context(pool_), 0, placed.queries(), placed.memory(),
                              problem.scale, placed.out());
      EXPECT_LE(error_of(placed.result(), expected.out), limit_of(kind, expected))
          << kind.head_size << ' ' << dtype_name(kind.type) << ' ' << queries;
    }
  }
}

// A plan over some rows, then one over the others onto its result: attention over both. Queries
// that one of them leaves out keep what the other gave.
TEST_F(CudaWeightedRows, RunsOntoTheResultOfOtherRows) {
  KINORA_FRESH_RANDOM(random);
  for (const Kind& kind : kinds) {
    for (const bool weighted : {false, true}) {
      for (const int64_t queries : {2, 200}) {
        Problem problem = random_problem(random, kind, queries, 1500);
        if (weighted) testing::weigh_rows(random, problem);
        const int64_t half = problem.rows() / 2;
        // Every row is in one of the two; the second has two passes and fewer queries.
        const auto plan_of = [&](bool second) {
          PlanBuilder builder(problem.queries(), problem.memory());
          for (int head = 0; head < 6; ++head) {
            for (int32_t pass = 0; pass < (second ? 2 : 1); ++pass) {
              builder.begin_queries();
              builder.add_query_range(second ? 1 : 0, queries);
              builder.begin_segments();
              if (!second) {
                builder.add_rows(0, half);
              } else if (pass == 0) {
                builder.add_rows(half, (problem.rows() - half + 1) / 2, 2);
              } else {
                builder.add_rows(half + 1, (problem.rows() - half) / 2, 2);
              }
              builder.add_tile(head, 1, pass);
            }
          }
          return builder.take();
        };
        const Expected expected = testing::reference(problem, [&](int64_t q, int64_t, int64_t row) {
          return testing::causal(problem, q, row) && (row < half || q >= 1);
        });
        PlacedProblem placed(problem, device_, kind.type);
        run_plan(placed.context(pool_), plan_of(false), placed.queries(), placed.memory(),
                 problem.scale, placed.out(), {.state = placed.state()});
        run_plan(placed.context(pool_), plan_of(true), placed.queries(), placed.memory(),
                 problem.scale, placed.out(), {.state = placed.state(), .onto = true});
        SCOPED_TRACE(std::to_string(kind.head_size) + ' ' + std::string(dtype_name(kind.type)) +
                     ' ' + std::to_string(queries) + ' ' + std::to_string(weighted));
        EXPECT_LE(error_of(placed.result(), expected.out), limit_of(kind, expected));
        expect_state(placed, expected);
      }
    }
  }
}

}  // namespace
}  // namespace kinora
