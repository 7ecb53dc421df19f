#include "ops/activation.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "ops/op_test_support.h"

namespace kinora {
namespace {

using namespace testing;

using Op = void (*)(const Context&, ConstTensorView, TensorView);
using Exact = double (*)(double);

double silu_exact(double x) { return x / (1 + std::exp(-x)); }
double gelu_erf_exact(double x) { return x / 2 * (1 + std::erf(x / std::sqrt(2.0))); }
double gelu_tanh_exact(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

struct Activation {
  const char* name;
  Op op;
  Exact exact;
};
constexpr Activation activations[] = {{"silu", silu, silu_exact},
                                      {"gelu_erf", gelu_erf, gelu_erf_exact},
                                      {"gelu_tanh", gelu_tanh, gelu_tanh_exact}};

// Within eight units u = 2⁻²⁴ of max(1, |exact|): far below zero the exact value itself vanishes.
// An exponential is within 2 ulp, 4 u (simd_math_test.cc), and each of four operations adds u: 1 +
// e, its reciprocal, times x, times the other factor of silu_mul. gelu_erf has an erf
// within 1.5e-7, which is ±1 from |x| = 5.73 on: |x| / 2 times that is 7.2 u at most. In gelu_tanh
// the argument 2 t of the sigmoid is off by 4 u, which moves x σ by |x| σ (1 − σ) |2 t| 4 u, less
// than u.
void expect_near(TestTensor& actual, const std::vector<double>& expected) {
  const auto values = actual.values();
  ASSERT_EQ(values.size(), expected.size());
  double worst = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double error = std::abs(values[i] - expected[i]) / std::max(1.0, std::abs(expected[i]));
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  EXPECT_LE(worst, 8 * 0x1p-24);
  EXPECT_TRUE(actual.padding_is_untouched());
}

TEST(Activation, EqualsTheReferenceOnAnyShape) {
  KINORA_FRESH_RANDOM(random);
  for (const auto& [name, op, exact] : activations) {
    SCOPED_TRACE(name);
    for (const Shape& shape :
         {Shape{1, 1}, Shape{3, 63}, Shape{65, 129}, Shape{2, 7, 33}, Shape{40001}, Shape{0, 5}}) {
      for (const int64_t padding : {0, 3}) {
        auto x = TestTensor::random(random, DType::f32, shape, padding, 4.0);
        std::vector<double> expected = x.values();
        for (double& value : expected) value = exact(value);
        for_each_context([&](const Context& context) {
          auto out = TestTensor::poisoned(DType::f32, shape, padding + 2);
          op(context, x.on(context), out.on(context));
          expect_near(out, expected);
          auto in_place = x.copy();
          op(context, in_place.on(context), in_place.on(context));
          expect_near(in_place, expected);
        });
      }
    }
  }
}

TEST(Activation, StaysFiniteFarOut) {
  for (const auto& [name, op, exact] : activations) {
    SCOPED_TRACE(name);
    auto x = TestTensor::of({-1e30f, -300, -90, 90, 300, 1e12f}, {6});
    for_each_context([&](const Context& context) {
      auto out = TestTensor::poisoned(DType::f32, {6});
      op(context, x.on(context), out.on(context));
      const auto y = out.values();
      for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(y[i], 0, 1e-7);
      EXPECT_EQ(y[3], 90);
      EXPECT_EQ(y[4], 300);
      EXPECT_EQ(y[5], 1e12f);
    });
  }
}

TEST(SiluMul, EqualsTheReference) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t d : {1, 63, 64, 129, 4864}) {
    // The two halves of one fused projection, as the decoder calls it.
    auto both = TestTensor::random(random, DType::f32, {5, 2 * d}, 1, 3.0);
    const auto values = both.values();
    std::vector<double> expected;
    for (int64_t row = 0; row < 5; ++row) {
      for (int64_t i = 0; i < d; ++i) {
        const auto at = static_cast<size_t>(row * 2 * d + i);
        expected.push_back(silu_exact(values[at]) * values[at + static_cast<size_t>(d)]);
      }
    }
    for_each_context([&](const Context& context) {
      auto out = TestTensor::poisoned(DType::f32, {5, d}, 3);
      const TensorView x = both.on(context);
      silu_mul(context, x.columns(0, d), x.columns(d, d), out.on(context));
      expect_close(out, expected, 3e-7);
    });
  }
}

TEST(Activation, RefusesWhatDoesNotFit) {
  const ThreadPool pool(1);
  const Context context(pool);
  Tensor x(DType::f32, {2, 3}), other(DType::f32, {2, 4}), narrow(DType::bf16, {2, 3});
  expect_error("silu: out has shape [2, 4]", [&] { silu(context, x, other); });
  expect_error("gelu_erf: x must be f32", [&] { gelu_erf(context, narrow, x); });
  expect_error("silu_mul: up has shape", [&] { silu_mul(context, x, other, x); });
}

}  // namespace
}  // namespace kinora
