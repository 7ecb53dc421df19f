// Test support: drafts with random weights for the small models of tests/fixtures, written as a
// person would have them, and damaged at will.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/random.h"
#include "generate/draft_model.h"
#include "model/weights/safetensors_writer.h"
#include "support/temp_dir.h"

namespace kinora::testing {

// As training/draft writes them, and as others publish theirs.
enum class DraftForm { sparrow, eagle, eagle3 };

class DraftFiles {
 public:
  // For the model of a fixture's config. With `own`, a vocabulary of that many random tokens.
  DraftFiles(Random& random, const std::string& target_directory, int64_t own = 0,
             DraftForm form = DraftForm::sparrow) {
    const auto target =
        nlohmann::json::parse(real_files().read(join_path(target_directory, "config.json")));
    const std::string family = target.at("model_type");
    const int64_t hidden = target.at("hidden_size"), vocabulary = target.at("vocab_size");
    const int64_t heads = target.at("num_attention_heads");
    const int64_t kv_heads = target.at("num_key_value_heads");
    const int64_t size = target.value("head_dim", hidden / heads);
    const int64_t wide = target.at("intermediate_size");
    const bool bias = family.starts_with("qwen2"), norms = family == "qwen3";
    const bool eagle = form == DraftForm::eagle, eagle3 = form == DraftForm::eagle3;
    config = {{"model_type", "sparrow"},
              {"hidden_size", hidden},
              {"vocab_size", vocabulary},
              {"num_hidden_layers", 1},
              {"num_attention_heads", heads},
              {"num_key_value_heads", kv_heads},
              {"head_dim", size},
              {"intermediate_size", wide},
              {"rms_norm_eps", 1e-6},
              {"rope_theta", 10000.0},
              {"qkv_bias", bias},
              {"qk_norm", norms},
              {"target_num_hidden_layers", target.at("num_hidden_layers")},
              {"target_state_layer", 0}};
    int64_t fed = 2;  // rows that FC reads
    if (eagle || eagle3) {
      config["model_type"] = family;
      for (const char* key :
           {"qkv_bias", "qk_norm", "target_num_hidden_layers", "target_state_layer"}) {
        config.erase(key);
      }
    }
    if (eagle3) {
      const bool few = target.at("num_hidden_layers") < 7;
      config["architectures"] = {"Eagle3LlamaForCausalLM"};
      if (few) config["eagle_aux_hidden_state_layer_ids"] = {1};
      fed = few ? 1 : 3;
    }
    const auto add = [&](const std::string& name, Shape shape, double scale, double middle = 0) {
      Tensor tensor(DType::f32, shape);
      for (int64_t i = 0; i < tensor.elements(); ++i) {
        tensor.data<float>()[i] = static_cast<float>(middle + scale * random.normal());
      }
      tensors.emplace_back(name, std::move(tensor));
    };
    add("fc.weight", {hidden, fed * hidden}, 0.3);
    const std::string layer = eagle3 ? "midlayer." : "layers.0.", attention = layer + "self_attn.";
    if (!eagle) add(layer + "input_layernorm.weight", {hidden}, 0.1, 1);
    if (eagle3) add(layer + "hidden_norm.weight", {hidden}, 0.1, 1);
    add(layer + "post_attention_layernorm.weight", {hidden}, 0.1, 1);
    for (const auto& [name, rows] : {std::pair("q_proj", heads * size),
                                     {"k_proj", kv_heads * size},
                                     {"v_proj", kv_heads * size}}) {
      add(attention + name + ".weight", {rows, eagle3 ? 2 * hidden : hidden}, 0.3);
      if (bias) add(attention + name + ".bias", {rows}, 0.3);
    }
    if (norms) {
      add(attention + "q_norm.weight", {size}, 0.1, 1);
      add(attention + "k_norm.weight", {size}, 0.1, 1);
    }
    add(attention + "o_proj.weight", {hidden, heads * size}, 0.3);
    add(layer + "mlp.gate_proj.weight", {wide, hidden}, 0.3);
    add(layer + "mlp.up_proj.weight", {wide, hidden}, 0.3);
    add(layer + "mlp.down_proj.weight", {hidden, wide}, 0.3);
    if (!eagle) add("norm.weight", {hidden}, 0.1, 6);
    if (own == 0 || eagle) return;
    config["draft_vocab_size"] = own;
    add("lm_head.weight", {own, hidden}, 0.3);
    Tensor tokens(DType::i32, {own});
    for (int64_t i = 0; i < own; ++i) {  // no token twice
      const int64_t from = i * vocabulary / own, to = (i + 1) * vocabulary / own;
      const int64_t token = from + random.below(to - from);
      tokens.data<int32_t>()[i] = static_cast<int32_t>(eagle3 ? token - i : token);
    }
    tensors.emplace_back("d2t", std::move(tokens));
  }

  Tensor& tensor(const std::string& name) {
    for (auto& [own, tensor] : tensors) {
      if (own == name) return tensor;
    }
    throw Error(ErrorKind::internal, "no tensor " + name);
  }

  // The directory, as it is now.
  const std::string& write() {
    std::ofstream(directory_.file("config.json")) << config.dump(1);
    write_safetensors(real_files(), directory_.file("model.safetensors"), tensors);
    return directory_.path();
  }
  // Where it was last written.
  const std::string& directory() const { return directory_.path(); }
  std::string file() const { return directory_.file("model.safetensors"); }

  nlohmann::json config;
  NamedTensors tensors;

 private:
  TempDir directory_;
};

}  // namespace kinora::testing
