// A run of sampled frames on its way from video/ to a model: model-size RGB pixels and the exact
// presentation time of each. video/ makes groups, engine/ carries them, model/ reads them.
#pragma once

#include <cstdint>
#include <vector>

#include "base/tensor.h"

namespace kinora {

struct FrameGroup {
  int64_t sequence = 0;        // 0, 1, 2 … in presentation order within one source
  Tensor pixels;               // u8 [frames, height, width, 3], RGB, on the CPU
  std::vector<double> times;   // seconds from the start of the video, one per frame
  std::vector<int64_t> index;  // presentation index in the source of each frame, one per frame

  int64_t frames() const { return pixels.defined() ? pixels.size(0) : 0; }
  int64_t height() const { return pixels.size(1); }
  int64_t width() const { return pixels.size(2); }
};

}  // namespace kinora
