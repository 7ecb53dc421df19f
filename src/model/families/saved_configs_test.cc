// config.json as versions of transformers save it (tests/reference/make configs): what a version
// left out is the default of its class. Compared with what the classes themselves read.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "model/config_case.h"
#include "model/families/llava_onevision/config.h"
#include "model/families/qwen2_5_vl/config.h"
#include "model/families/qwen3_vl/config.h"

namespace kinora {
namespace {

using nlohmann::json;

class SavedConfigs : public testing::ConfigTest {
 protected:
  static json fixture(const std::string& name) {
    return json::parse(real_files().read(std::string(KINORA_FIXTURES) + "/" + name));
  }

  // What kinora reads, in the words of the classes.
  json values(const json& content) {
    const ConfigFiles written = files(content);
    const ModelConfig config = family_of(written).read(written);
    const DecoderConfig& decoder = config.decoder;
    json found;
    found["decoder"] = {{"hidden_size", decoder.hidden},
                        {"num_hidden_layers", decoder.layers},
                        {"num_attention_heads", decoder.heads},
                        {"num_key_value_heads", decoder.kv_heads},
                        {"intermediate_size", decoder.intermediate},
                        {"vocab_size", decoder.vocabulary},
                        {"max_position_embeddings", decoder.max_position},
                        {"rms_norm_eps", rounded(decoder.norm_epsilon)},
                        {"head_dim", decoder.head_size},
                        {"rope_theta", decoder.rope.theta},
                        {"mrope_section", nullptr}};
    if (decoder.rope.sections) found["decoder"]["mrope_section"] = *decoder.rope.sections;
    if (!family_of(written).sees()) return found;
    found["image_token"] = config.image_token;
    found["video_token"] = config.video_token;
    found["vision"] = vision(written, config);
    return found;
  }

 private:
  static double rounded(float epsilon) { return std::stod(fmt::format("{:.6g}", epsilon)); }

  static json vision(const ConfigFiles& written, const ModelConfig& config) {
    const std::string type = written.model_type();
    if (type == "qwen2_5_vl") {
      const QwenVisionConfig tower = read_qwen_vision(written, config.decoder.hidden);
      return {{"hidden_size", tower.hidden},
              {"depth", tower.layers},
              {"num_heads", tower.heads},
              {"intermediate_size", tower.intermediate},
              {"out_hidden_size", tower.output},
              {"patch_size", tower.patch},
              {"temporal_patch_size", tower.temporal_patch},
              {"spatial_merge_size", tower.merge},
              {"window_size", tower.window},
              {"fullatt_block_indexes", tower.full_layers},
              {"tokens_per_second", tower.tokens_per_second}};
    }
    if (type == "qwen3_vl") {
      const Qwen3VisionConfig tower = read_qwen3_vision(written, config.decoder);
      return {{"hidden_size", tower.hidden},
              {"depth", tower.layers},
              {"num_heads", tower.heads},
              {"intermediate_size", tower.intermediate},
              {"out_hidden_size", tower.output},
              {"patch_size", tower.patch},
              {"temporal_patch_size", tower.temporal_patch},
              {"spatial_merge_size", tower.merge},
              {"num_position_embeddings", tower.position_side * tower.position_side},
              {"deepstack_visual_indexes", tower.deep_layers}};
    }
    const LlavaConfig llava = read_llava(written);
    const SiglipConfig& tower = llava.tower;
    return {{"hidden_size", tower.hidden},
            {"num_hidden_layers", tower.layers},
            {"num_attention_heads", tower.heads},
            {"intermediate_size", tower.intermediate},
            {"image_size", tower.image},
            {"patch_size", tower.patch},
            {"layer_norm_eps", rounded(tower.norm_epsilon)},
            // Counted from the end, as the files do.
            {"feature_layer", llava.feature_layers - tower.layers - 1},
            {"projector_bias", llava.projector_bias}};
  }
};

TEST_F(SavedConfigs, OfEveryVersionMeanWhatItsClassesSay) {
  for (const char* version : {"4.45.2", "4.49.0", "4.51.3", "4.57.6", "5.23.0"}) {
    const json cases = fixture(std::string("configs/") + version + ".json");
    EXPECT_GE(cases.size(), 8u);
    for (const auto& [name, saved] : cases.items()) {
      SCOPED_TRACE(std::string(version) + " " + name);
      ASSERT_EQ(saved.at("config").at("transformers_version"), version);
      EXPECT_EQ(values(saved.at("config")), saved.at("values"));
    }
  }
}

// "vision_config.depth is missing", it was said of these.
TEST_F(SavedConfigs, ThatLeaveOutDefaultsAreRead) {
  const json expected = fixture("configs/faults.json");
  EXPECT_EQ(expected.size(), 3u);
  for (const auto& [name, read] : expected.items()) {
    SCOPED_TRACE(name);
    json content = fixture("faults/" + name);
    json wanted = read.at("values");
    if (name.starts_with("llava")) {
      // No tower of 1152 has 14 heads: Hugging Face's class refuses it as well.
      expect_error(content, ErrorKind::bad_input, "num_attention_heads",
                   [](const ConfigFiles& written) { read_llava(written); });
      content["vision_config"]["num_attention_heads"] = 16;
      wanted["vision"]["num_attention_heads"] = 16;
    }
    EXPECT_EQ(values(content), wanted);
  }
}

}  // namespace
}  // namespace kinora
