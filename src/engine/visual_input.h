// A video or picture that a question is about: opened, sampled and planned before any frame is
// decoded, so that what it will cost is known first.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/model.h"
#include "video/video.h"

namespace kinora {

struct VisualRequest {
  std::string source;         // a path, URL, folder or "-"
  std::optional<double> fps;  // at most one of fps and frames; neither: the model's own rule
  std::optional<int64_t> frames;
  bool all_frames = false;  // every frame of the source, whatever the model's rule
  double folder_fps = 1;    // of a folder of pictures
  double start = 0;         // seconds
  double end = std::numeric_limits<double>::infinity();
  VisualLimits limits;  // pixels per frame
};

struct VisualInput {
  std::string source;
  std::unique_ptr<Video> video;
  std::vector<SampledFrame> samples;
  VisualLimits limits;
  VisualPlan plan;

  // Plans anew for a prompt with so many pictures: some models look closer at a single one.
  void plan_among(const Model& model, int64_t images);
};

// Opens and plans. Throws usage errors for an fps or count that makes no sense, and whatever
// open_video throws.
VisualInput open_visual(const Model& model, const VisualRequest& request, OpenOptions options);

}  // namespace kinora
