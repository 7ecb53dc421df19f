// Test support: whether counts are those of a distribution.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace kinora::testing {

// Σ (observed − expected)² / expected over cells, rare ones together, and the value that it passes
// by chance less than once in three million times (Wilson and Hilferty's approximation).
struct Fit {
  double statistic = 0;
  double limit = 0;
};

inline Fit fit(const std::vector<int64_t>& counts, const std::vector<double>& probabilities) {
  const auto samples =
      static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  Fit result;
  double rare_expected = 0, rare_observed = 0, cells = 0;
  bool impossible = false;
  const auto add = [&](double observed, double expected) {
    result.statistic += (observed - expected) * (observed - expected) / expected;
    ++cells;
  };
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * samples;
    const auto observed = static_cast<double>(counts[i]);
    if (expected >= 10) {
      add(observed, expected);
    } else {
      impossible |= expected == 0 && counts[i] > 0;  // what must never be said
      rare_expected += expected;
      rare_observed += observed;
    }
  }
  if (rare_expected >= 1) add(rare_observed, rare_expected);
  if (impossible) result.statistic = std::numeric_limits<double>::infinity();
  const double freedom = cells - 1, part = 2 / (9 * freedom);
  result.limit = freedom * std::pow(1 - part + 5 * std::sqrt(part), 3);
  return result;
}

}  // namespace kinora::testing
