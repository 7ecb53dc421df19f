// Where workers put frames and the consumer takes groups. Frames come in any order and leave in
// order of presentation. Only the groups within a window past the last one taken exist in memory; a
// worker that is ahead of the window waits. The worker with the earliest frames is always inside
// it, so there is always progress, provided that workers start an interval out of order only if
// all of it lies inside the window.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/cancel.h"
#include "base/frame_group.h"
#include "video/sampling.h"
#include "video/video.h"

namespace kinora {

class FrameQueue {
 public:
  FrameQueue(std::vector<SampledFrame> samples, FrameSize size, int64_t frames_per_group,
             int64_t window_groups);

  // --- workers ---
  // Room for sample number `sample`, u8 [height, width, 3], or nothing once the queue is stopped.
  // Waits until the sample is inside the window.
  std::optional<TensorView> reserve(int64_t sample);
  // Samples below this one can be reserved without waiting, now and later.
  int64_t samples_open() const;
  // True when reserve would wait now.
  bool beyond_window(int64_t sample) const;
  // The sample's pixels are complete, or will never come.
  void commit(int64_t sample);
  void lose(int64_t sample);
  // The consumer gets this error once what is complete has been taken.
  void fail(std::exception_ptr error);

  // --- consumer ---
  // Nothing at the end. Groups whose frames are all lost are passed over.
  std::optional<FrameGroup> next(const CancelToken& cancel);
  // Wakes everyone; reserve gives nothing from now on.
  void stop();
  bool stopped() const;

  int64_t samples() const { return static_cast<int64_t>(samples_.size()); }
  int64_t finished() const;  // samples that are complete or lost

 private:
  struct Group {
    std::shared_ptr<Buffer> pixels;  // null until the first frame
    int64_t open = 0;                // samples neither complete nor lost
    std::vector<bool> lost;
  };

  int64_t group_size(int64_t group) const;
  Group& group_of(int64_t sample);  // within the window
  void finish(int64_t sample, bool lost);
  FrameGroup take_front();
  Shape shape(int64_t frames) const { return {frames, size_.height, size_.width, 3}; }

  const std::vector<SampledFrame> samples_;
  const FrameSize size_;
  const int64_t frames_per_group_;
  const int64_t window_groups_;

  mutable std::mutex mutex_;
  std::condition_variable room_;   // the window moved
  std::condition_variable ready_;  // a group is complete, or something failed
  std::deque<Group> window_;       // groups [taken_, taken_ + window_.size())
  int64_t taken_ = 0;
  int64_t finished_ = 0;
  int64_t sequence_ = 0;
  std::exception_ptr error_;
  bool stopped_ = false;
};

}  // namespace kinora
