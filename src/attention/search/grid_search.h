// Finds the stride and the phases of a grid head online, from a probe. Derivation and the choice of
// measure: docs/methods/grid.md.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/plan/region.h"
#include "attention/search/probe.h"

namespace kinora {

constexpr int32_t least_stride = 8;  // the smallest worth searching for
constexpr int32_t most_stride = 1024;

struct GridLines {
  bool horizontal = true;
  bool vertical = true;
  bool slash = true;
  int32_t phases = 1;  // of each, at most the stride
};

struct GridFit {
  int32_t stride = 1;
  std::vector<int32_t> vertical{0};  // the strongest phases, found whether or not the line is
  std::vector<int32_t> slash{0};     // wanted; increasing
  double gain = 0;  // attention held by the wanted lines beyond an even share, per query
};

// The strongest phases of every stride, added up: what a search of strides looks up again and again
// when it is asked for one grid after another.
class GridFolds {
 public:
  GridFolds(const Region& region, const Probe& probe, int32_t low, int32_t high);

  bool has(int32_t stride) const { return stride >= low_ && stride <= high_; }
  // Weight of the `phases` strongest lines of a stride, at most all of them.
  double columns(int32_t stride, int32_t phases) const { return at(columns_, stride, phases); }
  double diagonals(int32_t stride, int32_t phases) const { return at(diagonals_, stride, phases); }

 private:
  double at(const std::vector<double>& sums, int32_t stride, int32_t phases) const {
    return sums[static_cast<size_t>(begin_[static_cast<size_t>(stride - low_)] + phases - 1)];
  }

  int32_t low_, high_;
  std::vector<int64_t> begin_;               // [strides]
  std::vector<double> columns_, diagonals_;  // [strides][phases]: sums of the largest 1, 2, …
};

// Folds for every stride that a grid may search in this region.
std::shared_ptr<const GridFolds> fold_grids(const Region& region, const Probe& probe);

// Best phases of one stride. The horizontal phase is the vertical one: the probe's last queries
// cannot show it, and the lines of grid heads are nearly symmetric.
GridFit fit_grid(const Region& region, const Probe& probe, int32_t stride, const GridLines& lines);

// The largest stride that is searched in a region: a line needs a few periods to be one.
int32_t largest_stride(const Region& region, int32_t most = most_stride);

// The stride of [low, high] with the largest gain; the smaller one among equals.
GridFit search_grid(const Region& region, const Probe& probe, int32_t low, int32_t high,
                    const GridLines& lines);

}  // namespace kinora
