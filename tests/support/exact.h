// The inner loops of references in double precision: plain sums, compiled for the vectors of the
// CPU that runs the test, because tests with fresh random data run hundreds of times.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

// Sanitizers are not ready yet when the dynamic linker chooses a clone.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define KINORA_OF_EVERY_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define KINORA_OF_EVERY_CPU
#endif

namespace kinora::testing {

struct Dot {
  double sum, size, squares;  // Σ a b, Σ |a b| and Σ (a b)²
};

namespace exact {

// Eight sums of each, so that no product waits for the one before.
template <typename T>
[[gnu::always_inline]] inline Dot dot(const T* a, const T* b, size_t count) {
  constexpr size_t lanes = 8;
  std::array<double, lanes> sums{}, sizes{}, squares{};
  const auto add = [&](size_t lane, size_t at) __attribute__((always_inline)) {
    const double product = static_cast<double>(a[at]) * static_cast<double>(b[at]);
    sums[lane] += product;
    sizes[lane] += std::abs(product);
    squares[lane] += product * product;
  };
  const size_t whole = count / lanes * lanes;
  for (size_t first = 0; first < whole; first += lanes) {
    for (size_t lane = 0; lane < lanes; ++lane) add(lane, first + lane);
  }
  for (size_t at = whole; at < count; ++at) add(0, at);
  Dot all{};
  for (size_t lane = 0; lane < lanes; ++lane) {
    all.sum += sums[lane];
    all.size += sizes[lane];
    all.squares += squares[lane];
  }
  return all;
}

}  // namespace exact

[[maybe_unused]] KINORA_OF_EVERY_CPU static Dot exact_dot(const double* a, const double* b,
                                                          int64_t count) {
  return exact::dot(a, b, static_cast<size_t>(count));
}
[[maybe_unused]] KINORA_OF_EVERY_CPU static Dot exact_dot(const float* a, const float* b,
                                                          int64_t count) {
  return exact::dot(a, b, static_cast<size_t>(count));
}

// to += weight · row
[[maybe_unused]] KINORA_OF_EVERY_CPU static void add_scaled(double* to, double weight,
                                                            const float* row, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] += weight * static_cast<double>(row[i]);
}

// shifts += (weight · error · (row − mean))²,  squares += (weight · row)²
[[maybe_unused]] KINORA_OF_EVERY_CPU static void add_squares(double* shifts, double* squares,
                                                             double weight, double error,
                                                             const float* row, const double* mean,
                                                             size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const double share = weight * static_cast<double>(row[i]);
    const double shift = (share - weight * mean[i]) * error;
    shifts[i] += shift * shift;
    squares[i] += share * share;
  }
}

}  // namespace kinora::testing
