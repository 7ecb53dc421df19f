#include "ops/cosine.h"

#include <gtest/gtest.h>

#include "ops/op_test_support.h"

namespace kinora {
namespace {

using namespace testing;

std::vector<double> reference(const std::vector<double>& a, const std::vector<double>& b,
                              size_t width) {
  std::vector<double> out;
  for (size_t row = 0; row < a.size(); row += width) {
    double left = 0, right = 0, both = 0;
    for (size_t i = row; i < row + width; ++i) {
      left += a[i] * a[i];
      right += b[i] * b[i];
      both += a[i] * b[i];
    }
    out.push_back(left == 0 || right == 0 ? 0 : both / std::sqrt(left * right));
  }
  return out;
}

TEST(Cosine, EqualsTheReference) {
  KINORA_FRESH_RANDOM(random);
  for (const Shape& shape : std::vector<Shape>{{1, 1}, {1, 3}, {7, 63}, {65, 129}, {129, 64}}) {
    SCOPED_TRACE(to_string(shape));
    auto a = TestTensor::random(random, DType::f32, shape, 3, 2.0);
    auto b = TestTensor::random(random, DType::f32, shape, 1, 0.1);
    const auto expected = reference(a.values(), b.values(), static_cast<size_t>(shape[1]));
    for_each_context([&](const Context& context) {
      auto out = TestTensor::poisoned(DType::f32, {shape[0]});
      cosine_rows(context, a.on(context), b.on(context), out.on(context));
      // The error of a scalar product is relative to the lengths of both rows.
      expect_within(out, expected, std::vector<double>(expected.size(), 1e-6));
    });
  }
}

TEST(Cosine, ComparesWithOneRowAndKnowsRowsWithoutLength) {
  KINORA_FRESH_RANDOM(random);
  auto a = TestTensor::random(random, DType::f32, {5, 33});
  auto b = TestTensor::random(random, DType::f32, {1, 33});
  std::vector<double> repeated;
  for (int i = 0; i < 5; ++i) {
    const auto row = b.values();
    repeated.insert(repeated.end(), row.begin(), row.end());
  }
  const auto expected = reference(a.values(), repeated, 33);
  for_each_context([&](const Context& context) {
    const TensorView row = b.on(context);
    const ConstTensorView rows(row.raw(), DType::f32, Shape{5, 33}, {0, 1}, context.device);
    auto out = TestTensor::poisoned(DType::f32, {5});
    cosine_rows(context, a.on(context), rows, out.on(context));
    expect_within(out, expected, std::vector<double>(expected.size(), 1e-6));
    auto none = TestTensor::of(std::vector<float>(33, 0.0f), {1, 33});
    auto zero = TestTensor::poisoned(DType::f32, {1});
    cosine_rows(context, b.on(context), none.on(context), zero.on(context));
    expect_close(zero, {0}, 0);
  });
}

TEST(Cosine, RefusesShapesThatDoNotFit) {
  const ThreadPool pool(1);
  const Context context(pool);
  Tensor a(DType::f32, {3, 4}), b(DType::f32, {3, 5}), out(DType::f32, {3}), few(DType::f32, {2});
  EXPECT_THROW(cosine_rows(context, a, b, out), Error);
  EXPECT_THROW(cosine_rows(context, a, a, few), Error);
}

}  // namespace
}  // namespace kinora
