// A video or picture that a question is about: opened, sampled and planned before any frame is
// decoded, so that what it will cost is known first.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <kinora/session.h>

#include "model/model.h"
#include "video/source/subtitles.h"
#include "video/video.h"

namespace kinora {

// How a source that is looked at as it comes is to come.
struct Coming {
  double speed = 0;    // times as fast as it was filmed; 0: as fast as it is taken
  bool drops = false;  // leave out what waits longest, instead of letting the source wait
  bool closes = true;  // the video ends with the source
  // Shown every frame, as the model sees it, on the thread that decodes; null: nobody.
  std::function<void(const FrameGroup& frames)> show = nullptr;
};

struct VisualRequest {
  std::string source;     // a path, URL, folder or "-"
  FrameChoice frames;     // of a video
  double folder_fps = 1;  // of a folder of pictures
  VisualLimits limits;    // pixels per frame
  // To be read along: a file, or "embedded" (":LANGUAGE"), inside the source; empty: none.
  std::string subtitles;
  bool keep_index = true;
  Coming coming;  // where it is looked at as it comes
  VideoLimits source_limits = {};
};

VideoLimits video_limits(const InputLimits& limits);

// Which frames are looked at, and how.
struct VisualLook {
  std::vector<SampledFrame> samples;
  VisualPlan plan;
};

struct VisualInput : VisualLook {
  std::string source;
  // Forks of a session share it; null: of a saved memory, which has its rows …
  std::shared_ptr<Video> video;
  std::string content;  // … and this key of its bytes
  VisualLimits limits;
  std::vector<Subtitle> subtitles;  // within the part asked for
  // Without a known end: how frames are chosen as they come. What has been looked at so far is in
  // `samples` and `plan.units`.
  std::optional<FrameChoice> open;
  Coming coming;
  // Of each unit that was read: its tokens that reached the decoder.
  std::vector<int64_t> unit_tokens;
  // Where a rule leaves tokens out: which of all its tokens these are, increasing.
  std::vector<int32_t> kept;
  std::string shortfall;  // what a truncated file lacks; empty: nothing
  bool read = false;      // its rows are, or were, in memory: it stays as it is

  // `frames` of the sampled frames, evenly spread, as large as they are.
  VisualLook fewer(int64_t frames) const;
  // Looks at these shares of the frames and of their pixels, but at least at one unit.
  void look_at_less(const Model& model, double frame_share, double pixel_share);
  // Moves the frames to cheaper ones, up to this share of their mean distance away, within the part
  // of the video that was chosen.
  void snap(double share, const FrameChoice& among);
  // Plans anew for a prompt with `images` pictures: some models look closer at a single one.
  void plan_among(const Model& model, int64_t images);
};

// Opens and plans. Throws usage errors for a choice of frames that makes no sense, and whatever
// open_video throws.
VisualInput open_visual(const Model& model, const VisualRequest& request, OpenOptions options);

// Opens a video that is looked at as it comes, live or not, and plans its frames, of which none has
// been looked at. The shares are those of VisualInput::look_at_less; a rate that was asked for
// stays.
VisualInput open_endless(const Model& model, const VisualRequest& request, double frame_share,
                         double pixel_share, OpenOptions options);

}  // namespace kinora
