// Frames in whole units of a visual plan, exactly as many as were sampled. A frame that is missing
// from a damaged file is replaced by its neighbour, so that every token keeps its place in time;
// the video's report says what was lost.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "engine/ingest/unit_source.h"
#include "engine/ingest/visual_input.h"

namespace kinora {

class UnitStream final : public UnitSource {
 public:
  UnitStream(VisualInput& input, ReadOptions options, int64_t frames_per_group);

  std::optional<Units> next() override;

  ReadReport report() const override { return stream_.report(); }

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
