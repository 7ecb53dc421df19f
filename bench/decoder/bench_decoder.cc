// A whole decoder against the ceilings of this machine: prefill against the best f32 matrix product
// (counting the operations that are really needed), decoding against the speed of reading memory
// (every weight once per token, in its stored type). Ceilings and measurements alternate; so do, if
// asked for, decoding with and without the mass of rows (attention/row_mass.h).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>
#include <vector>

#include "attention/policies/dense.h"
#include "attention/row_mass.h"
#include "base/random.h"
#include "common/ceilings.h"
#include "common/report.h"
#include "decoder/random_model.h"
#include "memory/flat_memory.h"
#include "ops/matmul.h"
#include "ops/top_k.h"

namespace kinora::bench {
namespace {

struct Settings {
  std::string shape = "qwen2.5-0.5b";
  std::string rows = "f32";
  int64_t prompt = 512;
  int64_t tokens = 16;
  int repetitions = 7;
  int threads = 0;
  int mass_layers = 0;  // in the middle, whose mass of rows is measured
  int mass_heads = 0;   // of each of them; 0: all
  bool cpu_time = false;
  bool native_bf16 = false;
  bool json = false;
};

class Session {
 public:
  Session(const Context& context, const RandomModel& model, DType rows)
      : context_(context),
        decoder_(model.decoder()),
        memory_(layout(rows)),
        runner_(decoder_.runner(context)) {}

  // Gives the token that the last one is followed by.
  int32_t feed(std::span<const int32_t> ids, RowMass* mass = nullptr) {
    Sequence group;
    group.ids.assign(ids.begin(), ids.end());
    group.memory = &memory_;
    group.attention = &attention_;
    group.mass = mass;
    auto position = static_cast<int32_t>(memory_.token_count());
    for (size_t i = 0; i < ids.size(); ++i, ++position) {
      group.tokens.push_back({{position, position, position}});
    }
    const Tensor hidden = runner_->forward(group).hidden;
    return argmax(context_, decoder_.logits(context_, hidden).view()[0]);
  }

  FlatMemory& memory() { return memory_; }

 private:
  RowLayout layout(DType rows) const {
    const DecoderConfig& config = decoder_.config();
    return {static_cast<int>(config.layers), static_cast<int>(config.kv_heads),
            static_cast<int>(config.head_size), rows};
  }

  const Context& context_;
  const TransformerDecoder& decoder_;
  FlatMemory memory_;
  std::unique_ptr<DecoderRunner> runner_;
  DenseAttention attention_;
};

// Multiplications and additions of a prompt: every layer's matrices for every token, attention over
// what each token sees, the head for the last token. The last layer's output projection and
// feed-forward are needed for the last token only.
double prompt_operations(const DecoderConfig& config, const RandomModel& model, int64_t prompt) {
  const auto tokens = static_cast<double>(prompt);
  const auto width = static_cast<double>(config.heads * config.head_size);
  const auto hidden = static_cast<double>(config.hidden);
  const double spared =
      (tokens - 1) * hidden * (width + 3 * static_cast<double>(config.intermediate));
  const double attention =
      static_cast<double>(config.layers) * 2 * width * tokens * (tokens + 1) / 2;
  return 2 * (tokens * static_cast<double>(model.layer_parameters()) - spared + attention +
              static_cast<double>(model.head_parameters()));
}

std::vector<LayerHeads> middle_layers(const DecoderConfig& config, const Settings& settings) {
  std::vector<LayerHeads> layers;
  const int64_t count = std::min<int64_t>(settings.mass_layers, config.layers);
  for (int64_t i = 0; i < count; ++i) {
    layers.push_back({static_cast<int>((config.layers - count) / 2 + i)});
    if (settings.mass_heads > 0) layers.back().heads = (uint64_t{1} << settings.mass_heads) - 1;
  }
  return layers;
}

int run(int argc, char** argv) {
  Settings settings;
  CLI::App app{"A decoder with random bf16 weights against the ceilings of this machine"};
  app.add_option("--shape", settings.shape, "size of the decoder")
      ->check(CLI::IsMember(shape_names()));
  app.add_option("--rows", settings.rows, "type of keys and values")
      ->check(CLI::IsMember({"f32", "bf16"}));
  app.add_option("--prompt", settings.prompt, "tokens of the prompt")->check(CLI::Range(1, 32768));
  app.add_option("--tokens", settings.tokens, "tokens decoded after it")
      ->check(CLI::Range(1, 4096));
  app.add_option("--repetitions", settings.repetitions, "measurements of each figure")
      ->check(CLI::Range(1, 1000));
  app.add_option("--threads", settings.threads, "threads to use (0: one a core)");
  app.add_option("--mass", settings.mass_layers,
                 "also decode with the mass of rows of this many layers, in turns")
      ->check(CLI::Range(0, 1000));
  app.add_option("--mass-heads", settings.mass_heads, "heads of each of these layers (0: all)")
      ->check(CLI::Range(0, 63));
  app.add_flag("--cpu-time", settings.cpu_time,
               "compare these by CPU time, on a busy machine with one thread");
  app.add_flag("--native-bf16", settings.native_bf16, "use the CPU's bf16 matrix instructions");
  app.add_flag("--json", settings.json, "print JSON");
  CLI11_PARSE(app, argc, argv);

  const ThreadPool pool(settings.threads);
  const Context context(pool);
  const DecoderConfig config = shape_config(settings.shape);
  const RandomModel model(context, config, settings.native_bf16);
  const DType rows = settings.rows == "f32" ? DType::f32 : DType::bf16;
  std::vector<int32_t> prompt(static_cast<size_t>(settings.prompt));
  Random random(3);
  for (int32_t& id : prompt) id = static_cast<int32_t>(random.below(config.vocabulary));

  Session session(context, model, rows);
  const MemoryMark empty = session.memory().mark();
  int32_t next = session.feed(prompt);  // warms caches and pages
  MatmulCeiling matmul_ceiling(pool);
  ReadCeiling read_ceiling(pool);
  Samples prefill_gflops, prefill_tokens, decode_gigabytes, decode_tokens;
  Samples plain_tokens, mass_tokens;
  const double operations = prompt_operations(config, model, settings.prompt);
  const double bytes =
      2.0 * static_cast<double>(model.layer_parameters() + model.head_parameters());
  for (int repetition = 0; repetition < settings.repetitions; ++repetition) {
    session.memory().rewind(empty);
    if (matmul_ceiling.available()) matmul_ceiling.sample();
    const double prefill = seconds_of([&] { next = session.feed(prompt); });
    prefill_gflops.add(operations / prefill / 1e9);
    prefill_tokens.add(static_cast<double>(settings.prompt) / prefill);

    read_ceiling.sample();
    const double decode = seconds_of([&] {
      for (int64_t i = 0; i < settings.tokens; ++i) next = session.feed({&next, 1});
    });
    decode_gigabytes.add(bytes * static_cast<double>(settings.tokens) / decode / 1e9);
    decode_tokens.add(static_cast<double>(settings.tokens) / decode);
    if (settings.mass_layers == 0) continue;
    // Token by token in turns; both read as many rows.
    RowMass mass(context.device, middle_layers(config, settings), config.heads);
    double with = 0, without = 0;
    const auto& time = settings.cpu_time ? cpu_seconds_of : seconds_of;
    for (int64_t i = 0; i < settings.tokens; ++i) {
      for (const bool wanted : {i % 2 == 0, i % 2 != 0}) {
        const MemoryMark before = session.memory().mark();
        (wanted ? with : without) += time([&] {
          session.feed({&next, 1}, wanted ? &mass : nullptr);
        });
        session.memory().rewind(before);
      }
    }
    plain_tokens.add(static_cast<double>(settings.tokens) / without);
    mass_tokens.add(static_cast<double>(settings.tokens) / with);
  }

  Report report(fmt::format("Decoder of {} size, random bf16 weights", settings.shape));
  report.note("threads", std::to_string(pool.threads()));
  report.note("prompt tokens", std::to_string(settings.prompt));
  report.note("keys and values", settings.rows);
  report.note("native bf16", settings.native_bf16 && native_bf16_available() ? "yes" : "no");
  report.note("load", fmt::format("{:.1f} ms", model.load_seconds() * 1e3));
  if (matmul_ceiling.available()) {
    report.add({"ceiling: sgemm 2048³ of " + matmul_ceiling.library(),
                "GFLOP/s",
                matmul_ceiling.gflops(),
                {}});
  }
  report.add(
      {"prefill", "GFLOP/s", prefill_gflops, prefill_gflops.divided_by(matmul_ceiling.gflops())});
  report.add({"prefill", "tokens/s", prefill_tokens, {}});
  report.add({"ceiling: reading 512 MiB", "GB/s", read_ceiling.gigabytes_per_second(), {}});
  report.add({"decode", "GB/s", decode_gigabytes,
              decode_gigabytes.divided_by(read_ceiling.gigabytes_per_second())});
  report.add({"decode", "tokens/s", decode_tokens, {}});
  if (settings.mass_layers > 0) {
    report.note("mass of rows",
                fmt::format("{} layers, {} heads", settings.mass_layers,
                            settings.mass_heads > 0 ? std::to_string(settings.mass_heads) : "all"));
    report.add({"decode, in turns with the next", "tokens/s", plain_tokens, {}});
    report.add({"decode with the mass of rows", "tokens/s", mass_tokens,
                mass_tokens.divided_by(plain_tokens)});
  }
  std::cout << (settings.json ? report.as_json() + "\n" : report.as_text());
  return 0;
}

}  // namespace
}  // namespace kinora::bench

int main(int argc, char** argv) { return kinora::bench::run(argc, argv); }
