// What a model wants of a picture or video before it is decoded: size, filter, units, tokens, time.
// Processors make plans, the engine decodes by them, the families encode by them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/modality.h"
#include "ops/resize.h"

namespace kinora {

struct Size {
  int64_t width = 0;
  int64_t height = 0;
  bool operator==(const Size&) const = default;
};

// A picture or video that a question is about, before it is decoded.
struct VisualSource {
  Modality modality = Modality::video;  // image or video
  Size size;                            // of the source, rotation applied
  int64_t frames = 1;                   // that were sampled
  double sampled_fps = 0;               // of those frames; 0 for an image
  int64_t images_in_prompt = 1;         // some models look closer at a single picture
};

// Which frames of a video a person asked for; neither a rate nor a number: the family's own choice.
struct FrameWish {
  std::optional<double> fps;
  std::optional<int64_t> count;
  // The number in the source of the first frame to choose from. Rules that round in single
  // precision depend on it.
  int64_t first = 0;
};

// Limits a caller may set in place of the model's own; 0 means the model's own.
struct VisualLimits {
  int64_t min_pixels = 0;  // per frame
  int64_t max_pixels = 0;  // per frame
};

// How the model wants a source: sizes, tokens, time. Frames are consumed in units.
struct VisualPlan {
  VisualSource source;
  Size frame_size;  // what video/ must deliver
  ResizeFilter filter = ResizeFilter::bicubic;
  int64_t frames_per_unit = 1;  // a short last unit is padded
  int64_t units = 1;
  int64_t tokens_per_unit = 0;
  int64_t trailing_tokens = 0;  // after the last unit: a newline, for example
  double seconds_per_unit = 0;
  Size grid;                 // tokens across and down one unit, for M-RoPE
  bool units_apart = false;  // each unit is a part of the prompt of its own, with its time in text

  int64_t tokens() const { return units * tokens_per_unit + trailing_tokens; }

  // The same for another number of frames from the same stretch of time; each keeps its size.
  VisualPlan with_frames(int64_t frames) const {
    const double share = static_cast<double>(frames) / static_cast<double>(source.frames);
    VisualPlan plan = *this;
    plan.source.frames = frames;
    plan.source.sampled_fps *= share;
    plan.units = (frames + frames_per_unit - 1) / frames_per_unit;
    plan.seconds_per_unit /= share;
    return plan;
  }
};

// The number of frames, at least one unit, that fill whole units.
inline int64_t whole_units(int64_t frames, int64_t frames_per_unit) {
  const int64_t units = frames / frames_per_unit + (frames % frames_per_unit != 0 ? 1 : 0);
  return std::max<int64_t>(1, units) * frames_per_unit;
}

}  // namespace kinora
