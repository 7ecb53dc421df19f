#include "engine/ingest/ingest.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/system/freed_memory.h"
#include "engine/ingest/bounded_queue.h"
#include "engine/ingest/open_unit_stream.h"
#include "engine/ingest/paced_units.h"
#include "engine/ingest/unit_stream.h"
#include "engine/scheduler/core_gate.h"
#include "engine/stage_clock.h"
#include "engine/stopwatch.h"
#include "ops/gather.h"

namespace kinora {
namespace {

// Frames of one item on their way to the vision tower, or the end of that item.
struct DecodedGroup {
  size_t item = 0;
  Units units;
  std::shared_ptr<const ReadReport> report;
};

// Groups of a source that does not wait which may wait for the session: room for those that come
// while a question is answered. The end of a source is one of them, and never the oldest.
constexpr size_t most_waiting = 16;

bool has_no_end(const IngestItem& item) { return item.frames == 0; }

// Counts the frames of all items together.
class DecodeProgress final : public Progress {
 public:
  DecodeProgress(Progress& target, const std::vector<IngestItem>& items) : target_(target) {
    for (const IngestItem& item : items) total_ += item.frames;
    if (std::any_of(items.begin(), items.end(), has_no_end)) total_ = 0;
  }
  void next_item(int64_t frames_before) { before_ = frames_before; }
  int64_t total() const { return total_; }  // 0: not known
  void update(std::string_view stage, int64_t done, int64_t) override {
    target_.update(stage, before_ + done, total_);
  }

 private:
  Progress& target_;
  std::atomic<int64_t> before_ = 0;
  int64_t total_ = 0;
};

// Decodes one item after the other. `take` gets groups and reports; false ends it.
class DecodeStage {
 public:
  // `gate`, when there is one, is passed before every packet. What comes without an end comes in
  // its own time: nobody would open the gate while there is no question.
  DecodeStage(std::vector<IngestItem> items, const IngestOptions& options, Progress& progress,
              SpanRecorder& spans, CoreGate* gate)
      : items_(std::move(items)),
        options_(options),
        progress_(progress, items_),
        spans_(spans),
        gate_(std::any_of(items_.begin(), items_.end(), has_no_end) ? nullptr : gate) {}

  template <typename Take>
  void run(const CancelToken& stop, const Take& take) {
    int64_t frames = 0;
    for (size_t i = 0; i < items_.size(); ++i) {
      progress_.next_item(frames);
      ReadOptions read;
      read.cancel = stop;
      read.progress = &progress_;
      read.threads = options_.decode_threads;
      if (gate_ != nullptr) read.before_packet = [this](int worker) { gate_->pass(worker); };
      read.on_span = [this](const DecodeSpan& span) {
        spans_.add(fmt::format("decode {}", span.worker + 1),
                   fmt::format("decode {:.1f} s to {:.1f} s", span.from, span.to), span.begin,
                   span.end);
      };
      const std::unique_ptr<UnitSource> source = items_[i].open(std::move(read));
      while (std::optional<Units> units = source->next()) {
        if (!take(DecodedGroup{i, std::move(*units), {}})) return;
      }
      if (!take(DecodedGroup{i, {}, std::make_shared<const ReadReport>(source->report())})) return;
      frames += items_[i].frames;
    }
  }

  const IngestItem& item(size_t number) const { return items_[number]; }
  int64_t frames() const { return progress_.total(); }

 private:
  const std::vector<IngestItem> items_;
  const IngestOptions options_;
  DecodeProgress progress_;
  SpanRecorder& spans_;
  CoreGate* const gate_;
};

class VisionStage {
 public:
  // `frames` of all items are expected; 0: not known.
  VisionStage(const EngineState& engine, int64_t frames, Progress& progress, SpanRecorder& spans)
      : engine_(engine),
        expected_(frames),
        progress_(progress),
        clock_(engine.context, spans, "vision") {}

  TokenGroup run(const IngestItem& item, DecodedGroup decoded) {
    Units& units = decoded.units;
    TokenGroup group{units.first, units.count, units.last, {}, units.times, {}, {}, decoded.report};
    for (size_t i = 0; i < units.frames.times.size(); ++i) {
      group.frames.push_back({units.frames.index[i], units.frames.times[i]});
    }
    if (group.report) {
      clock_.finish();
      pruner_.reset();
      give_back_freed_memory();  // frames, patches and scratch, while rows go on growing
      return group;
    }
    clock_.begin();
    group.tokens = units.count > 0
                       ? engine_.model->encode(engine_.context, item.plan, units.frames, units.last)
                       : closing_tokens(engine_, item.plan);
    choose_tokens(item, group);
    clock_.end(fmt::format("vision {} frames from {:.1f} s", group.frames.size(),
                           units.times.empty() ? 0.0 : units.times.front()));
    seen_ += std::ssize(group.frames);
    progress_.update("vision", seen_, expected_);
    return group;
  }

  double seconds() const { return clock_.seconds(); }  // complete after a report has passed

 private:
  void choose_tokens(const IngestItem& item, TokenGroup& group) {
    if (!group.tokens.defined()) return;
    const int64_t hidden = engine_.model->decoder().hidden_size();
    if (!pruner_) pruner_.emplace(item.tokens, item.plan, hidden);
    group.kept = pruner_->choose(engine_.context, group.tokens, group.count);
    if (std::ssize(group.kept) == group.tokens.size(0)) return;
    Tensor kept(DType::f32, {std::ssize(group.kept), group.tokens.size(1)}, engine_.context.device);
    gather_rows(engine_.context, group.tokens, group.kept, kept);
    group.tokens = std::move(kept);
  }

  const EngineState& engine_;
  const int64_t expected_;
  Progress& progress_;
  StageClock clock_;
  int64_t seen_ = 0;                   // frames
  std::optional<TokenPruner> pruner_;  // of the item that is being encoded
};

// Cores that the decoder layers leave: those beyond their threads, and one in eight, because no
// loop keeps that many busy all the time.
int spare_cores(const EngineState& engine) {
  const int cores = ThreadPool().threads();
  return std::max(0, cores - engine.threads.threads()) + cores / 8;
}

class OverlappedIngest final : public Ingest {
 public:
  OverlappedIngest(const EngineState& engine, std::vector<IngestItem> items,
                   const IngestOptions& options, Progress& progress, SpanRecorder& spans)
      : gate_(spare_cores(engine)),
        decode_(std::move(items), options, progress, spans, &gate_),
        vision_(engine, decode_.frames(), progress, spans) {
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
  ~OverlappedIngest() override { end(); }

  std::optional<TokenGroup> next(const CancelToken& cancel) override {
    const Stopwatch waiting;
    if (seeing_.joinable()) {
      std::optional<TokenGroup> group = encoded_.pop(cancel);
      wait_seconds_ += waiting.seconds();
      return group;
    }
    gate_.open();
    std::optional<DecodedGroup> group;
    try {
      group = decoded_.pop(cancel);
    } catch (...) {
      gate_.close();
      throw;
    }
    gate_.close();
    wait_seconds_ += waiting.seconds();
    return encode(std::move(group));
  }

  std::optional<TokenGroup> ready() override {
    if (seeing_.joinable()) return encoded_.pop_ready();
    return encode(decoded_.pop_ready());
  }

  double vision_seconds() const override { return vision_.seconds(); }
  double wait_seconds() const override { return wait_seconds_; }
  int64_t dropped() const override { return dropped_; }

 private:
  std::optional<TokenGroup> encode(std::optional<DecodedGroup> group) {
    if (!group) return std::nullopt;
    const IngestItem& item = decode_.item(group->item);
    return vision_.run(item, std::move(*group));
  }

  void decode() {
    try {
      decode_.run(stop_, [this](DecodedGroup group) {
        if (!decode_.item(group.item).drops) return decoded_.push(std::move(group));
        std::optional<DecodedGroup> lost;
        const bool goes_on = decoded_.push_dropping(std::move(group), most_waiting, lost);
        if (lost) dropped_ += std::ssize(lost->units.frames.times);
        return goes_on;
      });
      decoded_.finish();
    } catch (...) {
      decoded_.finish(std::current_exception());
    }
  }

  void see() {
    try {
      while (std::optional<TokenGroup> group = encode(decoded_.pop(stop_))) {
        if (!encoded_.push(std::move(*group))) return;
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

  const CancelToken stop_;  // ends the threads
  CoreGate gate_;           // closed while the caller computes on the CPU
  DecodeStage decode_;
  VisionStage vision_;
  BoundedQueue<DecodedGroup> decoded_{1};  // the decoder has a queue of its own before this one
  BoundedQueue<TokenGroup> encoded_{2};
  double wait_seconds_ = 0;
  std::atomic<int64_t> dropped_ = 0;  // frames
  std::thread decoding_;
  std::thread seeing_;
};

class SequentialIngest final : public Ingest {
 public:
  SequentialIngest(const EngineState& engine, std::vector<IngestItem> items,
                   const IngestOptions& options, Progress& progress, SpanRecorder& spans)
      : decode_(std::move(items), options, progress, spans, nullptr),
        vision_(engine, decode_.frames(), progress, spans) {}

  std::optional<TokenGroup> next(const CancelToken& cancel) override {
    cancel.check();
    if (!std::exchange(decoded_, true)) {
      const Stopwatch waiting;
      decode_.run(cancel, [this](DecodedGroup group) {
        groups_.push_back(std::move(group));
        return true;
      });
      wait_seconds_ = waiting.seconds();
    }
    return ready();
  }

  std::optional<TokenGroup> ready() override {
    if (groups_.empty()) return std::nullopt;
    DecodedGroup group = std::move(groups_.front());
    groups_.pop_front();
    const IngestItem& item = decode_.item(group.item);
    return vision_.run(item, std::move(group));
  }

  double vision_seconds() const override { return vision_.seconds(); }
  double wait_seconds() const override { return wait_seconds_; }

 private:
  DecodeStage decode_;
  VisionStage vision_;
  bool decoded_ = false;
  std::deque<DecodedGroup> groups_;
  double wait_seconds_ = 0;
};

// Shows frames to someone before they go on.
class ShownUnits final : public UnitSource {
 public:
  ShownUnits(std::unique_ptr<UnitSource> units, decltype(Coming::show) show)
      : units_(std::move(units)), show_(std::move(show)) {}

  std::optional<Units> next() override {
    std::optional<Units> units = units_->next();
    if (units && units->frames.frames() > 0) show_(units->frames);
    return units;
  }
  ReadReport report() const override { return units_->report(); }

 private:
  std::unique_ptr<UnitSource> units_;
  decltype(Coming::show) show_;
};

}  // namespace

IngestItem ingest_item(VisualInput& input, int64_t frames_per_group, const TokenChoice& tokens) {
  if (!input.open) {
    return {input.plan, static_cast<int64_t>(input.samples.size()), tokens,
            [&input, frames_per_group](ReadOptions options) -> std::unique_ptr<UnitSource> {
              return std::make_unique<UnitStream>(input, std::move(options), frames_per_group);
            }};
  }
  const VisualPlan plan = input.plan;
  const auto open = [&video = *input.video, plan, choice = *input.open, coming = input.coming,
                     frames_per_group](ReadOptions options) -> std::unique_ptr<UnitSource> {
    const FrameSize size{plan.frame_size.width, plan.frame_size.height};
    options.target_size = [size](FrameSize, int64_t) { return size; };
    options.filter = plan.filter;
    options.frames_per_group = whole_units(frames_per_group, plan.frames_per_unit);
    std::unique_ptr<UnitSource> units = std::make_unique<OpenUnitStream>(
        video.read(choice, options), plan, options.frames_per_group, coming.closes);
    if (coming.speed > 0) {
      units = std::make_unique<PacedUnits>(std::move(units), coming.speed, options.cancel);
    }
    if (coming.show) units = std::make_unique<ShownUnits>(std::move(units), coming.show);
    return units;
  };
  return {plan, 0, tokens, open, input.coming.drops};
}

std::unique_ptr<Ingest> make_ingest(const EngineState& engine, std::vector<IngestItem> items,
                                    const IngestOptions& options, Progress& progress,
                                    SpanRecorder& spans) {
  if (options.overlap || std::any_of(items.begin(), items.end(), has_no_end)) {
    return std::make_unique<OverlappedIngest>(engine, std::move(items), options, progress, spans);
  }
  return std::make_unique<SequentialIngest>(engine, std::move(items), options, progress, spans);
}

Tensor closing_tokens(const EngineState& engine, const VisualPlan& plan) {
  if (plan.trailing_tokens == 0) return {};
  FrameGroup none;
  none.pixels = Tensor(DType::u8, {0, plan.frame_size.height, plan.frame_size.width, 3});
  return engine.model->encode(engine.context, plan, none, true);
}

}  // namespace kinora
