// Comparing a result with a double-precision reference.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>

namespace kinora::testing {

// ‖actual − expected‖ / ‖expected‖ over all elements; infinite when anything is not finite.
template <typename A, typename B>
double relative_error(std::span<const A> actual, std::span<const B> expected) {
  if (actual.size() != expected.size()) return INFINITY;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double a = static_cast<double>(actual[i]);
    const double e = static_cast<double>(expected[i]);
    difference += (a - e) * (a - e);
    norm += e * e;
  }
  const double error = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
  return std::isfinite(error) ? error : INFINITY;
}

}  // namespace kinora::testing
