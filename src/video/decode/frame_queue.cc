#include "video/decode/frame_queue.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace kinora {

namespace {

constexpr auto cancel_poll = std::chrono::milliseconds(20);

}  // namespace

FrameQueue::FrameQueue(std::vector<SampledFrame> samples, FrameSize size, int64_t frames_per_group,
                       int64_t window_groups)
    : samples_(std::move(samples)),
      size_(size),
      frames_per_group_(frames_per_group),
      window_groups_(window_groups) {}

int64_t FrameQueue::group_size(int64_t group) const {
  return std::min(frames_per_group_, samples() - group * frames_per_group_);
}

FrameQueue::Group& FrameQueue::group_of(int64_t sample) {
  const int64_t group = sample / frames_per_group_;
  while (taken_ + static_cast<int64_t>(window_.size()) <= group) {
    Group fresh;
    fresh.open = group_size(taken_ + static_cast<int64_t>(window_.size()));
    fresh.lost.resize(static_cast<size_t>(fresh.open));
    window_.push_back(std::move(fresh));
  }
  return window_[static_cast<size_t>(group - taken_)];
}

std::optional<TensorView> FrameQueue::reserve(int64_t sample) {
  std::unique_lock lock(mutex_);
  const int64_t number = sample / frames_per_group_;
  room_.wait(lock, [&] { return stopped_ || number < taken_ + window_groups_; });
  if (stopped_) return {};
  Group& group = group_of(sample);
  const Shape whole = shape(group_size(number));
  if (!group.pixels) {
    group.pixels = Buffer::allocate(Device::cpu(), static_cast<size_t>(whole.elements()));
  }
  return TensorView(group.pixels->data(), DType::u8, whole)[sample % frames_per_group_];
}

int64_t FrameQueue::samples_open() const {
  const std::lock_guard lock(mutex_);
  return (taken_ + window_groups_) * frames_per_group_;
}

bool FrameQueue::beyond_window(int64_t sample) const {
  const std::lock_guard lock(mutex_);
  return sample / frames_per_group_ >= taken_ + window_groups_;
}

void FrameQueue::commit(int64_t sample) { finish(sample, false); }

void FrameQueue::lose(int64_t sample) { finish(sample, true); }

void FrameQueue::finish(int64_t sample, bool lost) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  Group& group = group_of(sample);
  group.lost[static_cast<size_t>(sample % frames_per_group_)] = lost;
  ++finished_;
  if (--group.open == 0) ready_.notify_one();
}

void FrameQueue::fail(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  stopped_ = true;
  room_.notify_all();
  ready_.notify_all();
}

void FrameQueue::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  room_.notify_all();
  ready_.notify_all();
}

bool FrameQueue::stopped() const {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

int64_t FrameQueue::finished() const {
  const std::lock_guard lock(mutex_);
  return finished_;
}

std::optional<FrameGroup> FrameQueue::next(const CancelToken& cancel) {
  std::unique_lock lock(mutex_);
  while (taken_ * frames_per_group_ < samples()) {
    if (cancel.cancelled()) {
      stopped_ = true;
      room_.notify_all();
      throw Error(ErrorKind::cancelled, "cancelled");
    }
    if (!window_.empty() && window_.front().open == 0) {
      FrameGroup group = take_front();
      room_.notify_all();
      if (group.frames() > 0) return group;
      continue;
    }
    if (error_) std::rethrow_exception(error_);
    if (stopped_) return {};
    ready_.wait_for(lock, cancel_poll);
  }
  return {};
}

FrameGroup FrameQueue::take_front() {
  Group group = std::move(window_.front());
  window_.pop_front();
  const int64_t first = taken_ * frames_per_group_;
  ++taken_;
  FrameGroup result;
  const size_t bytes = static_cast<size_t>(shape(1).elements());
  size_t kept = 0;
  for (size_t i = 0; i < group.lost.size(); ++i) {
    if (group.lost[i]) continue;
    std::byte* pixels = group.pixels->data();
    if (kept != i) std::memcpy(pixels + kept * bytes, pixels + i * bytes, bytes);
    const SampledFrame& sample = samples_[static_cast<size_t>(first) + i];
    result.times.push_back(sample.time);
    result.index.push_back(sample.index);
    ++kept;
  }
  if (kept == 0) return result;
  result.pixels = Tensor(group.pixels, 0, DType::u8, shape(static_cast<int64_t>(kept)));
  result.sequence = sequence_++;
  return result;
}

}  // namespace kinora
