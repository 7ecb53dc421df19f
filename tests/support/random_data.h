// Fresh random data for tests. The seed comes from the clock and is written into every failure, so
// that a failing case can be run again with KINORA_TEST_SEED.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
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

inline std::vector<float> random_floats(Random& random, int64_t count, double scale = 1.0) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(random.normal() * scale);
  return values;
}

}  // namespace kinora::testing

// Declares `name` with a fresh seed that is printed when an assertion in this scope fails.
#define KINORA_FRESH_RANDOM(name)                                  \
  const uint64_t name##_seed = ::kinora::testing::fresh_seed();    \
  SCOPED_TRACE("KINORA_TEST_SEED=" + std::to_string(name##_seed)); \
  ::kinora::Random name(name##_seed)
