// Runs ops, attention and a small decoder in bf16 on a GPU over random numbers and writes what went
// in and what came out to a folder. compare.py computes the same in double precision and with
// PyTorch in bf16 and prints both errors.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "attention/policies/dense.h"
#include "attention/window_attention.h"
#include "base/error.h"
#include "base/gpu.h"
#include "base/random.h"
#include "memory/flat_memory.h"
#include "model/decoder/transformer_decoder.h"
#include "ops/activation.h"
#include "ops/elementwise.h"
#include "ops/layer_norm.h"
#include "ops/matmul.h"
#include "ops/norm_matmul.h"
#include "ops/rms_norm.h"

namespace kinora::bench {
namespace {

class Precision {
 public:
  Precision(const Context& context, std::filesystem::path folder, uint64_t seed)
      : context_(context), folder_(std::move(folder)), random_(seed) {}

  void products() {
    for (const int64_t m : {1, 5, 64, 1000}) {
      const int64_t n = 771, k = 1536;
      const Tensor a = normal(DType::bf16, {m, k}), weight = normal(DType::bf16, {n, k}, 0.03);
      const Tensor bias = normal(DType::bf16, {n});
      Tensor out(DType::bf16, {m, n}, context_.device);
      MatmulOptions options;
      options.bias = bias.view();
      matmul(context_, a, weight, out, options);
      add("matmul", m, {{"a", a}, {"weight", weight}, {"bias", bias}, {"out", out}});
    }
    for (const int64_t m : {1, 64}) {
      const int64_t n = 640, k = 1536;
      const Tensor x = normal(DType::f32, {m, k}, 3), norm = normal(DType::bf16, {k}, 0.3, 1);
      const Tensor weight = normal(DType::bf16, {2 * n, k}, 0.03);
      Tensor room(DType::bf16, {m, k}, context_.device), out(DType::bf16, {m, n}, context_.device);
      norm_gated_matmul(context_, {x, norm, 1e-6f, room}, weight, {}, out);
      add("norm_gated_matmul", m, {{"x", x}, {"norm", norm}, {"weight", weight}, {"out", out}});
    }
  }

  void rows() {
    const int64_t m = 65, n = 1544;
    const Tensor x = normal(DType::bf16, {m, n}, 2), y = normal(DType::bf16, {m, n});
    const Tensor weight = normal(DType::bf16, {n}, 0.3, 1), bias = normal(DType::bf16, {n});
    Tensor out(DType::bf16, {m, n}, context_.device);
    rms_norm(context_, x, weight, 1e-6f, out);
    add("rms_norm", m, {{"x", x}, {"weight", weight}, {"out", out}});
    layer_norm(context_, x, weight, bias, 1e-6f, out);
    add("layer_norm", m, {{"x", x}, {"weight", weight}, {"bias", bias}, {"out", out}});
    gelu_tanh(context_, x, out);
    add("gelu_tanh", m, {{"x", x}, {"out", out}});
    silu_mul(context_, x, y, out);
    add("silu_mul", m, {{"x", x}, {"y", y}, {"out", out}});
  }

  void attentions() {
    struct Case {
      int64_t heads, kv_heads, size, queries, rows;
    };
    for (const Case& c : {Case{28, 4, 128, 700, 700}, Case{28, 4, 128, 129, 3000},
                          Case{14, 2, 64, 300, 300}, Case{28, 4, 128, 1, 3000}}) {
      const Tensor q = normal(DType::bf16, {c.queries, c.heads, c.size});
      const Tensor k = normal(DType::bf16, {c.rows, c.kv_heads, c.size});
      const Tensor v = normal(DType::bf16, {c.rows, c.kv_heads, c.size});
      Tensor out(DType::bf16, q.shape(), context_.device);
      std::vector<int32_t> ordinals(static_cast<size_t>(c.rows));
      for (size_t i = 0; i < ordinals.size(); ++i) ordinals[i] = static_cast<int32_t>(i);
      const std::vector<Modality> modalities(ordinals.size(), Modality::text);
      const auto last = static_cast<size_t>(c.rows - c.queries);
      const std::span<const int32_t> own = std::span(ordinals).subspan(last);
      const std::span<const Modality> kinds = std::span(modalities).subspan(last);
      DenseAttention().attend(context_, 0, {q, own, kinds}, {k, v, ordinals, modalities},
                              1 / std::sqrt(static_cast<float>(c.size)), out);
      add("causal_attention", c.queries, {{"q", q}, {"k", k}, {"v", v}, {"out", out}});
    }
    for (const int64_t size : {80, 72}) {
      const int64_t rows = 600, heads = 16;
      const Tensor q = normal(DType::bf16, {rows, heads, size});
      const Tensor k = normal(DType::bf16, {rows, heads, size});
      const Tensor v = normal(DType::bf16, {rows, heads, size});
      Tensor out(DType::bf16, q.shape(), context_.device);
      const std::vector<int32_t> offsets{0, static_cast<int32_t>(rows)};
      attend_windows(context_, q, k, v, offsets, 1 / std::sqrt(static_cast<float>(size)), out);
      add("window_attention", rows, {{"q", q}, {"k", k}, {"v", v}, {"out", out}});
    }
  }

  // A prompt, then tokens one at a time; the logits of the prompt's last token and of each step.
  void decoder() {
    DecoderConfig config;
    config.hidden = 896;
    config.layers = 4;
    config.heads = 14;
    config.kv_heads = 2;
    config.head_size = 64;
    config.intermediate = 1216;
    config.vocabulary = 1000;
    config.max_position = 4096;
    config.qkv_bias = true;
    config.rope.theta = 1e6;
    const auto matrix = [&](int64_t n, int64_t k) {
      return normal(DType::bf16, {n, k}, 1 / std::sqrt(static_cast<double>(k)));
    };
    const auto norm = [&](int64_t n) { return normal(DType::bf16, {n}, 0.2, 1); };
    const auto bias = [&](int64_t n) { return normal(DType::bf16, {n}, 0.5); };
    const int64_t query = config.heads * config.head_size, key = config.kv_heads * config.head_size;
    DecoderWeights weights;
    std::vector<std::pair<std::string, Tensor>> tensors;
    const auto keep = [&](const std::string& name, Tensor tensor) {
      tensors.emplace_back(name, tensor);
      return tensor;
    };
    weights.embeddings =
        keep("embeddings", normal(DType::bf16, {config.vocabulary, config.hidden}));
    weights.head.weight = keep("head", matrix(config.vocabulary, config.hidden));
    weights.norm = keep("norm", norm(config.hidden));
    for (int64_t i = 0; i < config.layers; ++i) {
      const std::string at = std::to_string(i) + ".";
      DecoderLayerWeights layer;
      layer.input_norm = keep(at + "input_norm", norm(config.hidden));
      layer.post_norm = keep(at + "post_norm", norm(config.hidden));
      layer.query = {keep(at + "query", matrix(query, config.hidden)),
                     keep(at + "query_bias", bias(query))};
      layer.key = {keep(at + "key", matrix(key, config.hidden)), keep(at + "key_bias", bias(key))};
      layer.value = {keep(at + "value", matrix(key, config.hidden)),
                     keep(at + "value_bias", bias(key))};
      layer.output.weight = keep(at + "output", matrix(config.hidden, query));
      layer.gate.weight = keep(at + "gate", matrix(config.intermediate, config.hidden));
      layer.up.weight = keep(at + "up", matrix(config.intermediate, config.hidden));
      layer.down.weight = keep(at + "down", matrix(config.hidden, config.intermediate));
      weights.layers.push_back(layer);
    }
    const TransformerDecoder model(context_, config, weights, {.activations = DType::bf16});
    const std::unique_ptr<DecoderRunner> runner = model.runner(context_);
    FlatMemory memory({static_cast<int>(config.layers), static_cast<int>(config.kv_heads),
                       static_cast<int>(config.head_size), DType::bf16},
                      context_.device);
    DenseAttention attention;
    constexpr int64_t prompt = 300, steps = 12;
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < prompt + steps; ++i) {
      ids.push_back(static_cast<int32_t>(random_.below(static_cast<uint64_t>(config.vocabulary))));
    }
    Tensor out(DType::f32, {steps + 1, config.vocabulary}, context_.device);
    int64_t begin = 0;
    for (int64_t step = 0; step <= steps; ++step) {
      const int64_t end = prompt + step;
      Sequence group;
      group.ids.assign(ids.begin() + begin, ids.begin() + end);
      group.memory = &memory;
      group.attention = &attention;
      for (int64_t i = begin; i < end; ++i) {
        const auto at = static_cast<int32_t>(i);
        group.tokens.push_back({.position = {at, at, at}, .modality = Modality::text});
      }
      const Tensor hidden = runner->forward(group).hidden;
      const Tensor logits = model.logits(context_, hidden);
      copy_async(context_, out.view().rows(step, 1).raw(), logits.view().raw(),
                 static_cast<size_t>(logits.bytes()));
      begin = end;
    }
    Tensor tokens(DType::i32, {prompt + steps});
    std::copy(ids.begin(), ids.end(), tokens.data<int32_t>());
    tensors.emplace_back("ids", tokens);
    tensors.emplace_back("out", out);
    add("decoder", prompt, tensors,
        {{"heads", config.heads},
         {"kv_heads", config.kv_heads},
         {"theta", config.rope.theta},
         {"layers", config.layers},
         {"steps", steps}});
  }

  void write() const {
    std::ofstream(folder_ / "cases.json") << cases_.dump(1) << '\n';
    fmt::print("{} cases in {}\n", cases_.size(), folder_.string());
  }

 private:
  // Normal numbers around `mean`, on the device.
  Tensor normal(DType type, const Shape& shape, double deviation = 1, double mean = 0) {
    Tensor wide(DType::f32, shape);
    for (int64_t i = 0; i < wide.elements(); ++i) {
      wide.data<float>()[i] = static_cast<float>(mean + deviation * random_.normal());
    }
    const Tensor there = wide.to(context_.device);
    if (type == DType::f32) return there;
    Tensor narrow(type, shape, context_.device);
    convert(context_, there, narrow);
    return narrow;
  }

  void add(const std::string& kind, int64_t rows,
           const std::vector<std::pair<std::string, Tensor>>& tensors,
           const nlohmann::json& more = nlohmann::json::object()) {
    nlohmann::json one = {{"kind", kind}, {"rows", rows}, {"more", more}};
    for (const auto& [name, tensor] : tensors) {
      const std::string file = fmt::format("{}_{}.bin", cases_.size(), name);
      const Tensor here = tensor.to(Device::cpu());
      std::ofstream stream(folder_ / file, std::ios::binary);
      stream.write(reinterpret_cast<const char*>(here.view().raw()), here.bytes());
      if (!stream) throw Error(ErrorKind::resource, "cannot write to " + folder_.string());
      nlohmann::json shape;
      for (int axis = 0; axis < here.rank(); ++axis) shape.push_back(here.size(axis));
      one["tensors"][name] = {
          {"file", file}, {"type", std::string(dtype_name(here.dtype()))}, {"shape", shape}};
    }
    cases_.push_back(one);
  }

  const Context& context_;
  std::filesystem::path folder_;
  Random random_;
  nlohmann::json cases_ = nlohmann::json::array();
};

int run(int argc, char** argv) {
  CLI::App app("What bf16 costs on a GPU");
  std::string folder, device = "cuda";
  uint64_t seed = 1;
  app.add_option("folder", folder, "Where to write the cases")->required();
  app.add_option("--device", device)->capture_default_str();
  app.add_option("--seed", seed)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  std::filesystem::create_directories(folder);
  const ThreadPool threads;
  const Context context(threads, parse_device(device));
  Precision precision(context, folder, seed);
  precision.products();
  precision.rows();
  precision.attentions();
  precision.decoder();
  precision.write();
  return 0;
}

}  // namespace
}  // namespace kinora::bench

int main(int argc, char** argv) {
  try {
    return kinora::bench::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
