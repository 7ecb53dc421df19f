#include "decoder/random_model.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "common/samples.h"
#include "model/weights/safetensors_writer.h"
#include "model/weights/weights_binder.h"

namespace kinora::bench {
namespace {

// Small and centred; the bits are what matters, not the distribution.
Tensor random_tensor(Random& random, const Shape& shape, float centre, float spread) {
  Tensor tensor(DType::bf16, shape);
  bf16* values = tensor.data<bf16>();
  const int64_t count = tensor.elements();
  for (int64_t i = 0; i < count; i += 4) {
    const uint64_t bits = random.next();
    for (int64_t k = 0; k < 4 && i + k < count; ++k) {
      const auto part = static_cast<int16_t>(static_cast<uint16_t>(bits >> (16 * k)));
      values[i + k] = bf16::from_float(centre + spread * static_cast<float>(part) / 32768.0f);
    }
  }
  return tensor;
}

NamedTensors random_weights(const DecoderConfig& config) {
  Random random(1);
  NamedTensors tensors;
  const auto matrix = [&](const std::string& name, int64_t out, int64_t in) {
    tensors.emplace_back(name, random_tensor(random, {out, in}, 0, 0.05f));
  };
  const auto vector = [&](const std::string& name, int64_t size, float centre) {
    tensors.emplace_back(name, random_tensor(random, {size}, centre, 0.05f));
  };
  const int64_t query = config.heads * config.head_size;
  const int64_t key = config.kv_heads * config.head_size;
  matrix("model.embed_tokens.weight", config.vocabulary, config.hidden);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string name = fmt::format("model.layers.{}.", layer);
    vector(name + "input_layernorm.weight", config.hidden, 1);
    vector(name + "post_attention_layernorm.weight", config.hidden, 1);
    matrix(name + "self_attn.q_proj.weight", query, config.hidden);
    matrix(name + "self_attn.k_proj.weight", key, config.hidden);
    matrix(name + "self_attn.v_proj.weight", key, config.hidden);
    matrix(name + "self_attn.o_proj.weight", config.hidden, query);
    if (config.qkv_bias) {
      vector(name + "self_attn.q_proj.bias", query, 0);
      vector(name + "self_attn.k_proj.bias", key, 0);
      vector(name + "self_attn.v_proj.bias", key, 0);
    }
    matrix(name + "mlp.gate_proj.weight", config.intermediate, config.hidden);
    matrix(name + "mlp.up_proj.weight", config.intermediate, config.hidden);
    matrix(name + "mlp.down_proj.weight", config.hidden, config.intermediate);
  }
  vector("model.norm.weight", config.hidden, 1);
  if (!config.tied.value()) matrix("lm_head.weight", config.vocabulary, config.hidden);
  return tensors;
}

}  // namespace

std::vector<std::string> shape_names() {
  return {"qwen2.5-0.5b", "qwen2.5-1.5b", "tinyllama-1.1b", "kinora-tiny"};
}

DecoderConfig shape_config(const std::string& name) {
  DecoderConfig decoder;
  decoder.max_position = 32768;
  if (name == "qwen2.5-0.5b") {
    decoder.hidden = 896;
    decoder.layers = 24;
    decoder.heads = 14;
    decoder.kv_heads = 2;
    decoder.head_size = 64;
    decoder.intermediate = 4864;
    decoder.vocabulary = 151936;
    decoder.qkv_bias = true;
    decoder.tied = true;
    decoder.rope.theta = 1e6;
  } else if (name == "qwen2.5-1.5b") {
    decoder.hidden = 1536;
    decoder.layers = 28;
    decoder.heads = 12;
    decoder.kv_heads = 2;
    decoder.head_size = 128;
    decoder.intermediate = 8960;
    decoder.vocabulary = 151936;
    decoder.qkv_bias = true;
    decoder.tied = true;
    decoder.rope.theta = 1e6;
  } else if (name == "tinyllama-1.1b") {
    decoder.hidden = 2048;
    decoder.layers = 22;
    decoder.heads = 32;
    decoder.kv_heads = 4;
    decoder.head_size = 64;
    decoder.intermediate = 5632;
    decoder.vocabulary = 32000;
    decoder.tied = false;
  } else if (name == "kinora-tiny") {
    decoder.hidden = 384;
    decoder.layers = 7;
    decoder.heads = 6;
    decoder.kv_heads = 2;
    decoder.head_size = 64;
    decoder.intermediate = 512;
    decoder.vocabulary = 1280;
    decoder.qkv_bias = true;
    decoder.tied = true;
    decoder.rope.theta = 1e6;
  } else {
    throw Error(ErrorKind::usage, "there is no shape named " + name);
  }
  return decoder;
}

RandomModel::RandomModel(const Context& context, const DecoderConfig& config, bool native_bf16) {
  std::string pattern = (std::filesystem::temp_directory_path() / "kinora-bench-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw Error(ErrorKind::resource, "cannot make a temporary directory");
  }
  directory_ = pattern;
  {
    const NamedTensors tensors = random_weights(config);
    write_safetensors(real_files(), join_path(directory_, "model.safetensors"), tensors);
    for (const auto& [name, tensor] : tensors) {
      if (name.starts_with("model.layers.")) layer_parameters_ += tensor.elements();
    }
  }
  head_parameters_ = config.vocabulary * config.hidden;
  load_seconds_ = seconds_of([&] {
    WeightsBinder binder(TensorFiles::open(real_files(), directory_));
    DecoderWeights weights = take_decoder(binder, config);
    binder.finish(context, false);
    decoder_ =
        std::make_unique<TransformerDecoder>(context, config, weights, DecoderOptions{native_bf16});
  });
}

RandomModel::~RandomModel() {
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

}  // namespace kinora::bench
