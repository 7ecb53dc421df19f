#include "model/families/qwen2_5_vl/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/config_case.h"

namespace kinora {
namespace {

using nlohmann::json;
using testing::llama_config;
using testing::with;

json qwen_vl() {
  json config = llama_config();
  config["model_type"] = "qwen2_5_vl";
  config["image_token_id"] = 5;
  config["video_token_id"] = 6;
  config["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {2, 3, 3}}};
  config["vision_config"] = {{"hidden_size", 32},     {"depth", 2},
                             {"num_heads", 2},        {"intermediate_size", 48},
                             {"out_hidden_size", 64}, {"fullatt_block_indexes", {1}},
                             {"tokens_per_second", 2}};
  return config;
}

class QwenConfigTest : public testing::ConfigTest {
 protected:
  void refuse(const json& config, const std::string& what) {
    expect_error(config, ErrorKind::bad_input, what, [](const ConfigFiles& written) {
      read_qwen_vision(written, family_of(written).read(written).decoder.hidden);
    });
  }
};

TEST_F(QwenConfigTest, ReadsFlatAndNestedQwenAlike) {
  const json flat = qwen_vl();
  json nested = flat;
  const json text = llama_config();
  for (const auto& [key, value] : text.items()) {
    if (key == "model_type") continue;
    nested["text_config"][key] = value;
    nested.erase(key);
  }
  nested["text_config"]["rope_parameters"] = {
      {"mrope_section", {2, 3, 3}}, {"rope_theta", 500000.0}, {"rope_type", "default"}};
  nested["text_config"].erase("rope_theta");
  nested.erase("rope_scaling");
  for (const json& content : {flat, nested}) {
    const ModelConfig config = read(content);
    const QwenVisionConfig vision = read_qwen_vision(files(content), config.decoder.hidden);
    EXPECT_EQ(config.decoder.rope.sections, (std::array<int64_t, 3>{2, 3, 3}));
    EXPECT_EQ(config.decoder.rope.theta, 500000.0);
    EXPECT_TRUE(config.decoder.qkv_bias);
    EXPECT_FALSE(config.decoder.output_bias);
    EXPECT_EQ(config.decoder.tied, false);
    EXPECT_EQ(vision.patch, 14);
    EXPECT_EQ(vision.full_layers, std::vector<int64_t>{1});
    EXPECT_EQ(config.image_token, 5);
    EXPECT_EQ(config.video_token, 6);
    EXPECT_EQ(config.stop_tokens, (std::vector<int32_t>{1, 2}));
  }
}

// transformers 4.49 writes only what differs from the class's defaults.
TEST_F(QwenConfigTest, FillsInWhatWasLeftOut) {
  json config = qwen_vl();
  config["vision_config"] = {{"hidden_size", 1280},
                             {"in_chans", 3},
                             {"model_type", "qwen2_5_vl"},
                             {"spatial_patch_size", 14},
                             {"tokens_per_second", 2}};
  const QwenVisionConfig vision = read_qwen_vision(files(config), 64);
  EXPECT_EQ(vision.hidden, 1280);
  EXPECT_EQ(vision.layers, 32);
  EXPECT_EQ(vision.heads, 16);
  EXPECT_EQ(vision.intermediate, 3420);
  EXPECT_EQ(vision.output, 64);
  EXPECT_EQ(vision.patch, 14);
  EXPECT_EQ(vision.temporal_patch, 2);
  EXPECT_EQ(vision.merge, 2);
  EXPECT_EQ(vision.window, 112);
  EXPECT_EQ(vision.full_layers, (std::vector<int64_t>{7, 15, 23, 31}));
  EXPECT_EQ(vision.tokens_per_second, 2);
  config.erase("vision_config");
  EXPECT_EQ(read_qwen_vision(files(config), 64).hidden, 3584);
}

TEST_F(QwenConfigTest, SaysWhatIsWrong) {
  refuse(with(qwen_vl(), "/rope_scaling/mrope_section", {2, 3, 4}), "mrope_section");
  refuse(with(qwen_vl(), "/rope_scaling", nullptr), "mrope_section");
  refuse(with(qwen_vl(), "/vision_config/fullatt_block_indexes", {7}), "fullatt_block_indexes");
  refuse(with(qwen_vl(), "/vision_config/out_hidden_size", 32), "out_hidden_size");
  refuse(with(qwen_vl(), "/text_config", 3), "text_config");
  refuse(with(qwen_vl(), "/image_token_id", nullptr), "image_token_index is missing");
}

TEST_F(QwenConfigTest, ReadsThePublishedOne) {
  const std::string directory = KINORA_SOURCE "/../shared/data/qwen2.5-vl-7b-instruct";
  if (!real_files().is_file(directory + "/config.json")) GTEST_SKIP() << "no published config here";
  const ConfigFiles published = ConfigFiles::read(real_files(), directory);
  const ModelConfig config = family_of(published).read(published);
  EXPECT_EQ(config.decoder.head_size, 128);
  EXPECT_EQ(config.decoder.rope.sections, (std::array<int64_t, 3>{16, 24, 24}));
  EXPECT_EQ(read_qwen_vision(published, config.decoder.hidden).full_layers,
            (std::vector<int64_t>{7, 15, 23, 31}));
  EXPECT_EQ(config.stop_tokens, (std::vector<int32_t>{151645, 151643}));
}

}  // namespace
}  // namespace kinora
