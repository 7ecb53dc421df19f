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
  int64_t videos = 0;
  int64_t rows = 256;
  int64_t steps = 32;
  int repetitions = 15;
  int threads = 0;
  bool json = false;
};

class Sessions {
 public:
  Sessions(const Context& context, const RandomModel& model, const Settings& settings)
      : context_(context), decoder_(model.decoder()), runner_(decoder_.runner(context)) {
    const DecoderConfig& config = decoder_.config();
    const RowLayout layout{static_cast<int>(config.layers), static_cast<int>(config.kv_heads),
                           static_cast<int>(config.head_size), DType::f32};
    Random random(5);
    for (int64_t i = 0; i < settings.sessions; ++i) {
      if (settings.videos > 0 && i >= settings.videos) {
        Memory& video = memory(i % settings.videos);
        memories_.push_back(video.fork(video.mark()));
        next_.push_back(next_[static_cast<size_t>(i % settings.videos)]);
        continue;
      }
      memories_.push_back(std::make_unique<FlatMemory>(layout));
      Sequence prompt = sequence(i);
      for (int64_t at = 0; at < settings.rows; ++at) {
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

int run(int argc, char** argv) {
  Settings settings;
  CLI::App app{"Sessions that decode together against one alone"};
  app.add_option("--shape", settings.shape, "size of the decoder")
      ->check(CLI::IsMember(shape_names()));
  app.add_option("--sessions", settings.sessions, "sessions that decode together")
      ->check(CLI::Range(1, 64));
  app.add_option("--videos", settings.videos,
                 "their rows are those of so many videos (0: their own)")
      ->check(CLI::Range(0, 64));
  app.add_option("--rows", settings.rows, "rows in memory of each")->check(CLI::Range(1, 32768));
  app.add_option("--steps", settings.steps, "tokens of each in one measurement")
      ->check(CLI::Range(1, 4096));
  app.add_option("--repetitions", settings.repetitions, "measurements of each figure")
      ->check(CLI::Range(1, 1000));
  app.add_option("--threads", settings.threads, "threads to use (0: one a core)");
  app.add_flag("--json", settings.json, "print JSON");
  CLI11_PARSE(app, argc, argv);

  const ThreadPool pool(settings.threads);
  const Context context(pool);
  const DecoderConfig config = shape_config(settings.shape);
  const RandomModel model(context, config, false);
  Sessions sessions(context, model, settings);
  MatmulCeiling matmul_ceiling(pool);
  ReadCeiling read_ceiling(pool);

  // Of one token: every parameter once, attention over the rows; keys and values in f32.
  const auto parameters = static_cast<double>(model.layer_parameters() + model.head_parameters());
  const double middle =
      static_cast<double>(settings.rows) + static_cast<double>(settings.steps) / 2;
  const double row_values = middle * static_cast<double>(config.layers * config.head_size);
  const double operations = 2 * (parameters + 2 * row_values * static_cast<double>(config.heads));
  const double row_bytes = 2 * row_values * static_cast<double>(config.kv_heads) * 4;
  const auto count = static_cast<double>(settings.sessions);
  const bool shared = settings.videos > 0 && settings.videos < settings.sessions;
  const double row_sets = shared ? static_cast<double>(settings.videos) : count;

  sessions.decode(settings.sessions, settings.steps);  // warms caches and pages
  Samples alone, together, limit;
  for (int repetition = 0; repetition < settings.repetitions; ++repetition) {
    if (matmul_ceiling.available()) matmul_ceiling.sample();
    read_ceiling.sample();
    const auto tokens = static_cast<double>(settings.steps);
    const bool first = repetition % 2 == 0;
    for (const bool one : {first, !first}) {
      const int64_t number = one ? 1 : settings.sessions;
      const double seconds = seconds_of([&] { sessions.decode(number, settings.steps); });
      (one ? alone : together).add(tokens * static_cast<double>(number) / seconds);
    }
    if (!matmul_ceiling.available()) continue;
    const double reading = (2 * parameters + row_sets * row_bytes) /
                           (read_ceiling.gigabytes_per_second().values().back() * 1e9);
    const double multiplying = count * operations / (matmul_ceiling.gflops().values().back() * 1e9);
    limit.add(count / std::max(reading, multiplying));
  }

  Report report(fmt::format("Sessions of {} size, random bf16 weights, f32 rows", settings.shape));
  report.note("threads", std::to_string(pool.threads()));
  report.note("sessions", std::to_string(settings.sessions));
  report.note("rows of each", std::to_string(settings.rows));
  if (shared) report.note("videos", std::to_string(settings.videos));
  report.add({"one alone", "tokens/s", alone, {}});
  report.add({"together", "tokens/s", together, together.divided_by(limit)});
  report.add({"together / alone", "x", together.divided_by(alone), {}});
  if (!limit.empty()) report.add({"limit together", "tokens/s", limit, {}});
  std::cout << (settings.json ? report.as_json() + "\n" : report.as_text());
  return 0;
}

}  // namespace
}  // namespace kinora::bench

int main(int argc, char** argv) { return kinora::bench::run(argc, argv); }
