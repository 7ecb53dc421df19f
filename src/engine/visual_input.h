// A video or picture that a question is about: opened, sampled and planned before any frame is
// decoded, so that what it will cost is known first.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/subtitles.h"
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
  VisualLimits limits;    // pixels per frame
  std::string subtitles;  // a file, to be read along; empty: none
  bool keep_index = true;
};

struct VisualInput {
  std::string source;
  std::unique_ptr<Video> video;
  std::vector<SampledFrame> samples;
  VisualLimits limits;
  VisualPlan plan;
  std::vector<Subtitle> subtitles;  // within the part asked for
  int64_t sampled = 0;              // frames that were to be looked at, before any budget
  std::string shortfall;            // what a file cut short does not have; empty: nothing
  bool read = false;                // its rows are, or were, in memory: it stays as it is

  // Looks at so many of the sampled frames, evenly spread, and plans anew.
  void look_at(const Model& model, int64_t frames);
  // Looks at these shares of the frames and of their pixels, at one unit at least.
  void look_at_less(const Model& model, double frame_share, double pixel_share);
  // Plans anew for a prompt with so many pictures: some models look closer at a single one.
  void plan_among(const Model& model, int64_t images);
};

// Opens and plans. Throws usage errors for an fps or count that makes no sense, and whatever
// open_video throws.
VisualInput open_visual(const Model& model, const VisualRequest& request, OpenOptions options);

}  // namespace kinora
