#include "generate/draft_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "model/config_files.h"
#include "model/weights/gpu_weights.h"
#include "model/weights/weights_binder.h"

namespace kinora {
namespace {

using Json = nlohmann::json;

// The layers that EAGLE's drafts are made of.
constexpr std::array<std::string_view, 5> eagle_types = {"llama", "llava", "mistral", "qwen2",
                                                         "qwen3"};

// Published drafts say what they are in the name of a class, which every program spells its own
// way, and the first ones of the third generation only by their vocabulary.
bool is_eagle3(const ConfigSection& config) {
  if (config.has("draft_vocab_size")) return true;
  const Json* classes = config.find("architectures");
  if (classes == nullptr || !classes->is_array()) return false;
  return std::any_of(classes->begin(), classes->end(), [](const Json& name) {
    if (!name.is_string()) return false;
    std::string lower = name.get<std::string>();
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return lower.find("eagle3") != std::string::npos;
  });
}

TensorFiles open_tensors(const Context& context, const FileSystem& files,
                         const std::string& directory) {
  const auto has = [&](const char* name) { return files.is_file(join_path(directory, name)); };
  if (has("pytorch_model.bin") && !has("model.safetensors") &&
      !has("model.safetensors.index.json")) {
    throw Error(ErrorKind::unsupported,
                fmt::format("{} holds its weights in pytorch_model.bin, which can run programs; "
                            "convert it to model.safetensors (torch.load with weights_only=True, "
                            "then safetensors.torch.save_file)",
                            directory));
  }
  TensorFiles tensors = TensorFiles::open(files, directory);
  if (context.device.is_cpu() && tensors.bytes() <= copied_weight_bytes) tensors.copy_to_memory();
  return tensors;
}

class DraftReader {
 public:
  DraftReader(const Context& context, const FileSystem& files, const std::string& directory,
              const Model& target)
      : context_(context),
        directory_(directory),
        target_(target.decoder()),
        config_files_(ConfigFiles::read(files, directory)),
        files_(files) {}

  DraftParts read() {
    const ConfigSection top = config_files_.top();
    const std::string type = config_files_.model_type();
    if (type == "sparrow") return read_sparrow(top);
    if (top.has("transformer_layer_config")) {
      top.unsupported("transformer_layer_config",
                      "is how speculators writes drafts; kinora reads EAGLE's own form");
    }
    if (std::none_of(eagle_types.begin(), eagle_types.end(),
                     [&](std::string_view known) { return type.starts_with(known); })) {
      top.unsupported("model_type",
                      fmt::format("is '{}'; kinora has sparrow drafts, and EAGLE's and MSD's of "
                                  "llama and qwen layers",
                                  type));
    }
    return is_eagle3(top) ? read_eagle3(top) : read_eagle(top, type);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::bad_input,
                fmt::format("the draft in {} was made for another model: {}", directory_, what));
  }
  void expect_same(const char* what, int64_t own, int64_t target) const {
    if (own == target) return;
    refuse(fmt::format("its {} is {}, the model's {}", what, own, target));
  }

  DecoderConfig read_decoder(const ConfigSection& top, const DecoderTraits& traits) const {
    const DecoderConfig config = read_config(config_files_, traits).decoder;
    if (config.layers != 1) top.unsupported("num_hidden_layers", "must be 1 in a draft");
    const int64_t fed = top.integer("target_hidden_size", 1, max_layer_width, config.hidden);
    expect_same("hidden size", fed, target_.hidden_size());
    expect_same("vocabulary", config.vocabulary, target_.vocabulary());
    return config;
  }

  // Of a published layer: biases and norms of heads are where the files have them.
  DecoderConfig read_layer(const ConfigSection& top, const TensorFiles& tensors,
                           const std::string& layer) const {
    const auto has = [&](const char* name) {
      return tensors.find(layer + "self_attn." + name) != nullptr;
    };
    DecoderTraits traits;
    traits.qkv_bias = has("q_proj.bias");
    traits.qk_norm = has("q_norm.weight");
    DecoderConfig config = read_decoder(top, traits);
    config.qkv_bias = traits.qkv_bias;
    config.output_bias = has("o_proj.bias");
    return config;
  }

  // Drafts bring a copy of the target's embeddings, or nothing; one of another size is no use.
  Tensor take_embeddings(WeightsBinder& binder, const TensorFiles& tensors,
                         const DecoderConfig& config) const {
    const std::string name = "embed_tokens.weight";
    const Shape table{config.vocabulary, config.hidden};
    const TensorEntry* entry = tensors.find(name);
    const bool needed = config.hidden != target_.hidden_size();
    if (needed || (entry != nullptr && entry->shape == table)) return binder.take(name, table);
    binder.pass_over(name);
    return {};
  }

  // Puts all but the layer itself where it is used; TransformerDecoder does that for the layer.
  void place(DraftParts& parts) const {
    if (context_.device.is_cpu()) return;
    const DType activations =
        activation_type(context_, parts.fc.weight.dtype(), GpuPrecision::bf16);
    parts.fc = on_gpu(context_, parts.fc, activations, DType::f32);
    if (parts.embeddings.defined()) {
      parts.embeddings = stacked(context_, {&parts.embeddings}, activations);
    }
    if (parts.state_norm.defined()) parts.state_norm = parts.state_norm.to(context_.device);
  }

  DraftParts read_sparrow(const ConfigSection& top) const {
    DecoderTraits traits;
    traits.qkv_bias = top.flag("qkv_bias", false);
    traits.qk_norm = top.flag("qk_norm", false);
    DraftParts parts;
    parts.config = read_decoder(top, traits);
    const int layers = target_.layer_count();
    expect_same("hidden size", parts.config.hidden, target_.hidden_size());
    expect_same("target_num_hidden_layers", top.integer("target_num_hidden_layers", 1, 1024),
                layers);
    parts.feed.layers = {
        static_cast<int>(top.integer("target_state_layer", 0, layers - 1, layers - 2))};
    const int64_t own = top.integer("draft_vocab_size", 0, parts.config.vocabulary, 0);

    const TensorFiles tensors = open_tensors(context_, files_, directory_);
    WeightsBinder binder(tensors);
    const int64_t hidden = parts.config.hidden;
    parts.fc = binder.take_linear("fc", hidden, 2 * hidden, top.flag("fc_bias", false));
    parts.weights.layers.push_back(take_decoder_layer(binder, parts.config, "layers.0."));
    parts.weights.norm = binder.take("norm.weight", Shape{hidden});
    if (own > 0) {
      parts.weights.head.weight = binder.take("lm_head.weight", Shape{own, hidden});
      binder.pass_over("d2t");
    }
    binder.finish(context_, true);
    if (own > 0) {
      parts.tokens = read_tokens(tensors, own, false);
      parts.config.vocabulary = own;
    }
    place(parts);
    return parts;
  }

  DraftParts read_eagle(const ConfigSection& top, const std::string& type) const {
    const TensorFiles tensors = open_tensors(context_, files_, directory_);
    DraftParts parts;
    parts.config = read_layer(top, tensors, "layers.0.");
    parts.config.input_norm = false;
    const int64_t hidden = parts.config.hidden;
    expect_same("hidden size", hidden, target_.hidden_size());
    // MSD's differ by their targets alone.
    const bool multimodal = type.starts_with("llava") || type.find("_vl") != std::string::npos;
    parts.feed.kind = multimodal ? "MSD, by text rows alone" : "EAGLE";
    parts.feed.layers = {target_.layer_count() - 1};
    parts.feed.normed = true;
    parts.feed.first_row = false;

    WeightsBinder binder(tensors);
    const bool bias = top.flag("bias", binder.has("fc.bias"));
    parts.fc = binder.take_linear("fc", hidden, 2 * hidden, bias);
    parts.weights.layers.push_back(take_decoder_layer(binder, parts.config, "layers.0."));
    parts.embeddings = take_embeddings(binder, tensors, parts.config);
    binder.finish(context_, true);
    place(parts);
    return parts;
  }

  DraftParts read_eagle3(const ConfigSection& top) const {
    const ConfigSection eagle = top.object("eagle_config");
    if (!eagle.flag("use_aux_hidden_state", true)) {
      eagle.unsupported("use_aux_hidden_state", "is false; kinora feeds EAGLE-3 several layers");
    }
    if (top.flag("norm_before_fc", false)) top.unsupported("norm_before_fc", "is true");
    const TensorFiles tensors = open_tensors(context_, files_, directory_);
    const std::string layer =
        tensors.find("midlayer.self_attn.q_proj.weight") != nullptr ? "midlayer." : "layers.0.";
    DraftParts parts;
    parts.config = read_layer(top, tensors, layer);
    parts.config.beside = true;
    parts.feed.kind = "EAGLE-3";
    parts.feed.layers = read_layers(top.has(layers_key) ? top : eagle);
    parts.feed.fused = true;
    parts.feed.first_row = false;
    const int64_t hidden = parts.config.hidden, all = parts.config.vocabulary;
    const int64_t own = top.integer("draft_vocab_size", 1, all, all);

    WeightsBinder binder(tensors);
    const int64_t fed = std::ssize(parts.feed.layers) * target_.hidden_size();
    parts.fc = binder.take_linear("fc", hidden, fed, binder.has("fc.bias"));
    parts.weights.layers.push_back(take_decoder_layer(binder, parts.config, layer));
    if (top.flag("norm_before_residual", false)) {
      parts.state_norm = std::exchange(parts.weights.layers[0].input_norm, {});
    }
    parts.weights.norm = binder.take("norm.weight", Shape{hidden});
    // Without a head of its own a draft speaks with the target's.
    if (own < all || hidden != target_.hidden_size() || binder.has("lm_head.weight")) {
      parts.weights.head.weight = binder.take("lm_head.weight", Shape{own, hidden});
    }
    parts.embeddings = take_embeddings(binder, tensors, parts.config);
    binder.pass_over("d2t");
    binder.pass_over("t2d");  // the same from the other side
    binder.finish(context_, true);
    if (own < all) parts.tokens = read_tokens(tensors, own, true);
    parts.config.vocabulary = own;
    place(parts);
    return parts;
  }

  // Whose outputs are fed. What published drafts say is the number of hidden states before a layer,
  // so that 2 is the output of the second layer, except in lists that begin with 1: those count
  // layers from 0.
  std::vector<int> read_layers(const ConfigSection& section) const {
    const int64_t count = target_.layer_count();
    const Json* list = section.find(layers_key);
    if (list == nullptr) {
      if (count < 7) {
        refuse(fmt::format("it reads three layers of 7 or more, the model has {}", count));
      }
      return {1, static_cast<int>(count / 2 - 1), static_cast<int>(count - 4)};
    }
    std::vector<int> layers;
    const auto rises = [&](const Json& one) {
      return one.is_number_unsigned() && one.get<uint64_t>() <= 1024 &&
             (layers.empty() || one.get<int>() > layers.back());
    };
    if (!list->is_array()) section.wrong(layers_key, "must be a list of layers");
    for (const Json& one : *list) {
      if (!rises(one)) section.wrong(layers_key, "must be layers in rising order");
      layers.push_back(one.get<int>());
    }
    if (layers.empty() || layers[0] == 0) {
      section.unsupported(layers_key, "must name layers; kinora does not feed embeddings alone");
    }
    if (layers[0] != 1) {
      for (int& layer : layers) --layer;
    }
    if (layers.back() >= count) {
      refuse(fmt::format("it reads layer {}, the model has {}", layers.back() + 1, count));
    }
    return layers;
  }

  // Which tokens of the target a smaller vocabulary names: their numbers or, in published drafts,
  // how much larger these are than the draft's own.
  std::vector<int32_t> read_tokens(const TensorFiles& tensors, int64_t count, bool offsets) const {
    const auto wrong = [&](const std::string& what) {
      throw Error(ErrorKind::bad_input, fmt::format("{}: tensor d2t {}", directory_, what));
    };
    const TensorEntry* entry = tensors.find("d2t");
    if (entry == nullptr) wrong("is missing, though draft_vocab_size is given");
    const bool wide = offsets && entry->dtype == "I64";
    if ((!wide && entry->known != DType::i32) || !(entry->shape == Shape{count})) {
      wrong(fmt::format("must be {} [{}]", offsets ? "I64 or I32" : "I32", count));
    }
    const Tensor bytes = tensors.raw("d2t");
    const auto number = [&](int64_t i) {
      int64_t large = 0;
      int32_t small = 0;
      const std::byte* from = ConstTensorView(bytes.view()).raw();
      wide ? std::memcpy(&large, from + i * 8, 8) : std::memcpy(&small, from + i * 4, 4);
      return wide ? large : int64_t{small};
    };
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t least = offsets ? -i : 0, given = number(i);
      if (given < least || given >= target_.vocabulary() + least) {
        wrong(offsets ? fmt::format("moves token {} by {}", i, given)
                      : fmt::format("names token {}", given));
      }
      tokens.push_back(static_cast<int32_t>(given - least));
    }
    return tokens;
  }

  static constexpr const char* layers_key = "eagle_aux_hidden_state_layer_ids";

  Context context_;
  const std::string& directory_;
  const Decoder& target_;
  ConfigFiles config_files_;
  const FileSystem& files_;
};

}  // namespace

DraftParts read_draft(const Context& context, const FileSystem& files, const std::string& directory,
                      const Model& target) {
  return DraftReader(context, files, directory, target).read();
}

}  // namespace kinora
