// The mass of rows against the definition, in double precision, over any sets of rows. What a
// decoder adds up on either device is compared in model/decoder/row_mass_test.cc.
#include "attention/row_mass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/row_sets_test_support.h"
#include "base/error.h"

namespace kinora {
namespace {

using testing::Dealt;
using testing::Expected;
using testing::PlacedProblem;
using testing::PlacedSets;
using testing::Problem;

// share[(query · heads + head) · ordinals + ordinal] of the attention of a query and head.
struct Shares {
  int64_t heads = 0, ordinals = 0;
  std::vector<double> values;

  Shares(const Problem& problem, const Dealt& dealt) {
    const auto& shape = problem.shape;
    const Expected expected = dealt.expected(problem);
    heads = shape.heads;
    ordinals = problem.row_ordinals.back() + 1;
    values.resize(static_cast<size_t>(shape.queries * heads * ordinals));
    for (int64_t q = 0; q < shape.queries; ++q) {
      for (int64_t row = 0; row < problem.rows(); ++row) {
        if (!dealt.reads(problem, q, row)) continue;
        for (int64_t h = 0; h < heads; ++h) add(problem, expected, q, row, h);
      }
    }
  }
  double at(int64_t query, int64_t head, int64_t ordinal) const {
    return values[static_cast<size_t>((query * heads + head) * ordinals + ordinal)];
  }

 private:
  void add(const Problem& problem, const Expected& expected, int64_t q, int64_t row, int64_t h) {
    const auto& shape = problem.shape;
    const int64_t kv = h / (shape.heads / shape.kv_heads);
    const float* query = problem.query_data.data() + (q * heads + h) * shape.head_size;
    const float* key = problem.key_data.data() + (row * shape.kv_heads + kv) * shape.head_size;
    double score = 0;
    for (int64_t c = 0; c < shape.head_size; ++c) score += double{query[c]} * double{key[c]};
    score *= double{problem.scale};
    const auto place = static_cast<size_t>(row);
    if (!problem.weights.empty()) score += std::log(double{problem.weights[place]});
    const double log_sum = expected.log_sum[static_cast<size_t>(q * heads + h)];
    values[static_cast<size_t>((q * heads + h) * ordinals + problem.row_ordinals[place])] =
        std::exp(score - log_sum);
  }
};

void expect_near(double actual, double expected, int64_t ordinal) {
  ASSERT_NEAR(actual, expected, 2e-5 * (1 + expected)) << "ordinal " << ordinal;
}

class RowMassTest : public ::testing::Test {
 protected:
  ThreadPool pool_{2};
  Context context_{pool_};
};

TEST_F(RowMassTest, IsTheShareOfEveryRow) {
  KINORA_FRESH_RANDOM(random);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::i8, DType::u8}) {
    for (const int64_t queries : {1, 7, 64, 70}) {
      const std::vector<int64_t> sizes = testing::random_sizes(random, queries);
      Problem problem = testing::random_problem(random, queries, 37, dtype, sizes);
      Dealt dealt = testing::deal(random, problem, sizes);
      if (random.below(2) == 0) testing::mark_sets(random, problem, dealt);
      const Shares shares(problem, dealt);
      PlacedProblem placed(problem, Device::cpu());
      const PlacedSets sets(problem, dealt, Device::cpu());
      const uint64_t chosen =
          random.below(2) == 0 ? all_heads : 1 + (random.next() & ((1u << shares.heads) - 1));
      const LayerHeads asked{3, chosen};
      const int64_t counted = 1 + random.below(queries);
      RowMass together(Device::cpu(), {asked}, shares.heads);
      RowMass apart(Device::cpu(), {asked}, shares.heads, true);
      for (RowMass* mass : {&together, &apart}) {
        mass->begin(context_, placed.queries());
        for (int times = 0; times < 2; ++times) {  // is added to
          add_mass(context_, 3, placed.queries(), sets.sets(), problem.scale, counted, *mass);
        }
        ASSERT_EQ(mass->rows(), shares.ordinals);
      }
      const std::vector<float> sum = together.values(context_), by_head = apart.values(context_);
      for (int64_t row = 0; row < shares.ordinals; ++row) {
        double all = 0;
        for (int64_t head = 0; head < shares.heads; ++head) {
          double here = 0;
          for (int64_t q = queries - counted; q < queries && asked.has(head); ++q) {
            here += 2 * shares.at(q, head, row);
          }
          expect_near(by_head[static_cast<size_t>(head * shares.ordinals + row)], here, row);
          all += here;
        }
        expect_near(sum[static_cast<size_t>(row)], all, row);
      }
    }
  }
}

// Only what was accepted counts, and its rows become those of a chain.
TEST_F(RowMassTest, OfATreeWaitsForWhatIsAccepted) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t queries : {1, 7, 64, 90}) {
    const std::vector<int64_t> sizes = testing::random_sizes(random, queries);
    const Problem problem = testing::random_problem(random, queries, 37, DType::f32, sizes);
    Dealt dealt = testing::deal(random, problem, sizes);
    dealt.parents = testing::random_parents(random, queries);
    const Shares shares(problem, dealt);
    PlacedProblem placed(problem, Device::cpu());
    const PlacedSets sets(problem, dealt, Device::cpu());
    const QueryView view = testing::with_parents(placed.queries(), dealt.parents);
    RowMass mass(Device::cpu(), {{0}}, shares.heads);
    mass.begin(context_, view);
    add_mass(context_, 0, view, sets.sets(), problem.scale, queries, mass);
    for (const float value : mass.values(context_)) ASSERT_EQ(value, 0);
    std::vector<int32_t> path;
    for (auto node = static_cast<int32_t>(random.below(queries)); node >= 0;
         node = dealt.parents[static_cast<size_t>(node)]) {
      path.insert(path.begin(), node);
    }
    mass.accept(context_, path);
    const int64_t begin = problem.query_ordinals.front();
    ASSERT_EQ(mass.rows(), begin + std::ssize(path));
    const std::vector<float> values = mass.values(context_);
    for (int64_t row = 0; row < mass.rows(); ++row) {
      const int64_t from = row < begin ? row : begin + path[static_cast<size_t>(row - begin)];
      double sum = 0;
      for (const int32_t query : path) {
        for (int64_t head = 0; head < shares.heads; ++head) sum += shares.at(query, head, from);
      }
      expect_near(values[static_cast<size_t>(row)], sum, row);
    }
  }
}

TEST_F(RowMassTest, KeepsItsNumbersWhileRowsGrow) {
  KINORA_FRESH_RANDOM(random);
  std::vector<float> keys;
  RowMass mass(Device::cpu(), {{2}}, 1, true);
  std::vector<int32_t> ordinals;
  std::vector<Modality> modalities;
  double expected_first = 0;
  for (int32_t i = 0; i < 3000; ++i) {
    ordinals.push_back(i);
    modalities.push_back(Modality::text);
    keys.assign(ordinals.size(), 0.0f);
    const Shape shape{std::ssize(keys), 1, 1};
    const float query = static_cast<float>(random.uniform());
    const auto newest = std::span(ordinals).last(1);
    const QueryView view{ConstTensorView::of(&query, {1, 1, 1}), newest,
                         std::span(modalities).last(1)};
    const std::vector<RowSet> sets{{ConstTensorView::of(keys.data(), shape),
                                    ConstTensorView::of(keys.data(), shape), ordinals, modalities}};
    mass.begin(context_, view);
    if (i % 100 != 0) continue;
    add_mass(context_, 2, view, sets, 1.0f, 1, mass);  // equal shares
    expected_first += 1.0 / (i + 1);
  }
  const std::vector<float> all = mass.values(context_);
  EXPECT_NEAR(all[0], expected_first, 1e-5);
  EXPECT_NEAR(std::accumulate(all.begin(), all.end(), 0.0), 30.0, 1e-3);
}

TEST_F(RowMassTest, RefusesMisuse) {
  KINORA_FRESH_RANDOM(random);
  Problem problem = testing::make_problem(random, {.queries = 5, .earlier = 4, .head_size = 8});
  PlacedProblem placed(problem, Device::cpu());
  const QueryView queries = placed.queries();
  const std::vector<RowSet> sets{placed.memory()};
  EXPECT_THROW(RowMass(Device::cpu(), {{1}, {1}}, 4), Error);
  EXPECT_THROW(RowMass(Device::cpu(), {{2}, {1}}, 4), Error);
  RowMass mass(Device::cpu(), {{1}}, problem.shape.heads);
  EXPECT_THROW(add_mass(context_, 1, queries, sets, 1.0f, 5, mass), Error);  // not begun
  mass.begin(context_, queries);
  EXPECT_THROW(add_mass(context_, 0, queries, sets, 1.0f, 5, mass), Error);  // nobody asked
  EXPECT_THROW(add_mass(context_, 1, queries, sets, 1.0f, 6, mass), Error);
  EXPECT_THROW(mass.accept(context_, std::vector<int32_t>{0}), Error);  // a chain
  const std::vector<int32_t> parents{-1, 0, 0, 1, 1};
  mass.begin(context_, testing::with_parents(queries, parents));
  EXPECT_THROW(mass.accept(context_, std::vector<int32_t>{5}), Error);
}

}  // namespace
}  // namespace kinora
