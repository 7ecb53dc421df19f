#include "attention/search/grid_search.h"

#include <algorithm>
#include <functional>
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

// What the lines of one stride hold.
double gain_of(const GridLines& lines, int32_t stride, int32_t phases, double queries,
               double vertical, double slash) {
  const double even = static_cast<double>(phases) / stride;
  double gain = 0;
  // Without vertical or slash only horizontal lines remain, which the vertical ones stand for.
  if (lines.vertical || !lines.slash) gain += vertical / queries - even;
  if (lines.slash) gain += slash / queries - even;
  return gain;
}

class Folder {
 public:
  Folder(const Region& region, const Probe& probe)
      : probe_(probe), first_(region.row_coordinates.front()), columns_(probe.columns) {
    if (region.unbroken) return;
    // By coordinate, gaps as zeros, so that rows of a stride can be added up.
    placed_.resize(static_cast<size_t>(region.row_coordinates.back() - first_ + 1));
    for (size_t i = 0; i < probe.columns.size(); ++i) {
      placed_[static_cast<size_t>(region.row_coordinates[i] - first_)] = probe.columns[i];
    }
    columns_ = placed_;
  }

  GridFit fit(int32_t stride, const GridLines& lines) {
    GridFit result;
    result.stride = stride;
    const int32_t phases = std::clamp(lines.phases, 1, stride);
    Peaks vertical = peaks_of(columns(stride), phases);
    Peaks slash;
    if (lines.slash) {
      slash = peaks_of(diagonals(stride), phases);
      result.slash = std::move(slash.phases);
    }
    result.vertical = std::move(vertical.phases);
    result.gain = gain_of(lines, stride, phases, static_cast<double>(probe_.queries), vertical.mass,
                          slash.mass);
    return result;
  }

  std::span<const float> columns(int32_t stride) {
    fold(columns_, first_, stride, sums_);
    return sums_;
  }
  std::span<const float> diagonals(int32_t stride) {
    fold(probe_.diagonals, 0, stride, sums_);
    return sums_;
  }

 private:
  const Probe& probe_;
  int64_t first_;
  std::span<const float> columns_;
  std::vector<float> placed_;
  std::vector<float> sums_;
};

}  // namespace

GridFolds::GridFolds(const Region& region, const Probe& probe, int32_t low, int32_t high)
    : low_(low), high_(high) {
  Folder folder(region, probe);
  std::vector<float> sorted;
  const auto add = [&](std::span<const float> sums, std::vector<double>& out) {
    sorted.assign(sums.begin(), sums.end());
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    double total = 0;
    for (const float sum : sorted) out.push_back(total += static_cast<double>(sum));
  };
  for (int32_t stride = low; stride <= high; ++stride) {
    begin_.push_back(std::ssize(columns_));
    add(folder.columns(stride), columns_);
    add(folder.diagonals(stride), diagonals_);
  }
}

std::shared_ptr<const GridFolds> fold_grids(const Region& region, const Probe& probe) {
  if (probe.queries == 0) return nullptr;
  return std::make_shared<GridFolds>(region, probe, least_stride, largest_stride(region));
}

int32_t largest_stride(const Region& region, int32_t most) {
  return static_cast<int32_t>(std::clamp<int64_t>(region.row_count() / 4, least_stride, most));
}

GridFit fit_grid(const Region& region, const Probe& probe, int32_t stride, const GridLines& lines) {
  if (probe.queries == 0) return {.stride = stride};
  return Folder(region, probe).fit(stride, lines);
}

GridFit search_grid(const Region& region, const Probe& probe, int32_t low, int32_t high,
                    const GridLines& lines) {
  if (probe.queries == 0) return {.stride = low};
  Folder folder(region, probe);
  if (probe.folds && probe.folds->has(low) && probe.folds->has(high)) {
    const auto gain = [&](int32_t stride) {
      const int32_t phases = std::clamp(lines.phases, 1, stride);
      return gain_of(lines, stride, phases, static_cast<double>(probe.queries),
                     probe.folds->columns(stride, phases), probe.folds->diagonals(stride, phases));
    };
    int32_t best = low;
    double most = gain(low);
    for (int32_t stride = low + 1; stride <= high; ++stride) {
      if (const double now = gain(stride); now > most) {
        most = now;
        best = stride;
      }
    }
    return folder.fit(best, lines);
  }
  GridFit best = folder.fit(low, lines);
  for (int32_t stride = low + 1; stride <= high; ++stride) {
    GridFit fit = folder.fit(stride, lines);
    if (fit.gain > best.gain) best = std::move(fit);
  }
  return best;
}

}  // namespace kinora
