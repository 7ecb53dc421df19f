#include "memory/mosaic/cluster.h"

#include <algorithm>
#include <cmath>

#include "memory/row_ops/vectors.h"

namespace kinora {
namespace {

constexpr int most_rounds = 10;

double dot(std::span<const float> a, std::span<const float> b) {
  return double{kinora::dot(a.data(), b.data(), a.size())};
}

}  // namespace

void Cohesion::add(std::span<const float> point) {
  if (mean.empty()) mean.assign(point.size(), 0.0f);
  const auto total = static_cast<double>(count + 1);
  const double share = 1 / total;
  const MovedMean moved =
      move_mean(mean.data(), point.data(), static_cast<float>(share), point.size());
  // (x − μ) · (x − μ') = (1 − share) |x − μ|²
  const double spread = (1 - share) * double{moved.distance};
  variance = (static_cast<double>(count) * variance + spread) / total;
  length = std::sqrt(double{moved.squares});
  ++count;
}

double Cohesion::distance(std::span<const float> point) const {
  return double{squared_distance(point.data(), mean.data(), point.size())};
}

double Cohesion::variance_with(std::span<const float> point) const {
  // (x − μ) · (x − μ') = n / (n + 1) |x − μ|²
  if (count == 0) return 0;
  const auto n = static_cast<double>(count);
  return (n * variance + n / (n + 1) * distance(point)) / (n + 1);
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
  double squares = double{kinora::dot(vector.data(), vector.data(), vector.size())};
  if (!(squares > 1e-30 && squares < 1e30)) {  // too far from one for an f32 sum
    squares = 0;
    for (const float x : vector) squares += double{x} * double{x};
  }
  const double length = std::sqrt(squares);
  if (!(length > 0)) return length;
  if (length > 1e-30 && length < 1e30) {
    multiply(vector.data(), static_cast<float>(1 / length), vector.size());
  } else {
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
