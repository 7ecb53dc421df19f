// Frames go through a vision tower a few units at a time: patches and scratch of a whole group
// would be the largest thing in memory. Used by the towers whose units do not see each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// The patches of units [first, first + count), made when their turn comes:
// [count × patches of a unit, columns] of the activations' type.
using PatchSource = std::function<Tensor(int64_t first, int64_t count)>;

// More patches at once make a CPU faster by a few percent at most and cost memory. A GPU has the
// memory, and needs more work at once.
constexpr int64_t patches_at_once = 1024;
constexpr int64_t gpu_patches_at_once = 65536;

inline int64_t units_at_once(const Context& context, int64_t unit_patches) {
  const int64_t most = context.device.is_cpu() ? patches_at_once : gpu_patches_at_once;
  return std::max<int64_t>(1, most / unit_patches);
}

// The frames [count, h, w, 3] of units [first, first + units); the last unit may be short.
inline ConstTensorView frames_of(ConstTensorView frames, int64_t frames_per_unit, int64_t first,
                                 int64_t units) {
  const int64_t begin = first * frames_per_unit;
  return frames.rows(begin, std::min(units * frames_per_unit, frames.size(0) - begin));
}

}  // namespace kinora
