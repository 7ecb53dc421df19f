// What fewer bits of weights, and of keys and values, cost and bring: the perplexity of model
// directories on a text, and how fast each reads a prompt and goes on, in turns, beside the speed
// of reading memory. One line of JSON for a directory and a type of rows; run and peers.py make
// tables of it.
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attention/policies/dense.h"
#include "base/error.h"
#include "base/file.h"
#include "common/ceilings.h"
#include "memory/flat_memory.h"
#include "model/decoder/transformer_decoder.h"
#include "model/families/families.h"
#include "model/weights/quantized_files.h"
#include "model/weights/weights_binder.h"
#include "ops/packed_rows.h"
#include "ops/top_k.h"
#include "text/tokenizer.h"

namespace kinora::bench {
namespace {

struct Settings {
  std::vector<std::string> directories;
  std::string text;
  int64_t tokens = 2048, window = 512, prompt = 256, decode = 32;
  int rounds = 3, threads = 2;
  bool exact = false, cpu_time = false;
  std::vector<std::string> rows{"bf16"};
};

DType row_type(const std::string& name) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::i8, DType::u8}) {
    if (name == row_type_name(type)) return type;
  }
  throw Error(ErrorKind::usage,
              fmt::format("unknown row type '{}': give f32, bf16, f16, int8 or fp8", name));
}

// Of this process so far, files that it maps included.
double peak_gigabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024 / 1e9;
}

// What was measured with one type of rows.
struct Measured {
  DType rows = DType::bf16;
  double perplexity = 0;
  Samples prefill, decode;
};

// The decoder of a directory, with everything that is measured of it.
class Candidate {
 public:
  Candidate(const Context& context, const std::string& directory, bool exact)
      : context_(context), directory_(directory) {
    const ConfigFiles files = ConfigFiles::read(real_files(), directory);
    config_ = family_of(files).read(files).decoder;
    const TensorFiles tensors = open_weights(context, real_files(), directory, files);
    WeightsBinder binder(tensors);
    const DecoderWeights weights = take_decoder(binder, config_);
    for (const std::string& name : tensors.names()) binder.pass_over(common_tensor_name(name));
    bytes_ = binder.finish(context, false).bytes;
    const bool tied = weights.head.weight.defined() &&
                      weights.head.weight.view().raw() == weights.embeddings.view().raw();
    if (!tied) bytes_ -= weights.embeddings.bytes();  // one row of it is read
    DecoderOptions options;
    options.native_bf16 = !exact;
    decoder_ = std::make_unique<TransformerDecoder>(context, config_, weights, options);
    runner_ = decoder_->runner(context);
    tokenizer_ = std::make_unique<Tokenizer>(Tokenizer::load(real_files(), directory));
  }

  double perplexity(const std::string& text, int64_t tokens, int64_t window, DType rows_type) {
    std::vector<int32_t> ids = tokenizer_->encode(text);
    ids.resize(std::min(ids.size(), static_cast<size_t>(tokens)));
    double sum = 0;
    int64_t count = 0;
    for (size_t begin = 0; begin + 1 < ids.size(); begin += static_cast<size_t>(window)) {
      const size_t end = std::min(ids.size(), begin + static_cast<size_t>(window));
      start(rows_type);
      const std::vector<int32_t> part(ids.begin() + static_cast<int64_t>(begin),
                                      ids.begin() + static_cast<int64_t>(end));
      const Tensor hidden = feed(part, static_cast<int64_t>(part.size()));
      for (int64_t i = 0; i + 1 < static_cast<int64_t>(part.size()); i += 64) {
        const int64_t rows = std::min<int64_t>(64, static_cast<int64_t>(part.size()) - 1 - i);
        const Tensor logits = decoder_->logits(context_, hidden.view().rows(i, rows));
        for (int64_t r = 0; r < rows; ++r) {
          sum += surprise(logits.view().row<float>(r), logits.size(1),
                          part[static_cast<size_t>(i + r + 1)]);
          ++count;
        }
      }
    }
    return std::exp(sum / static_cast<double>(std::max<int64_t>(1, count)));
  }

  void sample(const std::string& text, const Settings& settings, Measured& measured) {
    std::vector<int32_t> ids = tokenizer_->encode(text);
    ids.resize(std::min(ids.size(), static_cast<size_t>(settings.prompt)));
    const auto& time = settings.cpu_time ? cpu_seconds_of : seconds_of;
    if (measured.prefill.empty()) {  // the first pass reads the files
      start(measured.rows);
      best(feed({ids.begin(), ids.begin() + std::min<int64_t>(8, std::ssize(ids))}, 1));
    }
    start(measured.rows);
    int32_t next = 0;
    const double prefill = time([&] { next = best(feed(ids, 1)); });
    const double decode = time([&] {
      for (int64_t i = 0; i < settings.decode; ++i) next = best(feed({next}, 1));
    });
    measured.prefill.add(static_cast<double>(ids.size()) / prefill);
    measured.decode.add(static_cast<double>(settings.decode) / decode);
  }

  nlohmann::json report(const Measured& measured, const Settings& settings,
                        const ReadCeiling& limit) const {
    const Samples& ceiling = limit.gigabytes_per_second();
    // A step reads all weights, and the rows that there are half-way.
    const int64_t rows = settings.prompt + settings.decode / 2;
    const int64_t row_bytes = layout(measured.rows).bytes_per_token();
    const double gigabytes = static_cast<double>(bytes_ + rows * row_bytes) / 1e9;
    const Summary prefill = measured.prefill.summary(), decode = measured.decode.summary();
    return {{"directory", directory_},
            {"rows", row_type_name(measured.rows)},
            {"row_bytes_per_token", row_bytes},
            {"perplexity", measured.perplexity},
            {"token_gigabytes", gigabytes},
            {"peak_gigabytes", peak_gigabytes() - limit.gigabytes()},
            {"prefill_tokens_per_second", prefill.median},
            {"prefill_low", prefill.low},
            {"prefill_high", prefill.high},
            {"decode_tokens_per_second", decode.median},
            {"decode_low", decode.low},
            {"decode_high", decode.high},
            {"decode_share_of_memory", decode.median * gigabytes / ceiling.summary().median}};
  }

 private:
  static double surprise(const float* logits, int64_t count, int32_t token) {
    const float largest = *std::max_element(logits, logits + count);
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += std::exp(logits[i] - largest);
    return std::log(sum) + largest - logits[token];
  }
  RowLayout layout(DType rows) const {
    return {static_cast<int>(config_.layers), static_cast<int>(config_.kv_heads),
            static_cast<int>(config_.head_size), rows};
  }
  void start(DType rows) { memory_ = std::make_unique<FlatMemory>(layout(rows)); }
  Tensor feed(const std::vector<int32_t>& ids, int64_t wanted) {
    Sequence sequence;
    sequence.ids = ids;
    sequence.memory = memory_.get();
    sequence.attention = &attention_;
    sequence.hidden_rows = wanted;
    auto position = static_cast<int32_t>(memory_->token_count());
    for (size_t i = 0; i < ids.size(); ++i, ++position) {
      sequence.tokens.push_back({{position, position, position}});
    }
    return runner_->forward(sequence).hidden;
  }
  int32_t best(const Tensor& hidden) const {
    return argmax(context_, decoder_->logits(context_, hidden).view()[0]);
  }

  const Context& context_;
  std::string directory_;
  DecoderConfig config_;
  int64_t bytes_ = 0;  // that one token reads
  std::unique_ptr<TransformerDecoder> decoder_;
  std::unique_ptr<DecoderRunner> runner_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<FlatMemory> memory_;
  DenseAttention attention_;
};

int run(int argc, char** argv) {
  Settings settings;
  CLI::App app{"Perplexity and speed of model directories, in turns"};
  app.add_option("directories", settings.directories)->required();
  app.add_option("--text", settings.text, "a text file to read")->required();
  app.add_option("--tokens", settings.tokens, "of it for the perplexity (0: none)");
  app.add_option("--window", settings.window, "tokens read together for the perplexity");
  app.add_option("--prompt", settings.prompt, "tokens of the prompt whose speed is measured");
  app.add_option("--decode", settings.decode, "tokens decoded after it");
  app.add_option("--rounds", settings.rounds, "measurements of each speed (0: none)");
  app.add_option("--threads", settings.threads);
  app.add_option("--rows", settings.rows, "types of keys and values, each measured");
  app.add_flag("--exact", settings.exact, "activations as exact as f32");
  app.add_flag("--cpu-time", settings.cpu_time, "CPU time, on a busy machine with one thread");
  CLI11_PARSE(app, argc, argv);

  const ThreadPool pool(settings.threads);
  const Context context(pool);
  const std::string text = real_files().read(settings.text);
  std::vector<std::unique_ptr<Candidate>> candidates;
  std::vector<std::vector<Measured>> measured;  // by candidate and type of rows
  for (const std::string& directory : settings.directories) {
    candidates.push_back(std::make_unique<Candidate>(context, directory, settings.exact));
    measured.emplace_back();
    for (const std::string& name : settings.rows) {
      Measured& here = measured.back().emplace_back();
      here.rows = row_type(name);
      if (settings.tokens < 2) continue;
      here.perplexity =
          candidates.back()->perplexity(text, settings.tokens, settings.window, here.rows);
    }
  }
  ReadCeiling ceiling(pool);
  ceiling.sample();
  for (int round = 0; round < settings.rounds; ++round) {
    for (size_t i = 0; i < candidates.size(); ++i) {
      for (Measured& here : measured[i]) {
        ceiling.sample();
        candidates[i]->sample(text, settings, here);
      }
    }
  }
  for (size_t i = 0; i < candidates.size(); ++i) {
    for (const Measured& here : measured[i]) {
      const auto line = candidates[i]->report(here, settings, ceiling);
      fmt::print("{}\n", line.dump());
    }
  }
  return 0;
}

}  // namespace
}  // namespace kinora::bench

int main(int argc, char** argv) { return kinora::bench::run(argc, argv); }
