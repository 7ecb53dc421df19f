// Finds the stride and the phases of a grid head online, from a probe. Derivation and the choice of
// measure: docs/methods/grid.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/plan/region.h"
#include "attention/search/probe.h"

namespace kinora {

constexpr int32_t least_stride = 8;  // the smallest worth searching for

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

// Best phases of one stride. The horizontal phase is the vertical one: the probe's last queries
// cannot show it, and the lines of grid heads are nearly symmetric.
GridFit fit_grid(const Region& region, const Probe& probe, int32_t stride, const GridLines& lines);

// The stride of [low, high] with the largest gain; the smaller one among equals.
GridFit search_grid(const Region& region, const Probe& probe, int32_t low, int32_t high,
                    const GridLines& lines);

}  // namespace kinora
