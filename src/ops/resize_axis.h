// The weights of one axis of a resize: every target pixel is a weighted sum of a run of source
// pixels, in integers. Used by ops/resize_rows.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/resize.h"

namespace kinora {

struct ResizeAxis {
  int source = 0;  // pixels along the axis
  int target = 0;
  int shift = 0;  // a target pixel is (sum + half) >> shift, clamped to 8 bits

  // Pixels are taken in pairs, because the widening multiply of every instruction set adds pairs:
  // target pixel i reads `pairs(i)` pairs from pair first_pair[i] on (pair p is pixels 2p, 2p + 1).
  // The weights of its pixels start at weights[weight_begin[i]], zero where a pair hangs over.
  std::vector<int32_t> first_pair;
  std::vector<int32_t> weight_begin;  // target + 1 entries
  std::vector<int16_t> weights;

  int pairs(int i) const {
    const auto at = static_cast<size_t>(i);
    return (weight_begin[at + 1] - weight_begin[at]) / 2;
  }
  int max_pairs() const;
};

// Throws a usage error for sizes below 1 and a resource error for sizes above 65536.
ResizeAxis make_resize_axis(ResizeFilter filter, int source, int target);

// The weights as reals, for tests: for each target pixel the first source pixel and its weights,
// which sum to 1.
struct RealTaps {
  int begin = 0;
  std::vector<double> weights;
};
std::vector<RealTaps> real_resize_taps(ResizeFilter filter, int source, int target);

}  // namespace kinora
