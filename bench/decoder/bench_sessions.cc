// Several sessions that decode together, each with rows of its own or as conversations about a few
// videos, against one that decodes alone: weights are read once for all of them, and so are rows
// that they share. One step alone and one step together alternate. Beside it stands what the
// machine allows at most: the bytes that a step must read (weights once, all rows once) and its
// multiplications, at the ceilings measured in the same run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "attention/policies/dense.h"
#include "base/random.h"
#include "common/ceilings.h"
#include "common/report.h"
#include "decoder/random_model.h"
#include "memory/flat_memory.h"
#include "ops/top_k.h"

namespace kinora::bench {
namespace {

struct Settings {
  std::string shape = "kinora-tiny";
  int64_t sessions = 8;
  std::vector<int64_t> videos{0};
  std::vector<int64_t> rows{256};
  int64_t steps = 32;
  int repetitions = 15;
  int threads = 0;
  bool json = false;
};

class Sessions {
 public:
  // `count` of them with `rows` rows each, which are those of so many videos, or their own.
  Sessions(const Context& context, const RandomModel& model, int64_t count, int64_t videos,
           int64_t rows)
      : context_(context), decoder_(model.decoder()), runner_(decoder_.runner(context)) {
    const DecoderConfig& config = decoder_.config();
    const RowLayout layout{static_cast<int>(config.layers), static_cast<int>(config.kv_heads),
                           static_cast<int>(config.head_size), DType::f32};
    Random random(5);
    for (int64_t i = 0; i < count; ++i) {
      if (videos > 0 && i >= videos) {
        Memory& video = memory(i % videos);
        memories_.push_back(video.fork(video.mark()));
        next_.push_back(next_[static_cast<size_t>(i % videos)]);
        continue;
      }
      memories_.push_back(std::make_unique<FlatMemory>(layout));
      Sequence prompt = sequence(i);
      for (int64_t at = 0; at < rows; ++at) {
        add(prompt, static_cast<int32_t>(random.below(config.vocabulary)), at);
      }
      next_.push_back(most_likely(runner_->forward(prompt).hidden)[0]);
    }
  }

  // `steps` tokens of each of the first `count` sessions, which then forget them.
  void decode(int64_t count, int64_t steps) {
    std::vector<MemoryMark> marks;
    for (int64_t i = 0; i < count; ++i) marks.push_back(memory(i).mark());
    std::vector<int32_t> tokens(next_.begin(), next_.begin() + count);
    Tensor hidden(DType::f32, {count, decoder_.hidden_size()});
    for (int64_t step = 0; step < steps; ++step) {
      std::vector<Sequence> batch;
      for (int64_t i = 0; i < count; ++i) {
        batch.push_back(sequence(i));
        add(batch.back(), tokens[static_cast<size_t>(i)], memory(i).token_count());
      }
      const std::vector<Forwarded> done = runner_->forward(batch);
      for (int64_t i = 0; i < count; ++i) {
        const Forwarded& one = done[static_cast<size_t>(i)];
        if (one.failure) std::rethrow_exception(one.failure);
        std::copy_n(one.hidden.data<float>(), decoder_.hidden_size(), hidden.view().row<float>(i));
      }
      tokens = most_likely(hidden);
    }
    for (int64_t i = 0; i < count; ++i) memory(i).rewind(marks[static_cast<size_t>(i)]);
  }

 private:
  Memory& memory(int64_t i) { return *memories_[static_cast<size_t>(i)]; }

  Sequence sequence(int64_t i) {
    Sequence sequence;
    sequence.memory = &memory(i);
    sequence.attention = &attention_;
    return sequence;
  }

  static void add(Sequence& sequence, int32_t id, int64_t position) {
    const auto at = static_cast<int32_t>(position);
    sequence.ids.push_back(id);
    sequence.tokens.push_back({{at, at, at}});
  }

  std::vector<int32_t> most_likely(const Tensor& hidden) {
    const Tensor logits = decoder_.logits(context_, hidden.view());
    std::vector<int32_t> best;
    for (int64_t i = 0; i < logits.shape()[0]; ++i) {
      best.push_back(argmax(context_, logits.view()[i]));
    }
    return best;
  }

  const Context& context_;
  const TransformerDecoder& decoder_;
  std::unique_ptr<DecoderRunner> runner_;
  DenseAttention attention_;
  std::vector<std::unique_ptr<Memory>> memories_;
  std::vector<int32_t> next_;
};

class Comparison {
 public:
  explicit Comparison(const Settings& settings)
      : settings_(settings),
        pool_(settings.threads),
        context_(pool_),
        config_(shape_config(settings.shape)),
        model_(context_, config_, false),
        matmul_ceiling_(pool_),
        read_ceiling_(pool_) {}

  int threads() const { return pool_.threads(); }

  void measure(int64_t videos, int64_t rows, Report& report) {
    Sessions sessions(context_, model_, settings_.sessions, videos, rows);
    sessions.decode(settings_.sessions, settings_.steps);  // warms caches and pages
    Samples alone, together, limit;
    const auto tokens = static_cast<double>(settings_.steps);
    for (int repetition = 0; repetition < settings_.repetitions; ++repetition) {
      const bool first = repetition % 2 == 0;
      for (const bool one : {first, !first}) {
        const int64_t number = one ? 1 : settings_.sessions;
        const double seconds = seconds_of([&] { sessions.decode(number, settings_.steps); });
        (one ? alone : together).add(tokens * static_cast<double>(number) / seconds);
      }
      if (matmul_ceiling_.available()) limit.add(best_rate(videos, rows));
    }
    const std::string name = fmt::format(
        "{} rows, {}", rows,
        videos == 0 ? "own" : fmt::format("of {} video{}", videos, videos == 1 ? "" : "s"));
    report.add({name + ": one alone", "tokens/s", alone, {}});
    report.add({name + ": together", "tokens/s", together, together.divided_by(limit)});
    report.add({name + ": together / alone", "x", together.divided_by(alone), {}});
    if (!limit.empty()) report.add({name + ": limit together", "tokens/s", limit, {}});
  }

 private:
  // Tokens a second at the ceilings of this moment.
  double best_rate(int64_t videos, int64_t rows) {
    matmul_ceiling_.sample();
    read_ceiling_.sample();
    // Of one token: every parameter once, attention over the rows; keys and values in f32.
    const auto parameters =
        static_cast<double>(model_.layer_parameters() + model_.head_parameters());
    const double middle = static_cast<double>(rows) + static_cast<double>(settings_.steps) / 2;
    const double row_values = middle * static_cast<double>(config_.layers * config_.head_size);
    const double operations =
        2 * (parameters + 2 * row_values * static_cast<double>(config_.heads));
    const double row_bytes = 2 * row_values * static_cast<double>(config_.kv_heads) * 4;
    const auto count = static_cast<double>(settings_.sessions);
    const double copies = videos == 0 ? count : std::min(count, static_cast<double>(videos));
    const double reading = (2 * parameters + copies * row_bytes) /
                           (read_ceiling_.gigabytes_per_second().values().back() * 1e9);
    const double multiplying =
        count * operations / (matmul_ceiling_.gflops().values().back() * 1e9);
    return count / std::max(reading, multiplying);
  }

  const Settings& settings_;
  const ThreadPool pool_;
  const Context context_;
  const DecoderConfig config_;
  const RandomModel model_;
  MatmulCeiling matmul_ceiling_;
  ReadCeiling read_ceiling_;
};

int run(int argc, char** argv) {
  Settings settings;
  CLI::App app{"Sessions that decode together against one alone"};
  app.add_option("--shape", settings.shape, "size of the decoder")
      ->check(CLI::IsMember(shape_names()));
  app.add_option("--sessions", settings.sessions, "sessions that decode together")
      ->check(CLI::Range(1, 64));
  app.add_option("--videos", settings.videos,
                 "their rows are those of so many videos (0: their own)")
      ->delimiter(',')
      ->check(CLI::Range(0, 64));
  app.add_option("--rows", settings.rows, "rows in memory of each")
      ->delimiter(',')
      ->check(CLI::Range(1, 32768));
  app.add_option("--steps", settings.steps, "tokens of each in one measurement")
      ->check(CLI::Range(1, 4096));
  app.add_option("--repetitions", settings.repetitions, "measurements of each figure")
      ->check(CLI::Range(1, 1000));
  app.add_option("--threads", settings.threads, "threads to use (0: one a core)");
  app.add_flag("--json", settings.json, "print JSON");
  CLI11_PARSE(app, argc, argv);

  Comparison comparison(settings);
  Report report(fmt::format("{} sessions of {} size, random bf16 weights, f32 rows",
                            settings.sessions, settings.shape));
  report.note("threads", std::to_string(comparison.threads()));
  for (const int64_t videos : settings.videos) {
    for (const int64_t rows : settings.rows) comparison.measure(videos, rows, report);
  }
  std::cout << (settings.json ? report.as_json() + "\n" : report.as_text());
  return 0;
}

}  // namespace
}  // namespace kinora::bench

int main(int argc, char** argv) { return kinora::bench::run(argc, argv); }
