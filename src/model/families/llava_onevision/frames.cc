#include "model/families/llava_onevision/frames.h"

#include <algorithm>
#include <cmath>

namespace kinora {

std::vector<int64_t> llava_uniform_frames(int64_t total, int64_t count) {
  std::vector<int64_t> frames;
  for (int64_t i = 0; i < count && total > 0; ++i) {
    // As numpy.linspace: i × step, and the end itself last.
    const double step =
        count > 1 ? static_cast<double>(total - 1) / static_cast<double>(count - 1) : 0;
    frames.push_back(i == count - 1 && count > 1
                         ? total - 1
                         : static_cast<int64_t>(static_cast<double>(i) * step));
  }
  return frames;
}

std::vector<int64_t> llava_video_frames(int64_t total, double fps, int64_t count) {
  const int64_t step = std::max<int64_t>(1, std::llround(fps));
  if ((total + step - 1) / step > count) return llava_uniform_frames(total, count);
  std::vector<int64_t> frames;
  for (int64_t frame = 0; frame < total; frame += step) frames.push_back(frame);
  return frames;
}

}  // namespace kinora
