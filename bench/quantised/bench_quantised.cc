// What fewer bits cost and bring: the perplexity of model directories on a text, and how fast each
// reads a prompt and goes on, in turns, beside the speed of reading memory. One line of JSON a
// directory; run and peers.py make tables of it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attention/policies/dense.h"
#include "base/file.h"
#include "common/ceilings.h"
#include "memory/flat_memory.h"
#include "model/decoder/transformer_decoder.h"
#include "model/families/families.h"
#include "model/weights/quantized_files.h"
#include "model/weights/weights_binder.h"
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

  double perplexity(const std::string& text, int64_t tokens, int64_t window) {
    std::vector<int32_t> ids = tokenizer_->encode(text);
    ids.resize(std::min(ids.size(), static_cast<size_t>(tokens)));
    double sum = 0;
    int64_t count = 0;
    for (size_t begin = 0; begin + 1 < ids.size(); begin += static_cast<size_t>(window)) {
      const size_t end = std::min(ids.size(), begin + static_cast<size_t>(window));
      start();
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

  void sample(const std::string& text, const Settings& settings) {
    std::vector<int32_t> ids = tokenizer_->encode(text);
    ids.resize(std::min(ids.size(), static_cast<size_t>(settings.prompt)));
    const auto& time = settings.cpu_time ? cpu_seconds_of : seconds_of;
    start();
    int32_t next = 0;
    const double prefill = time([&] { next = best(feed(ids, 1)); });
    const double decode = time([&] {
      for (int64_t i = 0; i < settings.decode; ++i) next = best(feed({next}, 1));
    });
    prefill_.add(static_cast<double>(ids.size()) / prefill);
    decode_.add(static_cast<double>(settings.decode) / decode);
  }

  nlohmann::json report(double perplexity, const Samples& ceiling) const {
    const double gigabytes = static_cast<double>(bytes_) / 1e9;
    return {{"directory", directory_},
            {"perplexity", perplexity},
            {"token_gigabytes", gigabytes},
            {"prefill_tokens_per_second", prefill_.summary().median},
            {"decode_tokens_per_second", decode_.summary().median},
            {"decode_share_of_memory",
             decode_.summary().median * gigabytes / ceiling.summary().median}};
  }

 private:
  static double surprise(const float* logits, int64_t count, int32_t token) {
    const float largest = *std::max_element(logits, logits + count);
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += std::exp(logits[i] - largest);
    return std::log(sum) + largest - logits[token];
  }
  void start() {
    memory_ = std::make_unique<FlatMemory>(
        RowLayout{static_cast<int>(config_.layers), static_cast<int>(config_.kv_heads),
                  static_cast<int>(config_.head_size), DType::bf16});
  }
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
  Samples prefill_, decode_;
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
  app.add_flag("--exact", settings.exact, "activations as exact as f32");
  app.add_flag("--cpu-time", settings.cpu_time, "CPU time, on a busy machine with one thread");
  CLI11_PARSE(app, argc, argv);

  const ThreadPool pool(settings.threads);
  const Context context(pool);
  const std::string text = real_files().read(settings.text);
  std::vector<std::unique_ptr<Candidate>> candidates;
  std::vector<double> perplexities;
  for (const std::string& directory : settings.directories) {
    candidates.push_back(std::make_unique<Candidate>(context, directory, settings.exact));
    perplexities.push_back(
        settings.tokens > 1 ? candidates.back()->perplexity(text, settings.tokens, settings.window)
                            : 0);
  }
  ReadCeiling ceiling(pool);
  ceiling.sample();
  for (int round = 0; round < settings.rounds; ++round) {
    for (const auto& candidate : candidates) {
      ceiling.sample();
      candidate->sample(text, settings);
    }
  }
  for (size_t i = 0; i < candidates.size(); ++i) {
    fmt::print("{}\n",
               candidates[i]->report(perplexities[i], ceiling.gigabytes_per_second()).dump());
  }
  return 0;
}

}  // namespace
}  // namespace kinora::bench

int main(int argc, char** argv) { return kinora::bench::run(argc, argv); }
