#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/random_data.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/simd_math_test.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "ops/simd_math-inl.h"
#include "ops/vector-inl.h"

// Every target this CPU has is tried, not only the best.

HWY_BEFORE_NAMESPACE();
namespace kinora {
namespace HWY_NAMESPACE {

void exp_all(const float* x, float* out, int64_t count) {
  for_vectors(count, [&](auto d, int64_t at, auto part)
                         HWY_ATTR { part.store(d, simd_exp(d, part.load(d, x + at)), out + at); });
}

void sigmoid_all(const float* x, float* out, int64_t count) {
  for_vectors(count, [&](auto d, int64_t at, auto part) HWY_ATTR {
    part.store(d, simd_sigmoid(d, part.load(d, x + at)), out + at);
  });
}

void erf_all(const float* x, float* out, int64_t count) {
  for_vectors(count, [&](auto d, int64_t at, auto part)
                         HWY_ATTR { part.store(d, simd_erf(d, part.load(d, x + at)), out + at); });
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kinora {
namespace {

HWY_EXPORT(exp_all);
HWY_EXPORT(sigmoid_all);
HWY_EXPORT(erf_all);

using Map = void (*)(const float*, float*, int64_t);

// Calls body once for every target compiled in and present.
template <class Body>
void for_each_target(const Body& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

std::vector<float> spread(Random& random, double low, double high, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(random.uniform(low, high));
  return values;
}

TEST(SimdMath, ExpIsWithinTwoUlps) {
  KINORA_FRESH_RANDOM(random);
  const std::vector<float> x = spread(random, -87.3, 88.3, 200001);
  for_each_target([&] {
    std::vector<float> y(x.size(), std::nanf(""));
    HWY_DYNAMIC_DISPATCH(exp_all)(x.data(), y.data(), static_cast<int64_t>(x.size()));
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(static_cast<double>(x[i]));
      const float nearest = static_cast<float>(exact);
      const double ulp = std::nextafter(nearest, INFINITY) - nearest;
      worst = std::max(worst, std::abs(y[i] - exact) / ulp);
    }
    EXPECT_LE(worst, 2.0);
  });
}

TEST(SimdMath, ExpSaturatesAndKeepsNaN) {
  for_each_target([&] {
    const float infinity = std::numeric_limits<float>::infinity();
    const std::vector<float> x{-infinity, -1000, -88.5f, 0, 100, infinity, std::nanf("")};
    std::vector<float> y(x.size());
    HWY_DYNAMIC_DISPATCH(exp_all)(x.data(), y.data(), static_cast<int64_t>(x.size()));
    EXPECT_EQ(y[0], 0);
    EXPECT_EQ(y[1], 0);
    EXPECT_EQ(y[2], 0);
    EXPECT_EQ(y[3], 1);
    EXPECT_GT(y[4], 2e38f);
    EXPECT_GT(y[5], 2e38f);
    EXPECT_TRUE(std::isnan(y[6]));
  });
}

TEST(SimdMath, SigmoidAndErfHaveTheStatedError) {
  KINORA_FRESH_RANDOM(random);
  const std::vector<float> x = spread(random, -9, 9, 200001);
  for_each_target([&] {
    std::vector<float> s(x.size(), std::nanf("")), e(x.size(), std::nanf(""));
    HWY_DYNAMIC_DISPATCH(sigmoid_all)(x.data(), s.data(), static_cast<int64_t>(x.size()));
    HWY_DYNAMIC_DISPATCH(erf_all)(x.data(), e.data(), static_cast<int64_t>(x.size()));
    double sigmoid_worst = 0, erf_worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double z = x[i];
      const double exact = 1 / (1 + std::exp(-z));
      sigmoid_worst = std::max(sigmoid_worst, std::abs(s[i] - exact) / exact);
      erf_worst = std::max(erf_worst, std::abs(e[i] - std::erf(z)));
    }
    EXPECT_LE(sigmoid_worst, 4e-7);
    EXPECT_LE(erf_worst, 1.5e-7);
  });
}

}  // namespace
}  // namespace kinora
#endif
