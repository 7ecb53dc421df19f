// Heads of random patterns, for tests of plans on a GPU.
#pragma once

#include "attention/cuda/lines/line_plan_cuda.h"
#include "base/random.h"

namespace kinora::testing {

// A grid of any kind that the device plans, its stride given or searched. Those with slashes have a
// window only where `combs`.
inline GridLook random_grid(Random& random, bool combs) {
  const auto size = [&](int64_t most) { return static_cast<int32_t>(random.below(most)); };
  GridLook grid;
  const int32_t shown = 1 + size(7);
  grid.horizontal = shown & 1;
  grid.vertical = shown >> 1 & 1;
  grid.slash = shown >> 2 & 1;
  grid.sink = size(2) * size(60);
  grid.phases = 1 + size(2) * size(5);
  grid.stride = size(2) * (1 + size(size(2) == 0 ? 30 : 700));
  grid.most_stride = 8 + size(2) * size(300);
  if ((combs || grid.slash == 0) && size(2) == 0) grid.local = grid.phases + 1 + size(200);
  return grid;
}

inline cuda_attention::LineHead random_grid_head(Random& random, bool combs) {
  cuda_attention::LineHead head;
  head.probed = head.has_grid = 1;
  head.grid = random_grid(random, combs);
  return head;
}

// Bands of some sizes, everything, or strongest lines.
inline cuda_attention::LineHead random_line_head(Random& random) {
  const auto size = [&](int64_t most) { return static_cast<int32_t>(random.below(most)); };
  cuda_attention::LineHead head;
  if (random.below(3) > 0) {
    head.probed = 1;
    head.strongest = {size(150), size(40), size(90), size(110)};
    return head;
  }
  head.sink = size(3) * size(150);
  head.local = size(3) * size(200);
  head.bottom = size(4) == 0 ? 1 << 30 : size(2) * size(300);
  return head;
}

}  // namespace kinora::testing
