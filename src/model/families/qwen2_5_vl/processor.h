// The image and video processor of Qwen2.5-VL: sizes that suit the patches, and frames cut into
// the rows that the vision tower reads. Equal to Hugging Face's processor and, for the budget of
// video frames, to qwen-vl-utils, which the models were trained with. Used by qwen2_5_vl.cc.
#pragma once

#include <cstdint>
#include <string>

#include "base/context.h"
#include "base/file.h"
#include "base/tensor.h"
#include "model/vision/processor_pixels.h"
#include "model/visual_plan.h"

namespace kinora {

// Rounds both sides to multiples of `factor`, keeping the ratio and an area within
// [min_pixels, max_pixels]. The two published variants differ only for strips thinner than half a
// factor: qwen-vl-utils (`at_least_one`) gives such a side one factor first, the image processor
// calls the area too small and enlarges. Throws when one side is over 200 times the other.
Size smart_resize(Size source, int64_t factor, double min_pixels, double max_pixels,
                  bool at_least_one);

class QwenProcessor {
 public:
  struct Config {
    int64_t patch = 14;
    int64_t temporal_patch = 2;
    int64_t merge = 2;
    int64_t min_pixels = 56 * 56;
    int64_t max_pixels = 28 * 28 * 1280;
    int64_t video_min_pixels = 0;  // of a frame; 0: as of an image
    int64_t video_max_pixels = 0;
  };

  QwenProcessor(const Config& config, const PixelNormalizer& normalizer)
      : config_(config), normalizer_(normalizer) {}

  // The settings in a model directory.
  static QwenProcessor read(const FileSystem& files, const std::string& directory);
  // `text` is the content of preprocessor_config.json, `where` its path; `video_text` that of the
  // video processor's own file, if any.
  static QwenProcessor parse(const std::string& text, const std::string& where,
                             const std::string& video_text = "");

  const Config& config() const { return config_; }

  // The caller's limits replace the model's; for video the total budget still holds.
  VisualPlan plan(const VisualSource& source, const VisualLimits& limits) const;

  // Frames u8 [n, height, width, 3] of the planned size → f32 [units · rows · columns,
  // 3 · temporal_patch · patch²]. Rows go unit by unit, then by merged block, then inside the
  // block; columns by channel, frame of the unit, y, x. A short last unit repeats its last frame.
  Tensor patches(const Context& context, ConstTensorView frames,
                 const PatchFormat& format = {}) const;

 private:
  Config config_;
  PixelNormalizer normalizer_;
};

}  // namespace kinora
