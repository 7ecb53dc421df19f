#include "bench/model_bench.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>

#include "attention/policies/dense.h"
#include "base/error.h"
#include "base/gpu.h"
#include "model/decoder/gpu_decoder.h"
#include "model/families/llava_onevision/siglip.h"
#include "model/families/qwen2_5_vl/tower.h"
#include "model/vision/gpu_patches.h"
#include "model/weights/gpu_weights.h"
#include "model/weights/random_weights.h"
#include "ops/matmul.h"
#include "ops/top_k.h"

namespace kinora::cli {
namespace {

ModelConfig qwen(int64_t hidden, int64_t layers, int64_t heads, int64_t kv_heads, int64_t wide,
                 int64_t vocabulary, bool tied) {
  ModelConfig config;
  config.family = Family::qwen2_5_vl;
  config.decoder.hidden = hidden;
  config.decoder.layers = layers;
  config.decoder.heads = heads;
  config.decoder.kv_heads = kv_heads;
  config.decoder.head_size = 128;
  config.decoder.intermediate = wide;
  config.decoder.vocabulary = vocabulary;
  config.decoder.max_position = 128000;
  config.decoder.qkv_bias = true;
  config.decoder.tied = tied;
  config.decoder.rope.theta = 1e6;
  return config;
}

ModelConfig with_qwen_eyes(ModelConfig config) {
  config.decoder.rope.sections = {16, 24, 24};
  QwenVisionConfig vision;
  vision.hidden = 1280;
  vision.layers = 32;
  vision.heads = 16;
  vision.intermediate = 3420;
  vision.output = config.decoder.hidden;
  vision.full_layers = {7, 15, 23, 31};
  config.qwen_vision = vision;
  return config;
}

// The middle of several runs; the first, which warms up, is not counted.
double median_seconds(const Context& context, int repeats, const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i <= repeats; ++i) {
    synchronize(context);
    const auto begin = std::chrono::steady_clock::now();
    work();
    synchronize(context);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    if (i > 0) times.push_back(elapsed.count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

ModelConfig shape_config(const std::string& name) {
  if (name == "qwen2.5-vl-7b") return with_qwen_eyes(qwen(3584, 28, 28, 4, 18944, 152064, false));
  if (name == "qwen2.5-vl-3b" || name == "3b") {
    return with_qwen_eyes(qwen(2048, 36, 16, 2, 11008, 151936, true));
  }
  if (name == "llava-onevision-7b") {
    ModelConfig config = qwen(3584, 28, 28, 4, 18944, 152128, false);
    config.family = Family::llava_onevision;
    SiglipConfig eyes;
    eyes.hidden = 1152;
    eyes.layers = 26;
    eyes.heads = 16;
    eyes.intermediate = 4304;
    config.siglip = eyes;
    return config;
  }
  throw Error(ErrorKind::usage, "unknown shape '" + name +
                                    "': give qwen2.5-vl-7b, qwen2.5-vl-3b or llava-onevision-7b");
}

ModelBench::ModelBench(const Context& context, const ModelConfig& config)
    : context_(context), config_(config) {
  const DecoderWeights weights = random_decoder(context, config.decoder, DType::bf16);
  decoder_ = make_gpu_decoder(context, config.decoder, weights, DType::bf16);
}

int64_t ModelBench::layer_parameters() const {
  const DecoderConfig& d = config_.decoder;
  return 2 * d.hidden * d.head_size * (d.heads + d.kv_heads) + 3 * d.hidden * d.intermediate;
}

// What a decoding step reads: the layers and the head.
int64_t ModelBench::weight_bytes() const {
  return 2 * (config_.decoder.layers * layer_parameters() +
              config_.decoder.vocabulary * config_.decoder.hidden);
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

TokenGroup ModelBench::group_at(int64_t begin, int64_t count) const {
  TokenGroup group;
  group.embeddings = random_tensor(context_, DType::f32, {count, config_.decoder.hidden}, 1.0f, 7);
  group.tokens.resize(static_cast<size_t>(count));
  for (size_t i = 0; i < group.tokens.size(); ++i) {
    const auto position = static_cast<int32_t>(begin) + static_cast<int32_t>(i);
    group.tokens[i].position = {position, position, position};
    group.tokens[i].modality = Modality::video;
  }
  return group;
}

PrefillFigure ModelBench::prefill(int64_t tokens, int64_t group, int64_t layers) const {
  DecoderConfig config = config_.decoder;
  config.layers = std::min(layers, config.layers);
  std::shared_ptr<const Decoder> decoder = decoder_;
  if (config.layers < config_.decoder.layers) {
    DecoderConfig small = config;
    small.vocabulary = 128;
    decoder = make_gpu_decoder(context_, small, random_decoder(context_, small, DType::bf16),
                               DType::bf16);
  }
  const RowLayout layout{static_cast<int>(config.layers), static_cast<int>(config.kv_heads),
                         static_cast<int>(config.head_size), DType::bf16};
  DenseAttention attention;
  const auto run = [&](int64_t count) {
    RowStore store(layout, context_.device);
    synchronize(context_);
    const auto started = std::chrono::steady_clock::now();
    for (int64_t begin = 0; begin < count; begin += group) {
      const int64_t some = std::min(group, count - begin);
      decoder->prefill(context_, group_at(begin, some), store, attention, {});
    }
    synchronize(context_);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  };
  run(std::min(tokens, group));  // algorithms are chosen and memory is taken once
  reset_gpu_peak(context_.device);
  const double elapsed = run(tokens);

  const double scale =
      static_cast<double>(config_.decoder.layers) / static_cast<double>(config.layers);
  const auto n = static_cast<double>(tokens);
  const double width = static_cast<double>(config.heads * config.head_size);
  PrefillFigure figure;
  figure.tokens = tokens;
  figure.group = group;
  figure.layers = config.layers;
  figure.seconds = elapsed * scale;
  figure.operations = static_cast<double>(config_.decoder.layers) *
                      (2 * n * static_cast<double>(layer_parameters()) + 2 * n * n * width);
  figure.peak_bytes = gpu_memory(context_.device).peak;
  return figure;
}

ProductsFigure ModelBench::products(int64_t rows) const {
  const DecoderConfig& d = config_.decoder;
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

DecodeFigure ModelBench::decode(int64_t rows, int64_t steps) const {
  const DecoderConfig& d = config_.decoder;
  const RowLayout layout{static_cast<int>(d.layers), static_cast<int>(d.kv_heads),
                         static_cast<int>(d.head_size), DType::bf16};
  RowStore store(layout, context_.device);
  DenseAttention attention;
  store.begin_group(group_at(0, rows).tokens);
  for (int layer = 0; layer < layout.layers; ++layer) {
    const RowStore::NewRows fresh = store.append(layer);
    fill_random(context_, fresh.keys, 1.0f, static_cast<uint64_t>(layer));
    fill_random(context_, fresh.values, 1.0f, static_cast<uint64_t>(layer) + 1000);
  }
  int32_t token = 1;
  int64_t position = rows;
  GpuEvent began(context_.device, true), ended(context_.device, true);
  const auto step = [&] {
    TokenGroup group;
    began.record(context_);
    group.embeddings = decoder_->embed(context_, {&token, 1});
    group.tokens.resize(1);
    const auto at = static_cast<int32_t>(position++);
    group.tokens[0].position = {at, at, at};
    const Tensor hidden = decoder_->prefill(context_, group, store, attention, {});
    const Tensor logits = decoder_->logits(context_, hidden);
    ended.record(context_);
    token = argmax(context_, logits.view()[0]);
  };
  for (int i = 0; i < 4; ++i) step();  // the second captures the graph
  const auto begin = std::chrono::steady_clock::now();
  DecodeFigure figure;
  for (int64_t i = 0; i < steps; ++i) {
    step();
    figure.device_seconds += ended.seconds_since(began) / static_cast<double>(steps);
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  figure.context = rows;
  figure.seconds = elapsed.count() / static_cast<double>(steps);
  figure.step_bytes = static_cast<double>(weight_bytes() + store.bytes());
  return figure;
}

VisionFigure ModelBench::vision(int64_t frames, int64_t width, int64_t height) const {
  VisionFigure figure;
  figure.frames = frames;
  const PixelNormalizer normalizer({0.5f, 0.5f, 0.5f}, {0.5f, 0.5f, 0.5f});
  if (config_.qwen_vision) {
    const QwenVisionConfig& v = *config_.qwen_vision;
    const int64_t block = v.patch * v.merge;
    figure.width = width / block * block;
    figure.height = height / block * block;
    Tensor pixels(DType::u8, {frames, figure.height, figure.width, 3});
    for (int64_t i = 0; i < pixels.elements(); ++i) {
      pixels.data<uint8_t>()[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
    }
    const QwenVisionTower tower(
        v, on_gpu(context_, random_qwen_vision(context_, v, DType::bf16), DType::bf16),
        DType::bf16);
    const int64_t rows = figure.height / v.patch, columns = figure.width / v.patch;
    const int64_t units = (frames + v.temporal_patch - 1) / v.temporal_patch;
    figure.seconds = median_seconds(context_, 3, [&] {
      const Tensor patches = gpu_patches(context_, pixels, {v.temporal_patch, v.merge, v.patch},
                                         normalizer, {DType::bf16, tower.patch_columns()});
      const Tensor tokens = tower.encode(context_, patches, units, rows, columns);
      figure.tokens = tokens.size(0);
    });
    const auto patches = static_cast<double>(units * rows * columns);
    const auto h = static_cast<double>(v.hidden);
    const auto full = static_cast<double>(v.full_layers.size());
    const double window = static_cast<double>(v.window / v.patch * (v.window / v.patch));
    const double each =
        static_cast<double>(v.layers) * (8 * h * h + 6 * h * static_cast<double>(v.intermediate)) +
        2 * h * static_cast<double>(tower.patch_columns()) +
        2 * (4 * h * h + h * static_cast<double>(v.output)) +
        4 * h *
            (full * static_cast<double>(rows * columns) +
             (static_cast<double>(v.layers) - full) * window);
    figure.operations = patches * each;
    return figure;
  }
  const SiglipConfig& v = *config_.siglip;
  figure.width = figure.height = v.image;
  const Tensor pixels = Tensor::zeros(DType::u8, {frames, v.image, v.image, 3});
  const SiglipTower tower(context_, v,
                          on_gpu(context_, random_siglip(context_, v, DType::bf16), DType::bf16),
                          v.layers, DType::bf16);
  figure.seconds = median_seconds(context_, 3, [&] {
    const Tensor patches = gpu_patches(context_, pixels, {1, 1, v.patch}, normalizer,
                                       {DType::bf16, tower.patch_columns()});
    figure.tokens = tower.encode(context_, patches).size(0);
  });
  const auto h = static_cast<double>(v.hidden);
  const auto grid = static_cast<double>(v.grid() * v.grid());
  figure.operations = static_cast<double>(frames) * grid * static_cast<double>(v.layers) *
                      (8 * h * h + 4 * h * static_cast<double>(v.intermediate) + 4 * h * grid);
  return figure;
}

}  // namespace kinora::cli
