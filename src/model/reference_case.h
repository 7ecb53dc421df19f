// Test support: the cases under tests/fixtures/ (formats in tests/reference/README.md), each one
// prompt through a small model of Hugging Face's own classes and everything measured on the way.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "attention/policies/dense.h"
#include "base/context.h"
#include "base/file.h"
#include "base/threads.h"
#include "memory/flat_memory.h"
#include "model/config.h"
#include "model/decoder/transformer_decoder.h"
#include "model/families/families.h"
#include "model/model.h"
#include "model/weights/quantized_files.h"
#include "model/weights/safetensors.h"
#include "model/weights/weights_binder.h"
#include "ops/top_k.h"
#include "support/compare.h"

namespace kinora::testing {

struct CaseName {
  std::string model;  // directory under fixtures/models
  std::string cases;  // directory under fixtures/cases
  std::string name;
};

inline std::string model_directory(const std::string& model) {
  return std::string(KINORA_FIXTURES) + "/models/" + model;
}

inline ModelConfig read_config(const std::string& directory) {
  const ConfigFiles files = ConfigFiles::read(real_files(), directory);
  return family_of(files).read(files);
}

// The decoder alone, whatever else the directory holds; every number in it is checked.
inline DecoderWeights bind_decoder(const Context& context, const DecoderConfig& config,
                                   const std::string& directory) {
  const TensorFiles files =
      open_weights(context, real_files(), directory, ConfigFiles::read(real_files(), directory));
  WeightsBinder binder(files);
  DecoderWeights weights = take_decoder(binder, config);
  for (const std::string& name : files.names()) binder.pass_over(common_tensor_name(name));
  binder.finish(context, true);
  return weights;
}

// Every case of every model whose name begins with `prefix`.
inline std::vector<CaseName> find_cases(const std::string& prefix = "") {
  const FileSystem& files = real_files();
  const std::string root = std::string(KINORA_FIXTURES) + "/cases";
  std::vector<CaseName> result;
  for (const std::string& model : files.list(root)) {
    if (!model.starts_with(prefix)) continue;
    for (const std::string& file : files.list(join_path(root, model))) {
      if (!file.ends_with(".json")) continue;
      const std::string name = file.substr(0, file.size() - 5);
      result.push_back({model, model, name});
      // The same weights and results under a config of the newest generation.
      if (model == "qwen2_5_vl_tied_new") result.push_back({"qwen2_5_vl_tied_v5", model, name});
    }
  }
  return result;
}

inline std::string case_label(const ::testing::TestParamInfo<CaseName>& info) {
  return info.param.model + "__" + info.param.name;
}
inline void PrintTo(const CaseName& name, std::ostream* out) {
  *out << name.model << "/" << name.name;
}

class ReferenceCase {
 public:
  explicit ReferenceCase(const CaseName& name)
      : json_(nlohmann::json::parse(real_files().read(base(name) + ".json"))),
        tensors_(SafetensorsFile::open(real_files(), base(name) + ".safetensors")) {}

  const nlohmann::json& json() const { return json_; }
  bool has(const std::string& name) const { return tensors_.entries().contains(name); }
  Tensor tensor(const std::string& name) const { return tensors_.tensor(name); }

  std::vector<int32_t> ids() const { return integers("input_ids"); }
  std::vector<int32_t> greedy() const { return json_.at("greedy").get<std::vector<int32_t>>(); }
  int64_t rope_delta() const { return json_.at("rope_delta").get<int64_t>(); }

  // Positions and modalities of the whole prompt.
  std::vector<TokenInfo> tokens(const ModelConfig& config) const {
    const Tensor positions = tensor("position_ids");
    const std::vector<int32_t> input = ids();
    const auto count = static_cast<int64_t>(input.size());
    std::vector<TokenInfo> result(input.size());
    for (int64_t i = 0; i < count; ++i) {
      TokenInfo& token = result[static_cast<size_t>(i)];
      for (int64_t axis = 0; axis < 3; ++axis) {
        const int64_t row = positions.rank() == 2 ? axis : 0;
        token.position[static_cast<size_t>(axis)] = positions.data<int32_t>()[row * count + i];
      }
      const int32_t id = input[static_cast<size_t>(i)];
      if (id == config.image_token) token.modality = Modality::image;
      if (id == config.video_token) token.modality = Modality::video;
    }
    return result;
  }

  // What the visual tokens bring besides their embeddings; empty for most families.
  DeepRows deep(const ModelConfig& config) const {
    const int64_t width = config.deep_levels * config.decoder.hidden;
    DeepRows result;
    if (width == 0) return result;
    std::vector<float> values;
    std::map<std::string, std::pair<int64_t, int64_t>> next;  // by kind: the item, and its row
    const std::vector<int32_t> input = ids();
    for (size_t i = 0; i < input.size(); ++i) {
      if (input[i] != config.image_token && input[i] != config.video_token) continue;
      const std::string kind = input[i] == config.image_token ? "vision.image." : "vision.video.";
      auto& [item, row] = next[kind];
      const Tensor rows = tensor(kind + std::to_string(item));
      const float* values_of_row = rows.view().row<float>(row) + config.decoder.hidden;
      values.insert(values.end(), values_of_row, values_of_row + width);
      result.tokens.push_back(static_cast<int32_t>(i));
      if (++row == rows.size(0)) {
        ++item;
        row = 0;
      }
    }
    if (result.tokens.empty()) return result;
    result.values = Tensor(DType::f32, {static_cast<int64_t>(result.tokens.size()), width});
    std::copy(values.begin(), values.end(), result.values.data<float>());
    return result;
  }

 private:
  static std::string base(const CaseName& name) {
    return std::string(KINORA_FIXTURES) + "/cases/" + name.cases + "/" + name.name;
  }
  std::vector<int32_t> integers(const std::string& name) const {
    const Tensor tensor = tensors_.tensor(name);
    return {tensor.data<int32_t>(), tensor.data<int32_t>() + tensor.elements()};
  }

  nlohmann::json json_;
  SafetensorsFile tensors_;
};

// The worst relative error of any row.
inline double row_error(ConstTensorView actual, ConstTensorView expected) {
  if (!(actual.shape() == expected.shape())) return INFINITY;
  double worst = 0;
  const auto width = static_cast<size_t>(expected.size(1));
  for (int64_t row = 0; row < expected.size(0); ++row) {
    worst = std::max(worst, relative_error<float, float>({actual.row<float>(row), width},
                                                         {expected.row<float>(row), width}));
  }
  return worst;
}

// Those of the tokens [begin, begin + count), counted from there.
inline DeepRows deep_rows_of(const DeepRows& all, int64_t begin, int64_t count) {
  DeepRows part;
  int64_t first = 0;
  for (size_t i = 0; i < all.tokens.size(); ++i) {
    const int64_t token = all.tokens[i] - begin;
    if (token < 0) ++first;
    if (token >= 0 && token < count) part.tokens.push_back(static_cast<int32_t>(token));
  }
  if (part.tokens.empty()) return part;
  const auto rows = static_cast<int64_t>(part.tokens.size());
  part.values = Tensor(DType::f32, {rows, all.values.size(1)});
  std::copy_n(all.values.view().row<float>(first), part.values.elements(),
              part.values.data<float>());
  return part;
}

// Rows of a model's decoder in a memory.
inline RowLayout row_layout(const DecoderConfig& config, DType dtype = DType::f32) {
  return {static_cast<int>(config.layers), static_cast<int>(config.kv_heads),
          static_cast<int>(config.head_size), dtype};
}

// Token ids that a model prefers one after another, starting from a hidden row.
inline std::vector<int32_t> greedy_tokens(const Context& context, const Decoder& decoder,
                                          DecoderRunner& runner, Memory& memory,
                                          Attention& attention, Tensor hidden,
                                          int32_t next_position, size_t count) {
  std::vector<int32_t> result;
  while (true) {
    const Tensor logits = decoder.logits(context, hidden.view().rows(hidden.size(0) - 1, 1));
    result.push_back(argmax(context, logits.view()[0]));
    if (result.size() == count) return result;
    Sequence sequence;
    sequence.ids = {result.back()};
    sequence.tokens.resize(1);
    sequence.tokens[0].position = {next_position, next_position, next_position};
    sequence.memory = &memory;
    sequence.attention = &attention;
    ++next_position;
    hidden = runner.forward(sequence).hidden;
  }
}

}  // namespace kinora::testing
