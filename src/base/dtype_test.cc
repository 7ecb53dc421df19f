#include "base/dtype.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/random_data.h"

namespace kinora {
namespace {

TEST(DType, Bf16RoundTripsEveryPattern) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const bf16 value{static_cast<uint16_t>(bits)};
    const float wide = value.to_float();
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(bf16::from_float(wide).to_float()));
    } else {
      EXPECT_EQ(bf16::from_float(wide).bits, bits);
    }
  }
}

TEST(DType, F16RoundTripsEveryPattern) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const f16 value{static_cast<uint16_t>(bits)};
    const float wide = value.to_float();
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(f16::from_float(wide).to_float()));
    } else {
      EXPECT_EQ(f16::from_float(wide).bits, bits) << wide;
    }
  }
}

// No representable neighbour may be nearer than the rounded value.
template <typename Half>
void expect_nearest(float value) {
  const Half rounded = Half::from_float(value);
  const double error = std::abs(static_cast<double>(rounded.to_float()) - value);
  for (const int step : {-1, 1}) {
    const Half other{static_cast<uint16_t>(rounded.bits + step)};
    const double there = other.to_float();
    if (!std::isfinite(there) || (there < 0) != (value < 0)) continue;
    EXPECT_LE(error, std::abs(there - value)) << value;
  }
}

TEST(DType, RoundsToNearest) {
  KINORA_FRESH_RANDOM(random);
  for (int i = 0; i < 20000; ++i) {
    const float value = static_cast<float>(random.normal() * std::exp2(random.uniform(-20, 15)));
    expect_nearest<bf16>(value);
    if (std::abs(value) < 65504) expect_nearest<f16>(value);
  }
}

TEST(DType, OverflowBecomesInfinity) {
  EXPECT_EQ(f16::from_float(65520.f).to_float(), std::numeric_limits<float>::infinity());
  EXPECT_EQ(f16::from_float(65519.f).to_float(), 65504.f);
  EXPECT_EQ(f16::from_float(-1e9f).to_float(), -std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace kinora
