// Frames in whole units of a visual plan, exactly as many as were sampled. A frame that is missing
// from a damaged file is replaced by its neighbour, so that every token keeps its place in time;
// the video's report says what was lost.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "engine/visual_input.h"

namespace kinora {

class UnitStream {
 public:
  UnitStream(VisualInput& input, ReadOptions options, int64_t frames_per_group);

  struct Units {
    int64_t first = 0;  // number of the first unit
    int64_t count = 0;
    bool last = false;          // the item ends here
    FrameGroup frames;          // count × frames_per_unit, fewer only when last
    std::vector<double> times;  // of each unit: its first frame's
  };
  std::optional<Units> next();

  ReadReport report() const { return stream_.report(); }

 private:
  // One frame of a group that is kept alive by it.
  struct Frame {
    int64_t index = 0;  // in the source
    Tensor group;       // u8 [frames, h, w, 3]
    int64_t row = 0;
  };
  bool is_exactly(const FrameGroup& group, int64_t wanted) const;
  FrameGroup assemble(int64_t wanted);

  const VisualInput& input_;
  int64_t frames_per_group_;
  FrameStream stream_;
  bool ended_ = false;
  int64_t delivered_ = 0;      // samples handed out
  std::deque<Frame> waiting_;  // received, not yet handed out
  std::optional<Frame> previous_;
};

}  // namespace kinora
