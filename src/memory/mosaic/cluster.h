// Clusters by cosine, kept up while points arrive: what a cluster knows of its points, when it has
// become too loose, and how it falls in two. Used by the index of a mosaic memory, for frames and
// for keys.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kinora {

// Points are vectors of length one; what is lost with the length is the user's to keep.
struct Cohesion {
  int64_t count = 0;
  std::vector<float> mean;
  double variance = 0;  // mean squared distance from the mean
  double length = 0;    // of the mean

  // μ' = μ + (x − μ) / (n + 1),  σ²' = (n σ² + (x − μ) · (x − μ')) / (n + 1)
  void add(std::span<const float> point);
  double distance(std::span<const float> point) const;  // squared, from the mean
  // The variance that `add` would lead to.
  double variance_with(std::span<const float> point) const;
  // Of the mean as a direction and a point.
  double cosine(std::span<const float> point) const;
  // After the mean was set from elsewhere.
  void measure();
};

// How loose a cluster of n points may be, as a share of the variance of all points together:
//   loose − (loose − strict) e^(−n / transition)
// All points are those of one layer, so that every layer has its own threshold.
struct LoosenessRule {
  double strict = 0.3;
  double loose = 0.5;
  double transition = 16;

  double threshold(int64_t count, double variance_of_all) const;
};

// The vector divided by its length, which is returned; zeros stay zeros.
double make_unit(std::span<float> vector);

// k-means with two centres over points [count, width], by cosine: for each point whether it belongs
// to the second part. Neither part is empty where there are two points or more. The centres begin
// as the point farthest from the mean and the point farthest from that; equal points are halved
// in their order.
std::vector<bool> split_in_two(std::span<const float> points, size_t width);

}  // namespace kinora
