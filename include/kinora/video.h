// Frames of a video without the rest of kinora:
//
//   kinora::VideoFile video("talk.mp4");
//   video.read({.frames = kinora::FrameChoice::rate(1), .width = 448, .height = 448},
//              [](const kinora::FrameBlock& block) { use(block); return true; });
//
// Keyframe intervals are decoded in parallel; blocks come in order while later ones are still being
// decoded. A frame is always the one that plain sequential decoding would give for its index.
// Sources are paths, URLs, folders of pictures and "-" for standard input. Failures are
// kinora::Error.
#pragma once

#include <kinora/api.h>
#include <kinora/cancel.h>
#include <kinora/error.h>
#include <kinora/frames.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kinora {

// What to read, and how.
struct FrameRequest {
  // There is no model here: a choice left to the model, as by default, means the frame on screen
  // every half second (2 fps). A live source has no length, so its frames cannot be spread
  // evenly.
  FrameChoice frames = {};
  int64_t width = 0;  // of the delivered frames; 0 and 0: as the upright source
  int64_t height = 0;
  std::string filter = "bicubic";  // or "area", "bilinear", "nearest"
  int64_t frames_per_block = 16;
  int threads = 0;  // 0: one per core
  CancelToken cancel = {};
};

// Consecutive frames in RGB. The pixels are valid during the call only.
struct FrameBlock {
  int64_t frames = 0;
  int64_t height = 0;
  int64_t width = 0;
  const uint8_t* pixels = nullptr;  // frames × height × width × 3
  const double* times = nullptr;    // seconds, one for each frame
  const int64_t* indices = nullptr;
};

struct VideoSummary {
  std::string container;
  std::string codec;
  int64_t width = 0;  // upright
  int64_t height = 0;
  int rotation = 0;     // degrees clockwise that were applied
  int64_t frames = 0;   // exact; 0 for a live source
  double duration = 0;  // seconds
  double fps = 0;       // average
  int64_t keyframes = 0;
};

struct ReadSummary {
  int64_t delivered = 0;
  int64_t lost = 0;                                // sampled frames that could not be decoded
  std::vector<std::pair<double, double>> damaged;  // stretches, seconds
};

class KINORA_API VideoFile {
 public:
  // `live` reads pipes and URLs as they come, without an index.
  explicit VideoFile(const std::string& source, bool live = false);
  ~VideoFile();
  VideoFile(VideoFile&&) noexcept;
  VideoFile& operator=(VideoFile&&) noexcept;

  VideoSummary summary();

  // Calls `take` with one block after another until it returns false or no frames are left.
  ReadSummary read(const FrameRequest& request,
                   const std::function<bool(const FrameBlock& block)>& take);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kinora
