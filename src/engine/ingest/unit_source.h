// Frames in whole units of a visual plan, one run of units after another. UnitStream gives those
// that were sampled from a file; OpenUnitStream those of a source that nobody knows the end of.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/frame_group.h"
#include "video/video.h"

namespace kinora {

struct Units {
  int64_t first = 0;  // number of the first unit
  int64_t count = 0;
  bool last = false;          // the item ends here
  FrameGroup frames;          // count × frames_per_unit, fewer only when last
  std::vector<double> times;  // of each unit: its first frame's
};

class UnitSource {
 public:
  virtual ~UnitSource() = default;

  // The next units; waits for them. Nothing after those that are the last.
  virtual std::optional<Units> next() = 0;
  // Complete once next() has returned nothing.
  virtual ReadReport report() const = 0;
};

}  // namespace kinora
