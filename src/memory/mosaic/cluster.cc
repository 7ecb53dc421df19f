#include "memory/mosaic/cluster.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace kinora {
namespace {

constexpr int most_rounds = 10;

// Σ term(i) over [0, count). Eight sums side by side, which compilers put into vectors.
template <typename Number, class Term>
Number sum_over(size_t count, const Term& term) {
  std::array<Number, 8> sums{};
  size_t i = 0;
  for (; i + sums.size() <= count; i += sums.size()) {
    for (size_t k = 0; k < sums.size(); ++k) sums[k] += term(i + k);
  }
  Number sum = 0;
  for (const Number part : sums) sum += part;
  for (; i < count; ++i) sum += term(i);
  return sum;
}

double dot(std::span<const float> a, std::span<const float> b) {
  const float *x = a.data(), *y = b.data();
  return double{sum_over<float>(a.size(), [=](size_t i) { return x[i] * y[i]; })};
}

}  // namespace

void Cohesion::add(std::span<const float> point) {
  if (mean.empty()) mean.assign(point.size(), 0.0f);
  const auto total = static_cast<double>(count + 1);
  const double share = 1 / total;
  const float* x = point.data();
  float* m = mean.data();
  const double spread = sum_over<double>(point.size(), [=](size_t i) {
    const double before = double{x[i]} - double{m[i]};
    const double moved = double{m[i]} + before * share;
    m[i] = static_cast<float>(moved);
    return before * (double{x[i]} - moved);
  });
  variance = (static_cast<double>(count) * variance + spread) / total;
  ++count;
  measure();
}

double Cohesion::variance_with(std::span<const float> point) const {
  // (x − μ) · (x − μ') = n / (n + 1) |x − μ|²
  const float *x = point.data(), *m = mean.data();
  const double distance = sum_over<double>(point.size(), [=](size_t i) {
    const double apart = double{x[i]} - (m == nullptr ? 0.0 : double{m[i]});
    return apart * apart;
  });
  const auto n = static_cast<double>(count);
  return (n * variance + n / (n + 1) * distance) / (n + 1);
}

void Cohesion::measure() { length = std::sqrt(dot(mean, mean)); }

double Cohesion::cosine(std::span<const float> point) const {
  return length > 0 ? dot(mean, point) / length : 0.0;
}

double LoosenessRule::threshold(int64_t count, double variance_of_all) const {
  const double share =
      loose - (loose - strict) * std::exp(-static_cast<double>(count) / transition);
  return share * variance_of_all;
}

double make_unit(std::span<float> vector) {
  const float* numbers = vector.data();
  const double length = std::sqrt(sum_over<double>(
      vector.size(), [=](size_t i) { return double{numbers[i]} * double{numbers[i]}; }));
  if (length > 0) {
    for (float& x : vector) x = static_cast<float>(double{x} / length);
  }
  return length;
}

std::vector<bool> split_in_two(std::span<const float> points, size_t width) {
  const size_t count = points.size() / width;
  const auto point = [&](size_t i) { return points.subspan(i * width, width); };
  Cohesion all;
  for (size_t i = 0; i < count; ++i) all.add(point(i));
  const auto farthest = [&](std::span<const float> from) {
    size_t best = 0;
    double least = INFINITY;
    for (size_t i = 0; i < count; ++i) {
      const double near = dot(from, point(i));
      if (near < least) {
        least = near;
        best = i;
      }
    }
    return best;
  };
  const size_t one = farthest(all.mean), two = farthest(point(one));
  std::vector<float> centres(point(one).begin(), point(one).end());
  centres.insert(centres.end(), point(two).begin(), point(two).end());
  std::vector<bool> second(count);
  for (int round = 0; round < most_rounds; ++round) {
    bool changed = false;
    std::vector<double> sums(2 * width);
    for (size_t i = 0; i < count; ++i) {
      const auto both = std::span<const float>(centres);
      const bool there = dot(both.subspan(width), point(i)) > dot(both.first(width), point(i));
      changed |= there != second[i];
      second[i] = there;
      for (size_t k = 0; k < width; ++k) {
        sums[(there ? width : 0) + k] += double{point(i)[k]};
      }
    }
    if (!changed && round > 0) break;
    for (size_t k = 0; k < 2 * width; ++k) centres[k] = static_cast<float>(sums[k]);
    make_unit(std::span(centres).first(width));
    make_unit(std::span(centres).subspan(width));
  }
  const auto moved = std::count(second.begin(), second.end(), true);
  if (moved == 0 || moved == static_cast<int64_t>(count)) {
    for (size_t i = 0; i < count; ++i) second[i] = i >= (count + 1) / 2;
  }
  return second;
}

}  // namespace kinora
