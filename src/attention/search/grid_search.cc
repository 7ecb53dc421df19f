#include "attention/search/grid_search.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace kinora {
namespace {

struct Peaks {
  std::vector<int32_t> phases;  // increasing
  double mass = 0;              // of all of them
};

// Largest of the sums over i ≡ phase (mod stride); the first among equals.
Peaks peaks_of(std::span<const float> sums, int32_t count) {
  if (count == 1) {
    const auto top = std::max_element(sums.begin(), sums.end());
    return {{static_cast<int32_t>(top - sums.begin())}, static_cast<double>(*top)};
  }
  Peaks peaks;
  peaks.phases.resize(sums.size());
  std::iota(peaks.phases.begin(), peaks.phases.end(), 0);
  if (count < std::ssize(sums)) {
    std::nth_element(peaks.phases.begin(), peaks.phases.begin() + count, peaks.phases.end(),
                     [&](int32_t a, int32_t b) {
                       const float x = sums[static_cast<size_t>(a)];
                       const float y = sums[static_cast<size_t>(b)];
                       return x != y ? x > y : a < b;
                     });
    peaks.phases.resize(static_cast<size_t>(count));
    std::sort(peaks.phases.begin(), peaks.phases.end());
  }
  for (const int32_t phase : peaks.phases) {
    peaks.mass += static_cast<double>(sums[static_cast<size_t>(phase)]);
  }
  return peaks;
}

// weights[i] summed by (i + shift) mod stride; rows of `stride` are added up, which vectorises.
void fold(std::span<const float> weights, int64_t shift, int32_t stride, std::vector<float>& sums) {
  const auto width = static_cast<size_t>(stride);
  sums.assign(width, 0.0f);
  const size_t first = static_cast<size_t>(shift % stride);
  size_t at = 0;
  for (size_t phase = first; phase < width && at < weights.size(); ++phase) {
    sums[phase] += weights[at++];
  }
  for (; at + width <= weights.size(); at += width) {
    for (size_t phase = 0; phase < width; ++phase) sums[phase] += weights[at + phase];
  }
  for (size_t phase = 0; at < weights.size(); ++phase) sums[phase] += weights[at++];
}

class Folder {
 public:
  Folder(const Region& region, const Probe& probe) : region_(region), probe_(probe) {}

  GridFit fit(int32_t stride, const GridLines& lines) {
    GridFit result;
    result.stride = stride;
    fold_columns(stride);
    const int32_t phases = std::clamp(lines.phases, 1, stride);
    Peaks vertical = peaks_of(sums_, phases);
    result.vertical = std::move(vertical.phases);
    // Without vertical or slash only horizontal lines remain, which the vertical ones stand for.
    const double total = static_cast<double>(probe_.queries);
    const double even = static_cast<double>(phases) / stride;
    if (lines.vertical || !lines.slash) {
      result.gain += vertical.mass / total - even;
    }
    if (lines.slash) {
      fold(probe_.diagonals, 0, stride, sums_);
      Peaks slash = peaks_of(sums_, phases);
      result.slash = std::move(slash.phases);
      result.gain += slash.mass / total - even;
    }
    return result;
  }

 private:
  void fold_columns(int32_t stride) {
    if (region_.unbroken) {
      fold(probe_.columns, region_.row_coordinates.front(), stride, sums_);
      return;
    }
    sums_.assign(static_cast<size_t>(stride), 0.0f);
    for (size_t i = 0; i < probe_.columns.size(); ++i) {
      sums_[static_cast<size_t>(region_.row_coordinates[i] % stride)] += probe_.columns[i];
    }
  }

  const Region& region_;
  const Probe& probe_;
  std::vector<float> sums_;
};

}  // namespace

GridFit fit_grid(const Region& region, const Probe& probe, int32_t stride, const GridLines& lines) {
  if (probe.queries == 0) return {.stride = stride};
  return Folder(region, probe).fit(stride, lines);
}

GridFit search_grid(const Region& region, const Probe& probe, int32_t low, int32_t high,
                    const GridLines& lines) {
  if (probe.queries == 0) return {.stride = low};
  Folder folder(region, probe);
  GridFit best = folder.fit(low, lines);
  for (int32_t stride = low + 1; stride <= high; ++stride) {
    GridFit fit = folder.fit(stride, lines);
    if (fit.gain > best.gain) best = std::move(fit);
  }
  return best;
}

}  // namespace kinora
