// Fresh random data for tests. The seed comes from the clock and is written into every failure, so
// that a failing case can be run again with KINORA_TEST_SEED.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/random.h"

namespace kinora::testing {

inline uint64_t fresh_seed() {
  if (const char* fixed = std::getenv("KINORA_TEST_SEED")) return std::strtoull(fixed, nullptr, 10);
  static uint64_t calls = 0;
  const auto now = std::chrono::high_resolution_clock::now().time_since_epoch().count();
  return Random(static_cast<uint64_t>(now) + ++calls).next() >> 16;
}

// Normal values times `scale`. In f32 and two from every draw (Box-Muller): tests fill millions,
// hundreds of times.
inline std::vector<float> random_floats(Random& random, int64_t count, double scale = 1.0) {
  constexpr float turn = 6.28318530717958647692f;
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); i += 2) {
    const uint64_t bits = random.next();
    const float first = (static_cast<float>(bits >> 32) + 0.5f) * 0x1p-32f;  // in (0, 1]
    const float angle = turn * 0x1p-32f * static_cast<float>(bits & 0xffffffffu);
    const float radius = static_cast<float>(scale) * std::sqrt(-2.0f * std::log(first));
    values[i] = radius * std::cos(angle);
    if (i + 1 < values.size()) values[i + 1] = radius * std::sin(angle);
  }
  return values;
}

}  // namespace kinora::testing

// Declares `name` with a fresh seed that is printed when an assertion in this scope fails.
#define KINORA_FRESH_RANDOM(name)                                  \
  const uint64_t name##_seed = ::kinora::testing::fresh_seed();    \
  SCOPED_TRACE("KINORA_TEST_SEED=" + std::to_string(name##_seed)); \
  ::kinora::Random name(name##_seed)
