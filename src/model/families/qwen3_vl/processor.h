// The image and video processor of Qwen3-VL: pictures as Qwen2.5-VL's processor has them, with
// other patches; a video's size follows from a budget for all its frames together. Equal to Hugging
// Face's processors. Used by qwen3_vl.cc.
#pragma once

#include <cstdint>
#include <string>

#include "base/context.h"
#include "base/file.h"
#include "base/tensor.h"
#include "model/families/qwen2_5_vl/processor.h"
#include "model/visual_plan.h"

namespace kinora {

// The size of a video's frames: multiples of `factor` that keep the ratio, with an area times
// `frames` (to the nearest pair) within [min_pixels, max_pixels]. Sides below the factor are
// enlarged first. Throws when one side is over 200 times the other.
Size video_resize(Size source, int64_t frames, int64_t temporal_patch, int64_t factor,
                  double min_pixels, double max_pixels);

class Qwen3Processor {
 public:
  static Qwen3Processor read(const FileSystem& files, const std::string& directory);
  // As QwenProcessor::parse.
  static Qwen3Processor parse(const std::string& text, const std::string& where,
                              const std::string& video_text = "");

  const QwenProcessor::Config& config() const { return pictures_.config(); }

  // The caller's limits are those of one frame; for a video the total budget still holds.
  VisualPlan plan(const VisualSource& source, const VisualLimits& limits) const;

  Tensor patches(const Context& context, ConstTensorView frames, const PatchFormat& format) const {
    return pictures_.patches(context, frames, format);
  }

 private:
  explicit Qwen3Processor(const QwenProcessor& pictures) : pictures_(pictures) {}
  double most_pixels(int64_t frames) const;

  QwenProcessor pictures_;
  double least_ = 0, most_ = 0;    // pixels of a whole video
  int64_t most_frame_tokens_ = 0;  // above 0: a cap on every frame, as qwen-vl-utils has it
};

}  // namespace kinora
