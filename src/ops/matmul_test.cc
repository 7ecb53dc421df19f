#include "ops/matmul.h"

#include <gtest/gtest.h>

#include "ops/op_test_support.h"

namespace kinora {
namespace {

using namespace testing;

struct Case {
  int64_t m, n, k;
  bool bias = false;
  bool accumulate = false;
  int64_t padding = 0;
};

std::vector<double> reference(const Case& c, const std::vector<double>& a,
                              const std::vector<double>& weight, const std::vector<double>& bias,
                              const std::vector<double>& before) {
  std::vector<double> out(static_cast<size_t>(c.m * c.n));
  for (int64_t row = 0; row < c.m; ++row) {
    for (int64_t column = 0; column < c.n; ++column) {
      const auto at = static_cast<size_t>(row * c.n + column);
      double sum = c.accumulate ? before[at] : 0;
      if (c.bias) sum += bias[static_cast<size_t>(column)];
      out[at] = sum + exact_dot(a.data() + row * c.k, weight.data() + column * c.k, c.k).sum;
    }
  }
  return out;
}

// Rounding of a sum of k products grows slower than √k in practice; the bound allows √k.
double tolerance(int64_t k) { return 3e-7 * std::sqrt(static_cast<double>(k) + 16); }

void check(Random& random, const Case& c, DType type, bool native_bf16 = false) {
  SCOPED_TRACE("m " + std::to_string(c.m) + ", n " + std::to_string(c.n) + ", k " +
               std::to_string(c.k) + ", weights " + std::string(dtype_name(type)) +
               (c.bias ? ", bias" : "") + (c.accumulate ? ", accumulate" : "") + ", padding " +
               std::to_string(c.padding));
  auto a = TestTensor::random(random, DType::f32, {c.m, c.k}, c.padding);
  auto weight = TestTensor::random(random, type, {c.n, c.k}, c.padding);
  auto bias = TestTensor::random(random, type, {c.n});
  const auto before = c.accumulate ? TestTensor::random(random, DType::f32, {c.m, c.n}, c.padding)
                                   : TestTensor::poisoned(DType::f32, {c.m, c.n}, c.padding);
  const auto expected =
      reference(c, a.values(), weight.values(), bias.values(), before.copy().values());
  for_each_context([&](const Context& context) {
    TestTensor out = before.copy();
    MatmulOptions options;
    if (c.bias) options.bias = bias.on(context);
    options.accumulate = c.accumulate;
    options.native_bf16 = native_bf16;
    matmul(context, a.on(context), weight.on(context), out.on(context), options);
    expect_close(out, expected, native_bf16 ? 4e-3 : tolerance(c.k));
  });
}

TEST(Matmul, EqualsTheReferenceForAFewRows) {
  KINORA_FRESH_RANDOM(random);
  for (const DType type : float_types) {
    for (int64_t m = 1; m <= 18; ++m)
      check(random, {m, 37, 131, m % 2 == 0, m % 3 == 0, m % 5}, type);
    check(random, {1, 1, 1}, type);
    check(random, {1, 515, 1030, true}, type);
    check(random, {3, 1001, 63}, type);
  }
}

TEST(Matmul, EqualsTheReferenceForManyRows) {
  KINORA_FRESH_RANDOM(random);
  for (const DType type : float_types) {
    for (const int64_t m : {19, 31, 63, 65, 127, 130}) {
      for (const int64_t n : {1, 5, 47, 63, 65, 129}) {
        check(random, {m, n, 33 + n, (m + n) % 2 == 0, n % 3 == 0, m % 4}, type);
      }
    }
    check(random, {65, 129, 1}, type);
    check(random, {33, 127, 515, true, true, 3}, type);
    check(random, {129, 321, 1030, true}, type);
  }
}

TEST(Matmul, SeveralProductsOfOneInputEqualEachAlone) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t m : {1, 3, 65}) {
    const int64_t k = 129;
    auto a = TestTensor::random(random, DType::f32, {m, k});
    for_each_context([&](const Context& context) {
      std::vector<TestTensor> weights, biases, alone, together;
      for (const int64_t n : {127, 1, 13, 300}) {
        weights.push_back(TestTensor::random(random, DType::bf16, {n, k}));
        biases.push_back(TestTensor::random(random, DType::bf16, {n}));
        alone.push_back(TestTensor::poisoned(DType::f32, {m, n}));
        together.push_back(TestTensor::poisoned(DType::f32, {m, n}));
      }
      std::vector<MatmulPart> parts;
      for (size_t i = 0; i < weights.size(); ++i) {
        MatmulOptions options;
        if (i % 2 == 0) options.bias = biases[i].on(context);
        matmul(context, a.on(context), weights[i].on(context), alone[i].on(context), options);
        parts.push_back({weights[i].on(context), options.bias, together[i].on(context)});
      }
      matmul_parts(context, a.on(context), parts);
      for (size_t i = 0; i < weights.size(); ++i) {
        EXPECT_EQ(together[i].values(), alone[i].values()) << "product " << i << ", m " << m;
      }
    });
  }
}

TEST(Matmul, CutsLongRowsInChunks) {
  KINORA_FRESH_RANDOM(random);
  check(random, {530, 13, 16900, true}, DType::bf16);
  check(random, {4300, 14, 65}, DType::f32);
}

TEST(Matmul, WithoutAnySummandsIsTheBias) {
  KINORA_FRESH_RANDOM(random);
  check(random, {3, 7, 0, true}, DType::f32);
  check(random, {35, 7, 0, true, true}, DType::bf16);
  check(random, {0, 7, 5}, DType::f32);
  check(random, {5, 0, 5}, DType::f32);
}

TEST(Matmul, DoesNotDependOnTheNumberOfThreads) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool one(1), five(5);
  for (const int64_t m : {1, 4, 40, 300}) {
    auto a = TestTensor::random(random, DType::f32, {m, 611});
    auto weight = TestTensor::random(random, DType::bf16, {407, 611});
    auto first = TestTensor::poisoned(DType::f32, {m, 407});
    auto second = TestTensor::poisoned(DType::f32, {m, 407});
    matmul(Context(one), a.view(), weight.view(), first.view());
    matmul(Context(five), a.view(), weight.view(), second.view());
    EXPECT_EQ(first.values(), second.values()) << "rows: " << m;
  }
}

TEST(Matmul, RoundsRowsToBf16OnlyWhenAsked) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t m : {1, 17, 33, 65, 131}) {
    for (const int64_t n : {1, 31, 64, 131}) {
      for (const int64_t k : {1, 7, 64, 131, 1030}) {
        check(random, {m, n, k, n % 2 == 0, k % 2 == 0, m % 3}, DType::bf16, true);
      }
    }
  }
  check(random, {530, 13, 16900, true}, DType::bf16, true);
}

// With a exact in bf16 the native product must be as exact as the other.
TEST(Matmul, NativeBf16AddsInF32) {
  KINORA_FRESH_RANDOM(random);
  const Case c{67, 45, 1031, true};
  auto a16 = TestTensor::random(random, DType::bf16, {c.m, c.k});
  std::vector<float> rounded;
  for (const double value : a16.values()) rounded.push_back(static_cast<float>(value));
  auto a = TestTensor::of(rounded, {c.m, c.k});
  auto weight = TestTensor::random(random, DType::bf16, {c.n, c.k});
  auto bias = TestTensor::random(random, DType::f32, {c.n});
  const auto expected = reference(c, a.values(), weight.values(), bias.values(), {});
  for_each_context([&](const Context& context) {
    auto out = TestTensor::poisoned(DType::f32, {c.m, c.n});
    matmul(context, a.on(context), weight.on(context), out.on(context),
           {.bias = bias.on(context), .accumulate = false, .native_bf16 = true});
    expect_close(out, expected, tolerance(c.k));
  });
}

TEST(Matmul, RefusesWhatDoesNotFit) {
  const ThreadPool pool(1);
  const Context context(pool);
  Tensor a(DType::f32, {2, 3}), weight(DType::bf16, {4, 3}), out(DType::f32, {2, 4});
  Tensor narrow(DType::bf16, {2, 3}), other(DType::f32, {4, 5}), bytes(DType::u8, {4, 3});
  expect_error("matmul: a must be f32", [&] { matmul(context, narrow, weight, out); });
  expect_error("matmul: weight has shape [4, 5]", [&] { matmul(context, a, other, out); });
  expect_error("matmul: weight must be f32, bf16 or f16", [&] { matmul(context, a, bytes, out); });
  expect_error("matmul: out has shape [2, 3], expected [2, 4]",
               [&] { matmul(context, a, weight, a); });
  Tensor bias(DType::f32, {3});
  expect_error("matmul: bias has shape [3], expected [4]",
               [&] { matmul(context, a, weight, out, {.bias = bias.view()}); });
}

}  // namespace
}  // namespace kinora
