// Frames of a video without the rest of kinora:
//
//   kinora::VideoFile video("talk.mp4");
//   kinora::FrameRequest request;
//   request.rule = kinora::FrameRequest::Rule::every;
//   request.fps = 1;
//   request.width = request.height = 448;
//   video.read(request, [](const kinora::FrameBlock& block) { use(block); return true; });
//
// Keyframe intervals are decoded in parallel; blocks come in order while later ones are still being
// decoded. A frame is always the one that plain sequential decoding would give for its index.
// Sources are paths, URLs, folders of pictures and "-" for standard input. Failures are
// kinora::Error.
#pragma once

#include <kinora/cancel.h>
#include <kinora/error.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kinora {

struct FrameRequest {
  enum class Rule {
    qwen,     // evenly from first to last, rounded, as Qwen-VL was trained; from fps or count
    every,    // the frame on screen every 1/fps seconds
    uniform,  // `count` frames from first to last
    indices,
    times,
    all,
  };
  Rule rule = Rule::qwen;
  double fps = 2;
  int64_t count = 0;
  std::vector<int64_t> indices;  // ranks in order of presentation
  std::vector<double> times;     // seconds from the first frame
  double start = 0;              // seconds
  double end = std::numeric_limits<double>::infinity();

  int64_t width = 0;  // of the delivered frames; 0: as the upright source
  int64_t height = 0;
  std::string filter = "bicubic";  // or "area", "bilinear", "nearest"
  int64_t frames_per_block = 16;
  int threads = 0;  // 0: one for every core
  CancelToken cancel;
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

class VideoFile {
 public:
  // `live` reads pipes and URLs as they come, without an index.
  explicit VideoFile(const std::string& source, bool live = false);
  ~VideoFile();
  VideoFile(VideoFile&&) noexcept;
  VideoFile& operator=(VideoFile&&) noexcept;

  VideoSummary summary();

  // Calls `take` with one block after another until it returns false or the frames are through.
  ReadSummary read(const FrameRequest& request,
                   const std::function<bool(const FrameBlock& block)>& take);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kinora
