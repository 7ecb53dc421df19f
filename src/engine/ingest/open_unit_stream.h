// Units of a source without a known end: a pipe, a camera, a stream. Nobody knows which unit is the
// last before the source has ended, so the end may come alone, as a run of no units.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "engine/ingest/unit_source.h"
#include "model/visual_plan.h"

namespace kinora {

// Frames that come in groups of any size become runs of whole units. Pure.
class UnitAssembler {
 public:
  // If the video does not close with its source, its last frame fills up a short unit and no run is
  // the last.
  UnitAssembler(int64_t frames_per_unit, int64_t frames_per_group, bool closes = true);

  void add(FrameGroup frames);
  void end();

  // A full group, if there is one; after the end also what is left, with a short last unit if need
  // be, and in any case one run that is the last.
  std::optional<Units> next();

 private:
  FrameGroup take(int64_t frames);

  const int64_t frames_per_unit_;
  const int64_t frames_per_group_;
  const bool closes_;
  std::deque<FrameGroup> waiting_;
  int64_t used_ = 0;    // frames of the first of them
  int64_t frames_ = 0;  // that wait
  int64_t units_ = 0;   // handed out
  bool ended_ = false;
  bool closed_ = false;
};

class OpenUnitStream final : public UnitSource {
 public:
  OpenUnitStream(FrameStream frames, const VisualPlan& plan, int64_t frames_per_group,
                 bool closes = true);

  std::optional<Units> next() override;
  ReadReport report() const override { return frames_.report(); }

 private:
  FrameStream frames_;
  UnitAssembler units_;
  bool ended_ = false;
};

}  // namespace kinora
