#include "bench/stream_bench.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <memory>
#include <utility>

#include "attention/policies/dense.h"
#include "base/files/archive.h"
#include "base/gpu.h"
#include "base/random.h"
#include "bench/median_seconds.h"
#include "memory/growable.h"
#include "memory/policies.h"
#include "memory/row_ops/move_rows.h"
#include "model/decoder/decoder.h"
#include "ops/top_k.h"

namespace kinora::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Groups whose pixels are made together, while no clock runs.
constexpr int64_t groups_ahead = 8;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Which texture is shown at a frame, and for how long it has been.
struct Scene {
  uint64_t texture = 0;
  int64_t age = 0;
};

Scene scene_of(int64_t frame) {
  Random random(7);
  int64_t begin = 0;
  for (uint64_t scene = 0;; ++scene) {
    // Most are short, a few stay for a long time.
    const auto length = static_cast<int64_t>(4 * std::exp(4.5 * random.uniform()));
    const uint64_t again = random.below(4) == 0 && scene > 0
                               ? static_cast<uint64_t>(random.below(static_cast<int64_t>(scene)))
                               : scene;
    if (frame < begin + length) return {again, frame - begin};
    begin += length;
  }
}

// A session that watches and is asked.
class Watching {
 public:
  Watching(const Context& context, const Model& model, const std::string& memory,
           const StreamSettings& settings)
      : context_(context),
        model_(model),
        settings_(settings),
        counter_(model.positions()),
        runner_(model.decoder().runner(context)) {
    name_ = memory;
    memory_ = empty_memory();
    VisualSource source;
    source.size = {settings.side, settings.side};
    source.frames = settings.frames;
    source.sampled_fps = settings.fps;
    const int64_t pixels = settings.side * settings.side;
    plan_ = model.plan_visual(source, {pixels, pixels});
    std::vector<TokenInfo> tokens;
    counter_->text(16, tokens);
    forward(*memory_, tokens);
  }

  const Memory& memory() const { return *memory_; }
  int64_t frames() const { return frames_; }

  // Returns the seconds of vision and of the decoder.
  std::pair<double, double> watch() {
    const int64_t count = settings_.frames_per_group;
    double before = 0;
    if (ready_.empty()) {  // what a memory still does with earlier frames must not hide behind this
      const auto begin = Clock::now();
      static_cast<void>(memory_->bytes());
      before = seconds_since(begin);
      for (int64_t i = 0; i < groups_ahead; ++i) {
        ready_.push_back(
            stream_pixels(frames_ + i * count, count, plan_.frame_size.height, settings_.fps));
      }
    }
    FrameGroup group;
    group.pixels = std::move(ready_.front());
    ready_.pop_front();
    std::vector<double> times;
    for (int64_t i = 0; i < count; ++i) {
      group.times.push_back(static_cast<double>(frames_ + i) / settings_.fps);
      group.index.push_back(frames_ + i);
      if (i % plan_.frames_per_unit == 0) times.push_back(group.times.back());
    }
    const auto begin = Clock::now();
    Tensor seen = model_.encode(context_, plan_, group, false);
    synchronize(context_);
    const double vision = seconds_since(begin);
    const auto computed = Clock::now();
    Sequence sequence;
    counter_->visual(plan_, frames_ / plan_.frames_per_unit, std::ssize(times), times, false,
                     sequence.tokens);
    sequence.embeddings = std::move(seen);
    run(*memory_, sequence, false);
    synchronize(context_);
    frames_ += count;
    return {vision, before + seconds_since(computed)};
  }

  // A fork of the memory that is asked and answers.
  struct Answer {
    std::unique_ptr<Memory> memory;
    std::unique_ptr<PositionCounter> counter;
    int32_t newest = 0;
  };
  Answer ask() { return ask(memory_->fork(memory_->mark())); }
  Answer ask(std::unique_ptr<Memory> memory) {
    Answer answer{std::move(memory), counter_->clone()};
    std::vector<TokenInfo> tokens;
    answer.counter->text(settings_.question_tokens, tokens);
    answer.newest = forward(*answer.memory, tokens, 5, true);
    return answer;
  }
  void go_on(Answer& answer) {
    std::vector<TokenInfo> tokens;
    answer.counter->text(1, tokens);
    answer.newest = forward(*answer.memory, tokens, answer.newest);
  }

  // Returns the file's bytes.
  int64_t save(const std::string& path) const {
    ArchiveWriter out(path);
    memory_->save(memory_->mark(), out);
    out.commit();
    return out.bytes();
  }
  // As a session opens it: a memory that reads few rows waits with the others.
  std::unique_ptr<Memory> reopen(const std::string& path) const {
    std::unique_ptr<Memory> memory = empty_memory();
    memory->load(context_, Archive::open(path), Loading::whole);
    return memory;
  }

 private:
  std::unique_ptr<Memory> empty_memory() const {
    RowLayout layout = model_.info().rows;
    layout.dtype = DType::bf16;
    return make_memory(name_, {layout, context_.device, {}});
  }
  // A question comes as embeddings, as in a session.
  int32_t forward(Memory& memory, std::vector<TokenInfo> tokens, int32_t id = 5,
                  bool question = false) {
    Sequence sequence;
    for (size_t i = 0; i < tokens.size(); ++i) {
      sequence.ids.push_back((id + static_cast<int32_t>(i) * 37) %
                             static_cast<int32_t>(model_.info().vocabulary));
    }
    sequence.tokens = std::move(tokens);
    if (question) {
      sequence.embeddings = model_.decoder().embed(context_, std::exchange(sequence.ids, {}));
    }
    return run(memory, sequence, true);
  }
  int32_t run(Memory& memory, Sequence& sequence, bool answers) {
    sequence.memory = &memory;
    sequence.attention = &attention_;
    const Forwarded result = runner_->forward(sequence);
    if (!answers) return 0;
    return argmax_rows(context_, model_.decoder().logits(context_, result.hidden.view()))[0];
  }

  const Context& context_;
  const Model& model_;
  const StreamSettings& settings_;
  VisualPlan plan_;
  std::unique_ptr<PositionCounter> counter_;
  std::unique_ptr<DecoderRunner> runner_;
  DenseAttention attention_;
  std::string name_;
  std::unique_ptr<Memory> memory_;
  int64_t frames_ = 0;
  std::deque<Tensor> ready_;  // pixels of the next groups
};

// What the system still has of a file in memory is dropped, so that it is read from the disk.
void forget(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  static_cast<void>(::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED));
  ::close(file);
}

ReopenedFigure measure_reopening(const Context& context, Watching& watching,
                                 const StreamSettings& settings) {
  ReopenedFigure figure;
  const int32_t expected = watching.ask().newest;
  const auto begin = Clock::now();
  figure.bytes = watching.save(settings.file);
  figure.save_seconds = seconds_since(begin);
  for (int64_t i = 0; i < settings.questions; ++i) {
    forget(settings.file);
    const auto opening = Clock::now();
    std::unique_ptr<Memory> memory = watching.reopen(settings.file);
    synchronize(context);
    figure.open_seconds.push_back(seconds_since(opening));
    const int64_t waiting = memory->bytes().disk;
    const Watching::Answer answer = watching.ask(std::move(memory));
    figure.first_token.push_back(seconds_since(opening));
    figure.same = figure.same && answer.newest == expected;
    figure.read_bytes = waiting - answer.memory->bytes().disk;
  }
  return figure;
}

}  // namespace

Tensor stream_pixels(int64_t first, int64_t count, int64_t side, double fps) {
  Tensor pixels(DType::u8, {count, side, side, 3});
  for (int64_t frame = 0; frame < count; ++frame) {
    const Scene scene = scene_of(first + frame);
    Random random(scene.texture + 100);
    // A few waves in each channel. One moves, the others stand still: a camera on a tripod.
    constexpr int waves = 6;
    double across[3][waves], down[3][waves], phase[3][waves];
    for (int channel = 0; channel < 3; ++channel) {
      for (int wave = 0; wave < waves; ++wave) {
        across[channel][wave] = 0.25 * random.normal();
        down[channel][wave] = 0.25 * random.normal();
        phase[channel][wave] = 6.28 * random.uniform();
        if (wave == 0) phase[channel][wave] += 0.3 * static_cast<double>(scene.age) / fps;
      }
    }
    Random flicker(static_cast<uint64_t>(first + frame) + 1'000'000);
    const double light = 128 + flicker.normal();
    auto* to = pixels.data<uint8_t>() + frame * side * side * 3;
    // Sums of products of one-dimensional waves, which are cheap.
    for (int channel = 0; channel < 3; ++channel) {
      std::vector<double> by_row(static_cast<size_t>(side * waves)), by_column(by_row.size());
      for (int64_t i = 0; i < side; ++i) {
        for (int wave = 0; wave < waves; ++wave) {
          const auto at = static_cast<size_t>(i * waves + wave);
          by_row[at] =
              std::sin(down[channel][wave] * static_cast<double>(i) + phase[channel][wave]);
          by_column[at] = 30 * std::cos(across[channel][wave] * static_cast<double>(i));
        }
      }
      for (int64_t y = 0; y < side; ++y) {
        for (int64_t x = 0; x < side; ++x) {
          double value = light;
          for (int wave = 0; wave < waves; ++wave) {
            value += by_row[static_cast<size_t>(y * waves + wave)] *
                     by_column[static_cast<size_t>(x * waves + wave)];
          }
          to[(y * side + x) * 3 + channel] = static_cast<uint8_t>(std::clamp(value, 0.0, 255.0));
        }
      }
    }
  }
  return pixels;
}

StreamFigure bench_stream(const Context& context, const Model& model, const std::string& memory,
                          const StreamSettings& settings) {
  StreamFigure figure;
  figure.memory = memory;
  {  // algorithms are chosen and memory is taken once
    StreamSettings few = settings;
    few.frames = 2 * settings.frames_per_group;
    Watching warm(context, model, memory, few);
    warm.watch();
    warm.watch();
    Watching::Answer answer = warm.ask();
    for (int i = 0; i < 4; ++i) warm.go_on(answer);
  }
  Watching watching(context, model, memory, settings);
  const auto asks = [&](int64_t before, int64_t after) {
    for (int64_t moment = 0; moment < settings.moments; ++moment) {
      const int64_t at = settings.frames >> moment;
      if (before < at && after >= at) return true;
    }
    return false;
  };
  while (watching.frames() < settings.frames) {
    const int64_t before = watching.frames();
    const auto [vision, prefill] = watching.watch();
    figure.vision_seconds += vision;
    figure.prefill_seconds += prefill;
    if (!asks(before, watching.frames())) continue;
    StreamMoment moment;
    moment.frames = watching.frames();
    moment.rows = watching.memory().row_count(0);
    moment.bytes = watching.memory().bytes();
    int64_t tokens = 0;
    for (int64_t i = 0; i < settings.questions; ++i) {
      const auto begin = Clock::now();
      Watching::Answer answer = watching.ask();
      moment.first_token.push_back(seconds_since(begin));
      const auto first = Clock::now();
      for (int64_t k = 1; k < settings.answer_tokens; ++k, ++tokens) watching.go_on(answer);
      moment.token_seconds += seconds_since(first);
      moment.fetched.wanted += answer.memory->fetched().wanted;
      moment.fetched.late += answer.memory->fetched().late;
    }
    moment.token_seconds /= static_cast<double>(std::max<int64_t>(1, tokens));
    figure.moments.push_back(std::move(moment));
  }
  if (!settings.file.empty()) figure.reopened = measure_reopening(context, watching, settings);
  // The stream goes on while questions are answered.
  int64_t frames = 0;
  double taken = 0;
  for (int64_t i = 0; i < settings.questions; ++i) {
    const auto [vision, prefill] = watching.watch();
    const auto begin = Clock::now();
    Watching::Answer answer = watching.ask();
    figure.busy_first_token.push_back(vision + prefill + seconds_since(begin));
    // A token for each of a few moments within a group.
    for (int round = 0; round < 2; ++round) {
      const auto turn = Clock::now();
      const int64_t before = watching.frames();
      const auto [more_vision, more_prefill] = watching.watch();
      const double unmeasured = seconds_since(turn) - more_vision - more_prefill;  // makes pixels
      for (int64_t k = 0; k < 4; ++k) watching.go_on(answer);
      frames += watching.frames() - before;
      taken += seconds_since(turn) - unmeasured;
    }
  }
  figure.busy_frames_per_second = static_cast<double>(frames) / std::max(taken, 1e-9);
  return figure;
}

double gather_bandwidth(const Context& context, const RowLayout& layout, int64_t rows,
                        int64_t run) {
  const int64_t all = 16 * rows;
  Growable block = Growable::pinned(static_cast<size_t>(all * layout.row_bytes()));
  block.resize(static_cast<size_t>(all * layout.row_bytes()));
  std::fill_n(block.data(), block.size(), std::byte{1});
  Random random(11);
  std::vector<int32_t> places;
  while (std::ssize(places) < rows) {
    const int64_t first = random.below(all - run);
    for (int64_t i = 0; i < run; ++i) places.push_back(static_cast<int32_t>(first + i));
  }
  const ConstTensorView from(block.data(), layout.dtype, layout.shape(all));
  Tensor to(layout.dtype, layout.shape(std::ssize(places)), context.device);
  constexpr int times = 20;
  const double seconds = median_seconds(context, 5, [&] {
    for (int i = 0; i < times; ++i) copy_rows(context, from, places, to);
  });
  return static_cast<double>(times * to.bytes()) / seconds;
}

}  // namespace kinora::cli
