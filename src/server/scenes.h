// Scenes of a video by what its frames look like: it is cut where one frame differs from the next
// more than frames usually do, and stretches that look alike are of one cluster, wherever they
// stand. Pure. Used by video_library.cc.
#pragma once

#include <cstdint>
#include <vector>

namespace kinora::server {

struct Scene {
  double start = 0;  // seconds
  double end = 0;
  int64_t cluster = 0;  // numbered as they first appear
};

// A frame made small: its time and its bytes, the same number for all.
struct SmallFrame {
  double time = 0;
  std::vector<uint8_t> pixels;
};

std::vector<Scene> find_scenes(const std::vector<SmallFrame>& frames, double duration);

}  // namespace kinora::server
