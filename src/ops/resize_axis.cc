#include "ops/resize_axis.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"

namespace kinora {
namespace {

constexpr int max_side = 65536;

// Keys' cubic with a = -0.5.
double cubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

double triangle(double x) { return std::max(0.0, 1 - std::abs(x)); }

// A kernel of this half width, stretched over the source when the picture shrinks. The order of the
// floating-point steps is PyTorch's: a tap more or less at a border would show in the output.
template <typename Kernel>
RealTaps kernel_taps(int i, int source, int target, double half_width, const Kernel& kernel) {
  const double scale = static_cast<double>(source) / target;
  const double support = scale >= 1 ? half_width * scale : half_width;
  const double inverse = scale >= 1 ? 1 / scale : 1;
  const double centre = scale * (i + 0.5);
  RealTaps taps;
  taps.begin = std::max(static_cast<int>(centre - support + 0.5), 0);
  const int end = std::min(static_cast<int>(centre + support + 0.5), source);
  double sum = 0;
  for (int j = taps.begin; j < end; ++j) {
    taps.weights.push_back(kernel((j - centre + 0.5) * inverse));
    sum += taps.weights.back();
  }
  for (double& weight : taps.weights) weight /= sum;
  return taps;
}

// Target pixel i covers source [i × source / target, (i + 1) × source / target); in units of
// 1 / target of a source pixel all borders are integers.
RealTaps area_taps(int64_t i, int64_t source, int64_t target) {
  const int64_t low = i * source;
  const int64_t high = low + source;
  RealTaps taps;
  taps.begin = static_cast<int>(low / target);
  for (int64_t j = taps.begin; j * target < high; ++j) {
    const int64_t covered = std::min(high, (j + 1) * target) - std::max(low, j * target);
    taps.weights.push_back(static_cast<double>(covered) / static_cast<double>(source));
  }
  return taps;
}

// As many bits as keep the largest weight below 2^15; at most 22, so that sums fit 32 bits.
int weight_bits(const std::vector<RealTaps>& taps) {
  double largest = 0;
  for (const RealTaps& pixel : taps)
    for (const double weight : pixel.weights) largest = std::max(largest, weight);
  int bits = 0;
  while (bits < 22 && std::floor(0.5 + largest * (1 << (bits + 1))) < (1 << 15)) ++bits;
  return bits;
}

}  // namespace

int ResizeAxis::max_pairs() const {
  int most = 0;
  for (int i = 0; i < target; ++i) most = std::max(most, pairs(i));
  return most;
}

std::vector<RealTaps> real_resize_taps(ResizeFilter filter, int source, int target) {
  std::vector<RealTaps> taps(static_cast<size_t>(target));
  for (int i = 0; i < target; ++i) {
    RealTaps& pixel = taps[static_cast<size_t>(i)];
    switch (filter) {
      case ResizeFilter::bicubic:
        pixel = kernel_taps(i, source, target, 2.0, cubic);
        break;
      case ResizeFilter::bilinear:
        pixel = kernel_taps(i, source, target, 1.0, triangle);
        break;
      case ResizeFilter::area:
        pixel = area_taps(i, source, target);
        break;
      case ResizeFilter::nearest:
        pixel = {static_cast<int>(static_cast<int64_t>(i) * source / target), {1.0}};
        break;
    }
  }
  return taps;
}

ResizeAxis make_resize_axis(ResizeFilter filter, int source, int target) {
  if (source < 1 || target < 1)
    throw Error(ErrorKind::usage, "resize: a picture side of " +
                                      std::to_string(std::min(source, target)) +
                                      " pixels; sides start at 1");
  if (source > max_side || target > max_side)
    throw Error(ErrorKind::resource, "resize: a picture side of " +
                                         std::to_string(std::max(source, target)) +
                                         " pixels is above the limit of 65536");
  const std::vector<RealTaps> taps = real_resize_taps(filter, source, target);
  ResizeAxis axis;
  axis.source = source;
  axis.target = target;
  axis.shift = weight_bits(taps);
  const double one = static_cast<double>(1 << axis.shift);
  axis.weight_begin.push_back(0);
  for (const RealTaps& pixel : taps) {
    axis.first_pair.push_back(pixel.begin / 2);
    if (pixel.begin % 2 != 0) axis.weights.push_back(0);
    for (const double weight : pixel.weights)
      axis.weights.push_back(static_cast<int16_t>(weight * one + (weight < 0 ? -0.5 : 0.5)));
    if (axis.weights.size() % 2 != 0) axis.weights.push_back(0);
    axis.weight_begin.push_back(static_cast<int32_t>(axis.weights.size()));
  }
  return axis;
}

}  // namespace kinora
