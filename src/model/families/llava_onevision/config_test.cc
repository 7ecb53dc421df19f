#include "model/families/llava_onevision/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/config_case.h"

namespace kinora {
namespace {

using nlohmann::json;
using testing::llama_config;
using testing::with;

json llava() {
  json text = llama_config();
  text["model_type"] = "qwen2";
  return {{"model_type", "llava_onevision"},
          {"text_config", text},
          {"image_token_index", 5},
          {"video_token_index", 6},
          {"vision_config",
           {{"hidden_size", 24},
            {"num_hidden_layers", 3},
            {"num_attention_heads", 2},
            {"intermediate_size", 44},
            {"image_size", 34},
            {"patch_size", 6}}}};
}

class LlavaConfigTest : public testing::ConfigTest {
 protected:
  void refuse(const json& config, ErrorKind kind, const std::string& what) {
    expect_error(config, kind, what, [](const ConfigFiles& written) { read_llava(written); });
  }
};

TEST_F(LlavaConfigTest, ReadsTowerAndProjector) {
  const LlavaConfig config = read_llava(files(llava()));
  EXPECT_EQ(config.tower.grid(), 5);
  EXPECT_EQ(config.feature_layers, 3);
  EXPECT_TRUE(read(llava()).decoder.qkv_bias);

  json video = llava();
  video["vision_feature_layer"] = -2;
  video["multimodal_projector_bias"] = false;
  EXPECT_EQ(read_llava(files(video)).feature_layers, 2);
  EXPECT_FALSE(read_llava(files(video)).projector_bias);
  EXPECT_EQ(read_llava(files(with(llava(), "/vision_feature_layer", {-3}))).feature_layers, 1);
}

// What transformers 4.49 leaves out is the default of the class that each object names.
TEST_F(LlavaConfigTest, FillsInWhatWasLeftOut) {
  json config = llava();
  config["text_config"] = {{"model_type", "qwen2"}, {"hidden_size", 3584}};
  config["vision_config"] = {{"model_type", "siglip_vision_model"}, {"hidden_size", 1152}};
  const ModelConfig read_config = read(config);
  EXPECT_EQ(read_config.decoder.hidden, 3584);
  EXPECT_EQ(read_config.decoder.layers, 32);
  EXPECT_EQ(read_config.decoder.heads, 32);
  EXPECT_EQ(read_config.decoder.kv_heads, 32);
  EXPECT_EQ(read_config.decoder.intermediate, 22016);
  EXPECT_EQ(read_config.decoder.vocabulary, 151936);
  const SiglipConfig tower = read_llava(files(config)).tower;
  EXPECT_EQ(tower.hidden, 1152);
  EXPECT_EQ(tower.layers, 12);
  EXPECT_EQ(tower.heads, 12);
  EXPECT_EQ(tower.intermediate, 3072);
  EXPECT_EQ(tower.image, 224);
  EXPECT_EQ(tower.patch, 16);
  config["text_config"] = {{"model_type", "llama"}, {"num_attention_heads", 64}};
  EXPECT_EQ(read(config).decoder.kv_heads, 64);
  EXPECT_EQ(read(config).decoder.vocabulary, 32000);
}

TEST_F(LlavaConfigTest, LetsTheFilesDecideAboutTyingWhereTheConfigDoesNot) {
  json config = llava();
  EXPECT_EQ(read(config).decoder.tied, false);
  config["tie_word_embeddings"] = true;
  EXPECT_FALSE(read(config).decoder.tied);
  config["text_config"]["tie_word_embeddings"] = true;
  EXPECT_EQ(read(config).decoder.tied, true);
  config.erase("tie_word_embeddings");
  EXPECT_EQ(read(config).decoder.tied, true);
  config["text_config"].erase("tie_word_embeddings");
  EXPECT_FALSE(read(config).decoder.tied);
}

// The decoder is that of the text family which text_config names.
TEST_F(LlavaConfigTest, TakesTheDecoderOfATextFamily) {
  EXPECT_FALSE(read(llava()).decoder.qk_norm);
  const json with_llama = with(llava(), "/text_config/model_type", "llama");
  EXPECT_FALSE(read(with_llama).decoder.qkv_bias);
  const json with_qwen3 = with(llava(), "/text_config/model_type", "qwen3");
  EXPECT_TRUE(read(with_qwen3).decoder.qk_norm);
  EXPECT_EQ(read(with_qwen3).decoder.head_size, 128);
}

TEST_F(LlavaConfigTest, SaysWhatIsWrong) {
  refuse(with(llava(), "/vision_config/model_type", "clip"), ErrorKind::unsupported, "clip");
  refuse(with(llava(), "/text_config/model_type", "gemma"), ErrorKind::unsupported, "gemma");
  refuse(with(llava(), "/vision_feature_layer", -5), ErrorKind::bad_input, "feature_layer");
  refuse(with(llava(), "/vision_feature_layer", {-5}), ErrorKind::bad_input, "feature_layer");
  refuse(with(llava(), "/vision_feature_layer", {"x"}), ErrorKind::bad_input, "feature_layer");
  refuse(with(llava(), "/vision_feature_layer", {-1, -2}), ErrorKind::unsupported,
         "vision_feature_layer is a list of 2 layers");
  refuse(with(llava(), "/image_token_index", nullptr), ErrorKind::bad_input,
         "image_token_id is missing");
}

}  // namespace
}  // namespace kinora
