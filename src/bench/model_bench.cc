#include "bench/model_bench.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "attention/policies/policy.h"
#include "attention/report.h"
#include "base/gpu.h"
#include "bench/head_mix.h"
#include "bench/median_seconds.h"
#include "bench/random_rows.h"
#include "memory/flat_memory.h"
#include "model/decoder/hidden_rows.h"
#include "model/decoder/transformer_decoder.h"
#include "model/families/families.h"
#include "model/weights/random_weights.h"
#include "ops/matmul.h"
#include "ops/top_k.h"

namespace kinora::cli {

ModelBench::ModelBench(const Context& context, const ModelShape& shape,
                       std::optional<PackedKind> packed, DType rows)
    : context_(context),
      shape_(shape),
      packed_(packed),
      rows_(rows),
      config_(family_of(shape.config).read(shape.config).decoder) {
  const DecoderWeights weights = random_decoder(context, config_, DType::bf16, packed);
  decoder_ = std::make_shared<TransformerDecoder>(context, config_, weights,
                                                  DecoderOptions{.activations = DType::bf16});
}

int64_t ModelBench::layer_parameters() const {
  const DecoderConfig& d = config_;
  return 2 * d.hidden * d.head_size * (d.heads + d.kv_heads) + 3 * d.hidden * d.intermediate;
}

// What a decoding step reads: the layers and the head.
int64_t ModelBench::weight_bytes() const {
  const auto layers = static_cast<double>(config_.layers * layer_parameters());
  return static_cast<int64_t>(layers * bytes_of_weight(packed_)) +
         2 * config_.vocabulary * config_.hidden;
}

BenchCeilings ModelBench::ceilings() const {
  BenchCeilings best;
  best.read_bandwidth = gpu_read_bandwidth(context_);
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{4096, 8192, 8192},
                                {8192, 8192, 8192},
                                {16384, 4608, 3584},
                                {8192, 16384, 4096}}) {
    const Tensor a = random_tensor(context_, DType::bf16, {m, k}, 1.0f, 1);
    const Tensor weight = random_tensor(context_, DType::bf16, {n, k}, 1.0f, 2);
    Tensor out(DType::bf16, {m, n}, context_.device);
    const double seconds = median_seconds(context_, 5, [&] { matmul(context_, a, weight, out); });
    best.multiply_rate =
        std::max(best.multiply_rate, 2.0 * static_cast<double>(m * n * k) / seconds);
  }
  return best;
}

Sequence ModelBench::group_at(int64_t begin, int64_t count) const {
  Sequence group;
  group.embeddings = random_tensor(context_, DType::f32, {count, config_.hidden}, 1.0f, 7);
  group.tokens.resize(static_cast<size_t>(count));
  for (size_t i = 0; i < group.tokens.size(); ++i) {
    const auto position = static_cast<int32_t>(begin) + static_cast<int32_t>(i);
    group.tokens[i].position = {position, position, position};
    group.tokens[i].modality = Modality::video;
  }
  return group;
}

PrefillFigure ModelBench::prefill(int64_t tokens, int64_t group, int64_t layers,
                                  const PrefillAttention& wanted) const {
  DecoderConfig config = config_;
  config.layers = std::min(layers, config.layers);
  std::shared_ptr<const Decoder> decoder = decoder_;
  if (config.layers < config_.layers) {
    DecoderConfig small = config;
    small.vocabulary = 128;
    decoder = std::make_shared<TransformerDecoder>(
        context_, small, random_decoder(context_, small, DType::bf16, packed_),
        DecoderOptions{.activations = DType::bf16});
  }
  const RowLayout layout{static_cast<int>(config.layers), static_cast<int>(config.kv_heads),
                         static_cast<int>(config.head_size), rows_};
  AttentionOptions options;
  options.sparse.dtype = wanted.dtype;
  if (!wanted.mix.empty()) {
    options.table = mixed_table(
        {"", layout.layers, static_cast<int>(config.heads), layout.kv_heads, layout.head_size},
        wanted.mix, usual_frame_tokens);
  }
  const std::unique_ptr<Attention> attention = make_attention(wanted.name, options);
  const std::unique_ptr<DecoderRunner> runner = decoder->runner(context_);
  const auto run = [&](int64_t count) {
    attention->clear_report();
    FlatMemory memory(layout, context_.device);
    synchronize(context_);
    const auto started = std::chrono::steady_clock::now();
    for (int64_t begin = 0; begin < count; begin += group) {
      const int64_t some = std::min(group, count - begin);
      Sequence sequence = group_at(begin, some);
      sequence.memory = &memory;
      sequence.attention = attention.get();
      runner->forward(sequence);
    }
    synchronize(context_);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  };
  run(std::min(tokens, group));  // algorithms are chosen and memory is taken once
  reset_gpu_peak(context_.device);
  const double elapsed = run(tokens);

  const double scale = static_cast<double>(config_.layers) / static_cast<double>(config.layers);
  const auto n = static_cast<double>(tokens);
  const double width = static_cast<double>(config.heads * config.head_size);
  PrefillFigure figure;
  figure.tokens = tokens;
  figure.group = group;
  figure.layers = config.layers;
  figure.seconds = elapsed * scale;
  figure.operations = static_cast<double>(config_.layers) *
                      (2 * n * static_cast<double>(layer_parameters()) + 2 * n * n * width);
  figure.peak_bytes = gpu_memory(context_.device).peak;
  if (const AttentionReport* report = attention->report()) {
    figure.attention_share = report->share();
    figure.index_seconds = report->index_seconds * scale;
    figure.attention_seconds = (report->index_seconds + report->run_seconds) * scale;
    figure.launches = report->launches;
  }
  return figure;
}

ProductsFigure ModelBench::products(int64_t rows) const {
  const DecoderConfig& d = config_;
  const int64_t query = d.heads * d.head_size, fused = query + 2 * d.kv_heads * d.head_size;
  const auto matrix = [&](int64_t n, int64_t k) {
    return random_tensor(context_, DType::bf16, {n, k}, 0.02f, 3);
  };
  const Tensor qkv = matrix(fused, d.hidden), output = matrix(d.hidden, query);
  const Tensor gate_up = matrix(2 * d.intermediate, d.hidden);
  const Tensor down = matrix(d.hidden, d.intermediate);
  const Tensor input = matrix(rows, d.hidden), mixed = matrix(rows, query);
  const Tensor gated = matrix(rows, d.intermediate);
  Tensor hidden = random_tensor(context_, DType::f32, {rows, d.hidden}, 1.0f, 4);
  Tensor projected(DType::bf16, {rows, fused}, context_.device);
  Tensor both(DType::bf16, {rows, 2 * d.intermediate}, context_.device);
  ProductsFigure figure;
  figure.rows = rows;
  figure.operations = 2 * static_cast<double>(rows) * static_cast<double>(layer_parameters());
  figure.seconds = median_seconds(context_, 5, [&] {
    matmul(context_, input, qkv, projected);
    matmul(context_, mixed, output, hidden, {.bias = {}, .accumulate = true});
    matmul(context_, input, gate_up, both);
    matmul(context_, gated, down, hidden, {.bias = {}, .accumulate = true});
  });
  return figure;
}

DecodeFigure ModelBench::decode(int64_t rows, int64_t steps, int64_t sessions, int64_t tokens,
                                const std::vector<LayerHeads>& mass, int64_t videos) const {
  const DecoderConfig& d = config_;
  const RowLayout layout{static_cast<int>(d.layers), static_cast<int>(d.kv_heads),
                         static_cast<int>(d.head_size), rows_};
  DenseAttention attention;
  std::vector<std::unique_ptr<Memory>> memories;
  double row_bytes = 0;
  for (int64_t i = 0; i < (videos > 0 ? videos : sessions); ++i) {
    memories.push_back(std::make_unique<FlatMemory>(layout, context_.device));
    const std::vector<TokenInfo> old = group_at(0, rows).tokens;
    memories.back()->begin(context_, {.tokens = old});
    for (int layer = 0; layer < layout.layers; ++layer) {
      fill_rows(context_, memories.back()->append(layer), static_cast<uint64_t>(layer));
    }
    row_bytes += static_cast<double>(memories.back()->bytes().total());
  }
  std::vector<std::unique_ptr<Memory>> asked;  // the videos themselves, which nobody continues
  if (videos > 0) {
    asked.swap(memories);
    for (int64_t i = 0; i < sessions; ++i) {
      Memory& video = *asked[static_cast<size_t>(i % videos)];
      memories.push_back(video.fork(video.mark()));
    }
  }
  const std::unique_ptr<DecoderRunner> runner = decoder_->runner(context_);
  std::vector<MemoryMark> before;
  for (const auto& memory : memories) before.push_back(memory->mark());
  std::vector<int32_t> newest(static_cast<size_t>(sessions), 1);
  int64_t position = rows;
  GpuEvent began(context_.device, true), ended(context_.device, true);
  std::vector<RowMass> masses;
  for (int64_t i = 0; i < sessions; ++i) masses.emplace_back(context_.device, mass, d.heads);
  const auto step = [&](bool with_mass) {
    std::vector<Sequence> batch(memories.size());
    for (size_t i = 0; i < batch.size(); ++i) {
      batch[i].ids.assign(static_cast<size_t>(tokens), newest[i]);
      batch[i].tokens.resize(static_cast<size_t>(tokens));
      for (size_t k = 0; k < batch[i].tokens.size(); ++k) {
        const auto at = static_cast<int32_t>(position) + static_cast<int32_t>(k);
        batch[i].tokens[k].position = {at, at, at};
      }
      batch[i].memory = memories[i].get();
      batch[i].attention = &attention;
      batch[i].hidden_rows = tokens;
      if (with_mass) batch[i].mass = &masses[i];
    }
    began.record(context_);
    const std::vector<Forwarded> results = runner->forward(std::span<const Sequence>(batch));
    for (const Forwarded& result : results) {
      if (result.failure) std::rethrow_exception(result.failure);
    }
    const HiddenRows hidden(context_, results, d.hidden);
    const Tensor logits = decoder_->logits(context_, hidden.view());
    ended.record(context_);
    const std::vector<int32_t> best = argmax_rows(context_, logits);
    for (size_t i = 0; i < newest.size(); ++i) {
      newest[i] = best[i * static_cast<size_t>(tokens)];
    }
    // Of checked drafts some stay, which moves their rows, and are then thrown away for the next
    // step to find what this one did; a token on its own stays.
    if (tokens > 1) {
      const int32_t last = static_cast<int32_t>(tokens) - 1;
      const std::vector<int32_t> right =
          tokens < 4 ? std::vector{0, last} : std::vector{0, last - 2, last - 1, last};
      for (size_t i = 0; i < before.size(); ++i) {
        memories[i]->accept(context_, right);
        memories[i]->rewind(before[i]);
      }
    } else {
      ++position;
    }
  };
  const std::vector<bool> turns = mass.empty() ? std::vector{false} : std::vector{false, true};
  for (int i = 0; i < 4; ++i) {  // the second captures the graph
    for (const bool with_mass : turns) step(with_mass);
  }
  DecodeFigure figure;
  for (int64_t i = 0; i < steps; ++i) {
    for (const bool with_mass : turns) {
      const auto begin = std::chrono::steady_clock::now();
      step(with_mass);
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
      (with_mass ? figure.mass_seconds : figure.seconds) +=
          elapsed.count() / static_cast<double>(steps);
      (with_mass ? figure.mass_device_seconds : figure.device_seconds) +=
          ended.seconds_since(began) / static_cast<double>(steps);
    }
  }
  figure.context = rows;
  figure.sessions = sessions;
  figure.tokens = tokens;
  figure.step_bytes = static_cast<double>(weight_bytes()) + row_bytes;
  return figure;
}

VisionFigure ModelBench::vision(int64_t frames, int64_t width, int64_t height) const {
  return shape_.vision(context_, shape_.config, frames, width, height);
}

}  // namespace kinora::cli
