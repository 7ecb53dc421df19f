// Reading a source that cannot be indexed: frames are decoded in order as they come, and the choice
// is applied on the way. Everything is decoded; only sampled frames are converted.
#pragma once

#include <memory>

#include "video/decode/frame_stream.h"
#include "video/sampling.h"
#include "video/source/demuxer.h"

namespace kinora {

struct LiveRead {
  std::unique_ptr<Demuxer> demuxer;
  FrameChoice choice;
  FrameSize size;
  MakeConvertFrame make_convert;
  VideoLimits limits;
  ReadOptions options;
};

std::unique_ptr<FrameStream::Job> start_live_read(LiveRead read);

// Applies a choice to frames as they come. Pure, so that it can be tested against sample_frames.
class LiveSampler {
 public:
  explicit LiveSampler(const FrameChoice& choice);

  // How often the frame before is to be delivered, now that a frame at `time` has come. For the
  // first frame the answer is 0.
  int64_t arrive(double time);
  // How often the last frame is to be delivered when the source ends at `end`.
  int64_t finish(double end);
  // No later frame can be sampled.
  bool done() const { return done_; }

 private:
  // Samples that fall on the held frame, on screen within [held_time_, until).
  int64_t count(double until);

  FrameChoice choice_;
  bool holding_ = false;
  double held_time_ = 0;
  int64_t held_index_ = -1;
  int64_t next_ = 0;  // of the samples chosen
  bool done_ = false;
};

}  // namespace kinora
