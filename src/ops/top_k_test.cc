#include "ops/top_k.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ops/op_test_support.h"

namespace kinora {
namespace {

using namespace testing;

std::vector<Candidate> sorted(const std::vector<float>& values) {
  std::vector<Candidate> all;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isnan(values[i])) all.push_back({static_cast<int32_t>(i), values[i]});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Candidate& a, const Candidate& b) { return a.value > b.value; });
  return all;
}

TEST(TopK, EqualsSortingWithTiesAndNaN) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t n : {1, 2, 63, 65, 129, 5001}) {
    auto values = random_floats(random, n);
    for (float& value : values) {
      value = std::round(value * 8) / 8;  // many equal
      if (n > 2 && random.uniform() < 0.1) value = std::nanf("");
    }
    values[static_cast<size_t>(random.below(n))] = 1.0f;
    auto x = TestTensor::of(values, {n});
    const auto expected = sorted(values);
    for_each_context([&](const Context& context) {
      EXPECT_EQ(argmax(context, x.on(context)), expected[0].index);
      for (const int64_t k : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{64}, n, n + 5}) {
        auto wanted = expected;
        wanted.resize(std::min(wanted.size(), static_cast<size_t>(k)));
        EXPECT_EQ(top_k(context, x.on(context), k), wanted) << "k " << k << " of " << n;
      }
    });
  }
}

TEST(TopK, OfManyRowsIsThatOfEachWithItsMass) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t rows : {1, 3, 31}) {
    for (const int64_t n : {1, 65, 5001, 20'011}) {
      auto values = random_floats(random, rows * n, 3);
      for (float& value : values) {
        if (n == 5001) value = std::round(value * 4) / 4;  // many are equal
        if (n > 1 && random.uniform() < 0.05) value = std::nanf("");
      }
      if (rows > 1) std::fill_n(values.begin() + n, n, std::nanf(""));  // nothing left of one row
      auto x = TestTensor::of(values, {rows, n});
      for_each_context([&](const Context& context) {
        const ConstTensorView there = x.on(context);
        for (const int64_t k : {0, 1, 8, 63, 64, 65, 200}) {
          const std::vector<RankedRow> ranked = top_k_rows(context, there, k);
          ASSERT_EQ(std::ssize(ranked), rows);
          for (int64_t row = 0; row < rows; ++row) {
            const std::vector<float> own(values.begin() + row * n, values.begin() + (row + 1) * n);
            auto wanted = sorted(own);
            double mass = 0;
            for (const Candidate& one : wanted) {
              mass += std::exp(double{one.value} - double{wanted[0].value});
            }
            wanted.resize(std::min(wanted.size(), static_cast<size_t>(k)));
            const RankedRow& actual = ranked[static_cast<size_t>(row)];
            EXPECT_EQ(actual.best, wanted) << "k " << k << " of " << n;
            if (k > 0) {
              EXPECT_NEAR(actual.mass, mass, 1e-6 * mass);
            }
          }
        }
      });
    }
  }
}

TEST(Argmax, OfManyRowsIsThatOfEach) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t rows : {1, 2, 31, 64}) {
    for (const int64_t n : {1, 65, 5001}) {
      const auto values = random_floats(random, rows * n);
      auto x = TestTensor::of(values, {rows, n});
      for_each_context([&](const Context& context) {
        const ConstTensorView there = x.on(context);
        const std::vector<int32_t> best = argmax_rows(context, there);
        ASSERT_EQ(best.size(), static_cast<size_t>(rows));
        for (int64_t row = 0; row < rows; ++row) {
          EXPECT_EQ(best[static_cast<size_t>(row)], argmax(context, there[row]));
        }
      });
    }
  }
}

TEST(Argmax, FindsTheFirstOfEqualsAndMinusInfinity) {
  const float low = -std::numeric_limits<float>::infinity();
  auto equal = TestTensor::of(std::vector<float>(37, 2.0f), {37});
  auto lowest = TestTensor::of({std::nanf(""), low, low}, {3});
  auto none = TestTensor::of(std::vector<float>(9, std::nanf("")), {9});
  for_each_context([&](const Context& context) {
    EXPECT_EQ(argmax(context, equal.on(context)), 0);
    EXPECT_EQ(argmax(context, lowest.on(context)), 1);
    expect_error("argmax: there is no largest", [&] { argmax(context, none.on(context)); });
  });
}

}  // namespace
}  // namespace kinora
