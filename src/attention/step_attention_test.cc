// Decoding steps of several sequences at once against the definition, in double precision.
#include "attention/step_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "attention/row_sets_test_support.h"
#include "base/error.h"

namespace kinora {
namespace {

using testing::causal;
using testing::error_of;
using testing::Expected;
using testing::f32_tolerance;
using testing::make_problem;
using testing::PlacedProblem;
using testing::Problem;
using testing::reference;

// Sequences that all read a beginning of the same rows, each a row of its own and perhaps some that
// a list names. Query i of the problem is the step of sequence i.
struct Conversations {
  Problem problem;
  std::vector<int64_t> shared;               // rows [0, n) of each
  std::vector<std::vector<int32_t>> listed;  // or these, in any order
  int64_t list_begin = 0;                    // where listed rows begin
  bool weighted = false;

  Conversations(Random& random, int64_t sequences, int64_t rows, int64_t heads, int64_t kv_heads,
                int64_t head_size, DType dtype)
      : problem(make_problem(random, {.queries = sequences,
                                      .earlier = rows + 70,
                                      .heads = heads,
                                      .kv_heads = kv_heads,
                                      .head_size = head_size,
                                      .dtype = dtype,
                                      .gaps = 0.2})),
        list_begin(rows),
        weighted(random.below(2) == 0) {
    if (weighted) testing::weigh_rows(random, problem);
    const int64_t shorter = 1 + random.below(rows);
    for (int64_t i = 0; i < sequences; ++i) {
      shared.push_back(random.below(3) == 0 ? shorter : rows);
      listed.emplace_back();
      if (random.below(2) == 0) continue;
      listed.back().resize(static_cast<size_t>(1 + random.below(70)));
      std::iota(listed.back().begin(), listed.back().end(), 0);
      testing::shuffle(random, listed.back());
    }
  }

  Expected expected() const {
    return reference(problem, [&](int64_t i, int64_t, int64_t row) {
      const auto& list = listed[static_cast<size_t>(i)];
      if (row < shared[static_cast<size_t>(i)] || row == problem.shape.earlier + i) return true;
      return std::find(list.begin(), list.end(), row - list_begin) != list.end();
    });
  }
};

class PlacedConversations {
 public:
  explicit PlacedConversations(const Conversations& all)
      : all_(all), placed_(all.problem, Device::cpu()) {
    const RowSet memory = placed_.memory();
    const auto rows = [&](int64_t begin, int64_t count) {
      RowSet set{memory.keys.rows(begin, count), memory.values.rows(begin, count),
                 memory.ordinals.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
                 memory.modalities.subspan(static_cast<size_t>(begin), static_cast<size_t>(count))};
      if (all_.weighted) set.weights = memory.weights.rows(begin, count);
      return set;
    };
    for (size_t i = 0; i < all.shared.size(); ++i) {
      sets_.push_back({rows(0, all.shared[i])});
      const std::vector<int32_t>& list = all.listed[i];
      const auto count = static_cast<int64_t>(list.size());
      if (count > 0) {
        RowSet set = rows(all.list_begin, 70);
        set.list = ConstTensorView::of(list.data(), {count});
        set.ordinals = set.ordinals.first(list.size());  // how many there are is all that matters
        set.modalities = set.modalities.first(list.size());
        if (all_.weighted) {
          weights_.emplace_back(DType::f32, Shape{count});
          for (int64_t k = 0; k < count; ++k) {
            const auto at = static_cast<size_t>(all.list_begin + list[static_cast<size_t>(k)]);
            weights_.back().data<float>()[k] = all.problem.weights[at];
          }
          set.weights = weights_.back();
        }
        sets_.back().push_back(set);
      }
      sets_.back().push_back(rows(all.problem.shape.earlier + static_cast<int64_t>(i), 1));
    }
  }

  size_t count() const { return sets_.size(); }
  void add(size_t i, StepAttention& steps) {
    const QueryView query = slice(placed_.queries(), static_cast<int64_t>(i), 1);
    ASSERT_TRUE(StepAttention::takes(query, sets_[i]));
    steps.add(query, sets_[i], placed_.out().rows(static_cast<int64_t>(i), 1));
  }
  std::vector<float> result() const { return placed_.result(); }

 private:
  const Conversations& all_;
  PlacedProblem placed_;
  std::vector<Tensor> weights_;
  std::vector<std::vector<RowSet>> sets_;
};

std::vector<float> together(const Conversations& all, int threads) {
  const ThreadPool pool(threads);
  PlacedConversations placed(all);
  StepAttention steps;
  for (size_t i = 0; i < placed.count(); ++i) placed.add(i, steps);
  steps.run(Context(pool), all.problem.scale);
  return placed.result();
}

std::vector<float> one_by_one(const Conversations& all) {
  const ThreadPool pool(1);
  PlacedConversations placed(all);
  StepAttention steps;
  for (size_t i = 0; i < placed.count(); ++i) {
    placed.add(i, steps);
    steps.run(Context(pool), all.problem.scale);
  }
  return placed.result();
}

class StepAttentionTest : public ::testing::TestWithParam<std::tuple<int64_t, DType>> {};

TEST_P(StepAttentionTest, MatchesTheDefinition) {
  KINORA_FRESH_RANDOM(random);
  const auto [head_size, dtype] = GetParam();
  constexpr int64_t head_counts[][2] = {{1, 1}, {4, 2}, {6, 2}, {7, 1}, {40, 1}};
  constexpr int64_t row_counts[] = {1, 63, 65, 127, 511, 512, 513, 1100};
  for (const int64_t sequences : {1, 2, 3, 11, 20}) {
    const auto& heads = head_counts[random.below(5)];
    const Conversations all(random, sequences, row_counts[random.below(8)], heads[0], heads[1],
                            head_size, dtype);
    SCOPED_TRACE(std::to_string(sequences) + " sequences, " + std::to_string(heads[0]) + " on " +
                 std::to_string(heads[1]) + " heads, " + std::to_string(all.list_begin) + " rows");
    const std::vector<float> result = together(all, 3);
    const Expected expected = all.expected();
    EXPECT_LE(error_of(result, expected.out), f32_tolerance(expected));
    EXPECT_EQ(result, one_by_one(all));
    EXPECT_EQ(result, together(all, 1));
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, StepAttentionTest,
                         ::testing::Combine(::testing::Values(1, 16, 37, 64, 129),
                                            ::testing::Values(DType::f32, DType::bf16,
                                                              DType::f16)));

TEST(StepAttention, LeavesAloneWhatIsMoreThanAStep) {
  KINORA_FRESH_RANDOM(random);
  const Problem problem = make_problem(random, {.queries = 2, .earlier = 9});
  const std::vector<RowSet> sets{problem.memory()};
  EXPECT_FALSE(StepAttention::takes(problem.queries(), sets)) << "two queries";
  EXPECT_FALSE(StepAttention::takes(slice(problem.queries(), 0, 1), sets)) << "a later row";
  EXPECT_TRUE(StepAttention::takes(slice(problem.queries(), 1, 1), sets));
  std::vector<RowSet> served = sets;
  const std::vector<int32_t> other{1}, first{0};
  served[0].serves = other;
  EXPECT_FALSE(StepAttention::takes(slice(problem.queries(), 1, 1), served));
  served[0].serves = first;
  EXPECT_TRUE(StepAttention::takes(slice(problem.queries(), 1, 1), served));
}

TEST(StepAttention, RefusesWhatDoesNotFit) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(1);
  const Problem problem = make_problem(random, {.earlier = 9, .heads = 2, .kv_heads = 1});
  const Problem other = make_problem(random, {.earlier = 9, .heads = 4, .kv_heads = 2});
  const std::vector<RowSet> sets{problem.memory()}, others{other.memory()};
  std::vector<RowSet> empty{problem.memory()};
  empty[0].keys = empty[0].keys.rows(0, 0);
  empty[0].values = empty[0].keys;
  Tensor out(DType::f32, problem.out_shape()), wide(DType::f32, other.out_shape());
  StepAttention steps;
  EXPECT_THROW(steps.add(problem.queries(), sets, wide), Error);
  EXPECT_THROW(steps.add(problem.queries(), empty, out), Error);
  EXPECT_THROW(steps.add(problem.queries(), {}, out), Error);
  steps.add(problem.queries(), sets, out);
  EXPECT_THROW(steps.add(other.queries(), others, wide), Error) << "another model";
  // What was refused changes nothing for the others.
  steps.run(Context(pool), problem.scale);
  const Expected expected =
      reference(problem, [&](int64_t q, int64_t, int64_t row) { return causal(problem, q, row); });
  EXPECT_LE(error_of(testing::floats_of(out), expected.out), f32_tolerance(expected));
}

}  // namespace
}  // namespace kinora
