#include "engine/visual_feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "engine/bounded_queue.h"
#include "engine/core_gate.h"
#include "engine/stage_clock.h"
#include "engine/stopwatch.h"

namespace kinora {
namespace {

// Frames of one input on their way to the vision tower, or the end of that input.
struct DecodedGroup {
  size_t input = 0;
  UnitStream::Units units;
  std::shared_ptr<const ReadReport> report;
};

// Counts the frames of all inputs together.
class DecodeProgress final : public Progress {
 public:
  DecodeProgress(Progress& target, const std::vector<VisualInput*>& inputs) : target_(target) {
    for (const VisualInput* input : inputs) total_ += static_cast<int64_t>(input->samples.size());
  }
  void next_input(int64_t frames_before) { before_ = frames_before; }
  void update(std::string_view stage, int64_t done, int64_t) override {
    target_.update(stage, before_ + done, total_);
  }

 private:
  Progress& target_;
  std::atomic<int64_t> before_ = 0;
  int64_t total_ = 0;
};

// Decodes one input after the other. `take` gets groups and reports; false ends it.
class DecodeStage {
 public:
  // `gate`, when there is one, is passed before every packet.
  DecodeStage(std::vector<VisualInput*> inputs, const FeedOptions& options, Progress& progress,
              SpanRecorder& spans, const CancelToken& stop, CoreGate* gate)
      : inputs_(std::move(inputs)),
        options_(options),
        progress_(progress, inputs_),
        spans_(spans),
        stop_(stop),
        gate_(gate) {}

  template <typename Take>
  void run(const Take& take) {
    int64_t frames = 0;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      progress_.next_input(frames);
      ReadOptions read;
      read.cancel = stop_;
      read.progress = &progress_;
      read.threads = options_.decode_threads;
      if (gate_ != nullptr) read.before_packet = [this](int worker) { gate_->pass(worker); };
      read.on_span = [this](const DecodeSpan& span) {
        spans_.add(fmt::format("decode {}", span.worker + 1),
                   fmt::format("decode {:.1f} s to {:.1f} s", span.from, span.to), span.begin,
                   span.end);
      };
      UnitStream stream(*inputs_[i], std::move(read), options_.frames_per_group);
      while (std::optional<UnitStream::Units> units = stream.next()) {
        if (!take(DecodedGroup{i, std::move(*units), {}})) return;
      }
      if (!take(DecodedGroup{i, {}, std::make_shared<const ReadReport>(stream.report())})) return;
      frames += static_cast<int64_t>(inputs_[i]->samples.size());
    }
  }

  const VisualInput& input(size_t number) const { return *inputs_[number]; }

 private:
  const std::vector<VisualInput*> inputs_;
  const FeedOptions options_;
  DecodeProgress progress_;
  SpanRecorder& spans_;
  const CancelToken stop_;
  CoreGate* const gate_;
};

class VisionStage {
 public:
  VisionStage(const EngineState& engine, SpanRecorder& spans)
      : engine_(engine), clock_(engine.context, spans, "vision") {}

  EncodedGroup run(const VisualInput& input, DecodedGroup decoded) {
    const UnitStream::Units& units = decoded.units;
    EncodedGroup group{units.first, units.count, units.last,    units.frames.frames(),
                       units.times, {},          decoded.report};
    if (group.report) {
      clock_.finish();
      return group;
    }
    clock_.begin();
    group.tokens = engine_.model->encode(engine_.context, input.plan, units.frames, units.last);
    clock_.end(fmt::format("vision {} frames from {:.1f} s", group.frames,
                           units.times.empty() ? 0.0 : units.times.front()));
    return group;
  }

  double seconds() const { return clock_.seconds(); }  // complete after a report has passed

 private:
  const EngineState& engine_;
  StageClock clock_;
};

// Cores that the decoder layers leave: those beyond their threads, and one in eight, because no
// loop keeps that many busy all the time.
int spare_cores(const EngineState& engine) {
  const int cores = ThreadPool().threads();
  return std::max(0, cores - engine.threads.threads()) + cores / 8;
}

class OverlappedFeed final : public VisualFeed {
 public:
  OverlappedFeed(const EngineState& engine, std::vector<VisualInput*> inputs,
                 const FeedOptions& options, Progress& progress, SpanRecorder& spans,
                 const CancelToken& cancel)
      : cancel_(cancel),
        gate_(spare_cores(engine)),
        decode_(std::move(inputs), options, progress, spans, stop_, &gate_),
        vision_(engine, spans) {
    try {
      decoding_ = std::thread([this] { decode(); });
      // On a CPU the tower and the decoder layers take turns; with a GPU nobody waits for a core.
      if (!engine.context.device.is_cpu()) seeing_ = std::thread([this] { see(); });
    } catch (const std::system_error&) {
      end();
      throw Error(ErrorKind::resource,
                  "no thread can be started: end other programs or raise the "
                  "limit of this one");
    } catch (...) {
      end();
      throw;
    }
  }
  ~OverlappedFeed() override { end(); }

  std::optional<EncodedGroup> next() override {
    const Stopwatch waiting;
    if (seeing_.joinable()) {
      std::optional<EncodedGroup> group = encoded_.pop(cancel_);
      wait_seconds_ += waiting.seconds();
      return group;
    }
    gate_.open();
    std::optional<DecodedGroup> group = decoded_.pop(cancel_);
    gate_.close();
    wait_seconds_ += waiting.seconds();
    if (!group) return std::nullopt;
    const VisualInput& input = decode_.input(group->input);
    return vision_.run(input, std::move(*group));
  }

  double vision_seconds() const override { return vision_.seconds(); }
  double wait_seconds() const override { return wait_seconds_; }

 private:
  void decode() {
    try {
      decode_.run([this](DecodedGroup group) { return decoded_.push(std::move(group)); });
      decoded_.finish();
    } catch (...) {
      decoded_.finish(std::current_exception());
    }
  }

  void see() {
    try {
      while (std::optional<DecodedGroup> group = decoded_.pop(stop_)) {
        const VisualInput& input = decode_.input(group->input);
        if (!encoded_.push(vision_.run(input, std::move(*group)))) return;
      }
      encoded_.finish();
    } catch (...) {
      encoded_.finish(std::current_exception());
    }
  }

  void end() {
    stop_.cancel();
    gate_.open();
    decoded_.stop();
    encoded_.stop();
    if (decoding_.joinable()) decoding_.join();
    if (seeing_.joinable()) seeing_.join();
  }

  const CancelToken cancel_;  // the caller's
  const CancelToken stop_;    // of this feed
  CoreGate gate_;             // closed while the caller computes on the CPU
  DecodeStage decode_;
  VisionStage vision_;
  BoundedQueue<DecodedGroup> decoded_{1};  // the decoder has a queue of its own before this one
  BoundedQueue<EncodedGroup> encoded_{2};
  double wait_seconds_ = 0;
  std::thread decoding_;
  std::thread seeing_;
};

class SequentialFeed final : public VisualFeed {
 public:
  SequentialFeed(const EngineState& engine, std::vector<VisualInput*> inputs,
                 const FeedOptions& options, Progress& progress, SpanRecorder& spans,
                 const CancelToken& cancel)
      : cancel_(cancel),
        decode_(std::move(inputs), options, progress, spans, cancel, nullptr),
        vision_(engine, spans) {}

  std::optional<EncodedGroup> next() override {
    cancel_.check();
    if (!std::exchange(decoded_, true)) {
      const Stopwatch waiting;
      decode_.run([this](DecodedGroup group) {
        groups_.push_back(std::move(group));
        return true;
      });
      wait_seconds_ = waiting.seconds();
    }
    if (groups_.empty()) return std::nullopt;
    DecodedGroup group = std::move(groups_.front());
    groups_.pop_front();
    const VisualInput& input = decode_.input(group.input);
    return vision_.run(input, std::move(group));
  }

  double vision_seconds() const override { return vision_.seconds(); }
  double wait_seconds() const override { return wait_seconds_; }

 private:
  const CancelToken cancel_;
  DecodeStage decode_;
  VisionStage vision_;
  bool decoded_ = false;
  std::deque<DecodedGroup> groups_;
  double wait_seconds_ = 0;
};

}  // namespace

std::unique_ptr<VisualFeed> make_visual_feed(const EngineState& engine,
                                             std::vector<VisualInput*> inputs,
                                             const FeedOptions& options, Progress& progress,
                                             SpanRecorder& spans, const CancelToken& cancel) {
  if (!options.overlap) {
    return std::make_unique<SequentialFeed>(engine, std::move(inputs), options, progress, spans,
                                            cancel);
  }
  return std::make_unique<OverlappedFeed>(engine, std::move(inputs), options, progress, spans,
                                          cancel);
}

}  // namespace kinora
