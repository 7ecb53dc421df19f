#include "ops/softmax.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "ops/op_test_support.h"

namespace kinora {
namespace {

using namespace testing;

TEST(Softmax, EqualsTheReference) {
  KINORA_FRESH_RANDOM(random);
  for (const Shape& shape :
       {Shape{1, 1}, Shape{5, 63}, Shape{65, 129}, Shape{2, 3, 17}, Shape{50001}}) {
    for (const double factor : {1.0, 0.125, 7.0}) {
      auto x = TestTensor::random(random, DType::f32, shape, 3, 3.0);
      auto expected = x.values();
      const auto d = static_cast<size_t>(shape[shape.rank() - 1]);
      for (size_t row = 0; row < expected.size(); row += d) {
        double highest = -INFINITY, sum = 0;
        for (size_t i = 0; i < d; ++i) highest = std::max(highest, expected[row + i]);
        for (size_t i = 0; i < d; ++i) {
          expected[row + i] = std::exp((expected[row + i] - highest) * factor);
          sum += expected[row + i];
        }
        for (size_t i = 0; i < d; ++i) expected[row + i] /= sum;
      }
      // Targets without vectors add a long row in few chains.
      const double tolerance = d > 1000 ? 3e-5 : 2e-6;
      for_each_context([&](const Context& context) {
        auto out = TestTensor::poisoned(DType::f32, shape, 1);
        softmax(context, x.on(context), out.on(context), static_cast<float>(factor));
        expect_close(out, expected, tolerance);
        auto in_place = x.copy();
        softmax(context, in_place.on(context), in_place.on(context), static_cast<float>(factor));
        expect_close(in_place, expected, tolerance);
      });
    }
  }
}

TEST(Softmax, TakesMaskedEntriesAndLargeOnes) {
  const float masked = -std::numeric_limits<float>::infinity();
  auto x = TestTensor::of({masked, 1e30f, masked, 1e30f, masked, masked, masked, masked}, {2, 4});
  for_each_context([&](const Context& context) {
    auto out = TestTensor::poisoned(DType::f32, {2, 4});
    softmax(context, x.on(context), out.on(context));
    expect_close(out, {0, 0.5, 0, 0.5, 0, 0, 0, 0}, 1e-7);
  });
}

}  // namespace
}  // namespace kinora
