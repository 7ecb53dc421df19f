#include "video/source/live_read.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "video/decode/picture_decoder.h"

namespace kinora {

namespace {

constexpr double tolerance = 1e-6;
constexpr double longest_gap = 600;  // seconds between two frames of a source whose clock is sound
constexpr auto cancel_poll = std::chrono::milliseconds(20);
constexpr int64_t default_queue_groups = 4;

class LiveJob final : public FrameStream::Job {
 public:
  explicit LiveJob(LiveRead read) : read_(std::move(read)), sampler_(read_.choice) {
    ReadOptions& options = read_.options;
    const int64_t groups = options.queue_groups > 0 ? options.queue_groups : default_queue_groups;
    const GroupRoom room =
        choose_group_room(options.frames_per_group, groups, read_.size, read_.limits);
    options.frames_per_group = room.frames;
    options.queue_groups = room.groups;
    read_.demuxer->obey(read_.options.cancel, stop_);
    worker_ = std::thread([this] { work(); });
  }

  ~LiveJob() override {
    stop_.cancel();
    room_.notify_all();
    worker_.join();
  }

  std::optional<FrameGroup> next() override {
    std::unique_lock lock(mutex_);
    while (true) {
      read_.options.cancel.check();
      if (!groups_.empty()) {
        FrameGroup group = std::move(groups_.front());
        groups_.pop_front();
        report_.delivered += group.frames();
        room_.notify_all();
        return group;
      }
      if (error_) std::rethrow_exception(error_);
      if (finished_) return {};
      ready_.wait_for(lock, cancel_poll);
    }
  }

  FrameSize size() const override { return read_.size; }

  ReadReport report() const override {
    const std::lock_guard lock(mutex_);
    ReadReport report = report_;
    report.damaged = join_spans(report.damaged);
    return report;
  }

 private:
  bool stopped() const { return stop_.cancelled() || read_.options.cancel.cancelled(); }

  void work() {
    std::exception_ptr error;
    try {
      decode();
    } catch (...) {
      error = std::current_exception();
      if (!group_.index.empty()) push_group();
    }
    const std::lock_guard lock(mutex_);
    error_ = error;
    finished_ = true;
    ready_.notify_all();
  }

  void decode() {
    Demuxer& demuxer = *read_.demuxer;
    const AVStream& stream = demuxer.stream();
    base_ = av_q2d(stream.time_base);
    frame_seconds_ = stream.avg_frame_rate.num > 0 ? 1 / av_q2d(stream.avg_frame_rate) : 0.04;
    convert_ = read_.make_convert();
    // Packets are numbered here, too; their times wait in a short list.
    PictureDecoder decoder(demuxer.parameters(), 1, 0, false, read_.limits);
    const auto take = [this](int64_t number, const AVFrame& frame) {
      return arrive(number, frame);
    };
    const PacketPtr packet = make_packet();
    bool enough = false;
    for (int64_t number = 0; !enough && !stopped() && demuxer.read(*packet); ++number) {
      const int64_t time = packet->pts != AV_NOPTS_VALUE ? packet->pts : packet->dts;
      times_.emplace_back(number, time);
      const PictureDecoder::Result result = decoder.send(*packet, number, take);
      enough = result == PictureDecoder::Result::enough;
      const std::lock_guard lock(mutex_);
      ++report_.decoded_packets;
      if (result == PictureDecoder::Result::broken) {
        report_.damaged.push_back({last_time_, last_time_ + frame_seconds_, 0});
      }
    }
    if (!enough && !stopped()) enough = decoder.finish(take) == PictureDecoder::Result::enough;
    if (!enough && !stopped()) {
      emit(sampler_.finish(last_time_ + frame_seconds_));
    }
    if (group_.index.empty() || stopped()) return;
    push_group();
  }

  // Time of a picture from its packet, from the frame before where the packet has none. The clock
  // never goes back, and where it jumps far ahead it goes on from the frame before: nothing was on
  // screen for so long.
  double time_of(int64_t number) {
    int64_t ticks = AV_NOPTS_VALUE;
    while (!times_.empty() && times_.front().first + 64 < number) times_.pop_front();
    for (const auto& [packet, time] : times_) {
      if (packet == number) ticks = time;
    }
    double time = last_time_ + frame_seconds_;
    if (ticks != AV_NOPTS_VALUE) {
      if (!started_) first_ticks_ = ticks;
      const double exact = static_cast<double>(ticks - first_ticks_) * base_;
      if (started_ && exact > last_time_ + longest_gap) {
        first_ticks_ = ticks - std::llround(time / base_);
      } else if (exact > last_time_ || !started_) {
        time = exact;
      }
    } else if (!started_) {
      time = 0;
    }
    started_ = true;
    return time;
  }

  bool arrive(int64_t number, const AVFrame& frame) {
    const double time = time_of(number);
    if (!emit(sampler_.arrive(time))) return false;
    last_time_ = time;
    ++frames_;
    if (!held_) held_ = make_frame();
    av_frame_unref(held_.get());
    if (av_frame_ref(held_.get(), &frame) < 0) {
      throw Error(ErrorKind::resource, "not enough memory to hold a picture");
    }
    return !sampler_.done() && !stopped();
  }

  // Delivers the held frame `count` times; false when nobody wants more.
  bool emit(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      if (group_.index.empty()) {
        group_.pixels = Tensor(
            DType::u8, {read_.options.frames_per_group, read_.size.height, read_.size.width, 3});
      }
      const int64_t place = static_cast<int64_t>(group_.index.size());
      try {
        convert_(*held_, group_.pixels.view()[place]);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::bad_input) throw;
        const std::lock_guard lock(mutex_);
        ++report_.lost;
        report_.damaged.push_back({last_time_, last_time_ + frame_seconds_, 1});
        continue;
      }
      group_.times.push_back(last_time_);
      group_.index.push_back(frames_ - 1);
      if (place + 1 == read_.options.frames_per_group && !push_group()) return false;
    }
    return !stopped();
  }

  bool push_group() {
    const int64_t frames = static_cast<int64_t>(group_.index.size());
    if (frames < group_.frames()) {
      Tensor shorter(DType::u8, {frames, read_.size.height, read_.size.width, 3});
      std::copy_n(group_.pixels.data<uint8_t>(), shorter.elements(), shorter.data<uint8_t>());
      group_.pixels = std::move(shorter);
    }
    group_.sequence = sequence_++;
    const auto most = static_cast<size_t>(read_.options.queue_groups);
    std::unique_lock lock(mutex_);
    while (groups_.size() >= most && !stopped()) room_.wait_for(lock, cancel_poll);
    if (stopped()) return false;
    groups_.push_back(std::exchange(group_, FrameGroup{}));
    ready_.notify_all();
    return true;
  }

  LiveRead read_;
  LiveSampler sampler_;
  CancelToken stop_;

  // The worker's own.
  ConvertFrame convert_;
  std::deque<std::pair<int64_t, int64_t>> times_;  // packet number, ticks
  double base_ = 0;
  double frame_seconds_ = 0;
  bool started_ = false;
  int64_t first_ticks_ = 0;
  double last_time_ = 0;
  int64_t frames_ = 0;
  FramePtr held_;
  FrameGroup group_;
  int64_t sequence_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable room_;
  std::condition_variable ready_;
  std::deque<FrameGroup> groups_;
  ReadReport report_;
  std::exception_ptr error_;
  bool finished_ = false;

  std::thread worker_;
};

}  // namespace

LiveSampler::LiveSampler(const FrameChoice& choice) : choice_(choice) {
  using Way = FrameChoice::Way;
  check_choice(choice);
  if (choice.way == Way::model || choice.way == Way::count) {
    throw Error(ErrorKind::usage,
                "evenly spread frames need the length of the video, which a live source does not "
                "have: sample by frames per second");
  }
  if (choice.snap > 0) {
    throw Error(ErrorKind::usage,
                "a live source decodes every frame as it comes: none of them is cheaper to take");
  }
  std::sort(choice_.indices.begin(), choice_.indices.end());
  std::sort(choice_.times.begin(), choice_.times.end());
}

int64_t LiveSampler::arrive(double time) {
  const int64_t samples = holding_ ? count(time) : 0;
  holding_ = true;
  held_time_ = time;
  ++held_index_;
  return samples;
}

int64_t LiveSampler::finish(double end) { return holding_ ? count(end) : 0; }

int64_t LiveSampler::count(double until) {
  using Way = FrameChoice::Way;
  int64_t samples = 0;
  switch (choice_.way) {
    case Way::all:
      samples = held_time_ >= choice_.start - tolerance && held_time_ <= choice_.end + tolerance;
      done_ = until > choice_.end + tolerance;
      break;
    case Way::rate: {
      const auto due = [&] { return choice_.start + static_cast<double>(next_) / choice_.fps; };
      while (due() < until - tolerance && due() < choice_.end - tolerance) {
        ++samples;
        ++next_;
      }
      done_ = due() >= choice_.end - tolerance;
      break;
    }
    case Way::indices: {
      const int64_t most = static_cast<int64_t>(choice_.indices.size());
      while (next_ < most && choice_.indices[static_cast<size_t>(next_)] == held_index_) {
        ++samples;
        ++next_;
      }
      done_ = next_ >= most;
      break;
    }
    case Way::times: {
      const int64_t most = static_cast<int64_t>(choice_.times.size());
      while (next_ < most && choice_.times[static_cast<size_t>(next_)] < until - tolerance) {
        ++samples;
        ++next_;
      }
      done_ = next_ >= most;
      break;
    }
    case Way::model:
    case Way::count:
      break;
  }
  return samples;
}

std::unique_ptr<FrameStream::Job> start_live_read(LiveRead read) {
  return std::make_unique<LiveJob>(std::move(read));
}

}  // namespace kinora
