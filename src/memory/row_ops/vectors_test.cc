// Arithmetic of long vectors against double precision, at lengths that are no multiples of a
// register.
#include "memory/row_ops/vectors.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/random_data.h"

namespace kinora {
namespace {

TEST(Vectors, EqualTheirDefinitions) {
  KINORA_FRESH_RANDOM(random);
  for (const size_t count : {0, 1, 3, 15, 16, 17, 63, 65, 127, 129, 1000}) {
    const std::vector<float> a = testing::random_floats(random, count, 1.0);
    const std::vector<float> b = testing::random_floats(random, count, 1.0);
    double product = 0, products = 0, distance = 0, squares = 0;
    const float share = static_cast<float>(random.uniform());
    std::vector<double> moved(count);
    for (size_t i = 0; i < count; ++i) {
      const double x = double{a[i]}, y = double{b[i]};
      product += x * y;
      products += std::abs(x * y);
      distance += (x - y) * (x - y);
      moved[i] = x + double{share} * (y - x);
      squares += moved[i] * moved[i];
    }
    // Every term is rounded a few times, and so is every partial sum of at most `count` of them.
    const double bound = 1.2e-7 * (4 + static_cast<double>(count) / 4);
    EXPECT_NEAR(dot(a.data(), b.data(), count), product, bound * products);
    EXPECT_NEAR(squared_distance(a.data(), b.data(), count), distance, bound * distance);
    std::vector<float> mean = a;
    const MovedMean all = move_mean(mean.data(), b.data(), share, count);
    EXPECT_NEAR(all.distance, distance, bound * distance);
    EXPECT_NEAR(all.squares, squares, bound * (squares + distance));
    std::vector<float> twice = a;
    multiply(twice.data(), 2.0f, count);
    for (size_t i = 0; i < count; ++i) {
      const double size = std::abs(double{a[i]}) + std::abs(double{b[i]});
      ASSERT_NEAR(mean[i], moved[i], 4e-7 * size);
      ASSERT_EQ(twice[i], 2 * a[i]);
    }
  }
}

}  // namespace
}  // namespace kinora
