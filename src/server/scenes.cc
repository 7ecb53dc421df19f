#include "server/scenes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace kinora::server {
namespace {

constexpr double least_cut = 0.06;  // of the range of a pixel, on average
constexpr double alike = 0.05;      // mean pictures of one cluster differ by less
constexpr double unusual_spreads = 1.5;

double difference(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::abs(int{a[i]} - int{b[i]});
  return a.empty() ? 0 : sum / (255.0 * static_cast<double>(a.size()));
}

// Frames that begin a scene; the first is one.
std::vector<size_t> cuts_of(const std::vector<SmallFrame>& frames) {
  std::vector<double> change{0};
  for (size_t i = 1; i < frames.size(); ++i) {
    change.push_back(difference(frames[i].pixels, frames[i - 1].pixels));
  }
  const auto count = static_cast<double>(change.size());
  double mean = 0, square = 0;
  for (const double value : change) {
    mean += value / count;
    square += value * value / count;
  }
  const double spread = std::sqrt(std::max(0.0, square - mean * mean));
  const double limit = std::max(least_cut, mean + unusual_spreads * spread);
  std::vector<size_t> cuts{0};
  for (size_t i = 1; i < change.size(); ++i) {
    if (change[i] > limit) cuts.push_back(i);
  }
  return cuts;
}

std::vector<uint8_t> mean_picture(const std::vector<SmallFrame>& frames, size_t begin, size_t end) {
  std::vector<double> sums(frames[begin].pixels.size());
  for (size_t i = begin; i < end; ++i) {
    for (size_t k = 0; k < sums.size(); ++k) sums[k] += frames[i].pixels[k];
  }
  std::vector<uint8_t> mean;
  for (const double sum : sums) {
    mean.push_back(static_cast<uint8_t>(std::lround(sum / static_cast<double>(end - begin))));
  }
  return mean;
}

}  // namespace

std::vector<Scene> find_scenes(const std::vector<SmallFrame>& frames, double duration) {
  if (frames.empty()) return {{0, duration, 0}};
  const std::vector<size_t> cuts = cuts_of(frames);
  std::vector<std::vector<uint8_t>> clusters;
  std::vector<Scene> scenes;
  for (size_t i = 0; i < cuts.size(); ++i) {
    const bool last = i + 1 == cuts.size();
    const std::vector<uint8_t> mean =
        mean_picture(frames, cuts[i], last ? frames.size() : cuts[i + 1]);
    const auto nearest = std::min_element(
        clusters.begin(), clusters.end(),
        [&](const auto& a, const auto& b) { return difference(a, mean) < difference(b, mean); });
    const bool known = nearest != clusters.end() && difference(*nearest, mean) < alike;
    const int64_t cluster = known ? nearest - clusters.begin() : std::ssize(clusters);
    if (!known) clusters.push_back(mean);
    scenes.push_back(
        {i == 0 ? 0 : frames[cuts[i]].time, last ? duration : frames[cuts[i + 1]].time, cluster});
  }
  return scenes;
}

}  // namespace kinora::server
