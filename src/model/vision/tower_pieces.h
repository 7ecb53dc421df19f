// Frames go through a vision tower a few units at a time: patches and scratch of a whole group
// would be the largest thing in memory. Used by the families whose units do not see each other.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// A CPU is as fast with this many patches as with more. A GPU has the memory, and needs more work
// at once.
constexpr int64_t patches_at_once = 1024;
constexpr int64_t gpu_patches_at_once = 65536;

inline int64_t units_at_once(const Context& context, int64_t unit_patches) {
  const int64_t most = context.device.is_cpu() ? patches_at_once : gpu_patches_at_once;
  return std::max<int64_t>(1, most / unit_patches);
}

// encode(frames): the tokens of whole units, f32 [tokens, width]; the last unit may be short.
// Gives those of all frames. On a GPU they go to the tower together.
template <class Encode>
Tensor encode_in_pieces(const Context& context, ConstTensorView frames, int64_t frames_per_unit,
                        int64_t unit_patches, const Encode& encode) {
  const int64_t piece_units = units_at_once(context, unit_patches);
  const int64_t count = frames.size(0), at_once = piece_units * frames_per_unit;
  if (count <= at_once || !context.device.is_cpu()) return encode(frames);
  const int64_t units = (count + frames_per_unit - 1) / frames_per_unit;
  Tensor result;
  int64_t row = 0;
  for (int64_t first = 0; first < count; first += at_once) {
    const Tensor piece = encode(frames.rows(first, std::min(at_once, count - first)));
    if (!result.defined()) {
      result = Tensor(DType::f32, Shape{piece.size(0) / piece_units * units, piece.size(1)});
    }
    std::copy_n(piece.data<float>(), piece.elements(), result.view().row<float>(row));
    row += piece.size(0);
  }
  return result;
}

}  // namespace kinora
