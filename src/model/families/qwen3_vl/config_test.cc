#include "model/families/qwen3_vl/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/config_case.h"
#include "model/decoder/rotary.h"

namespace kinora {
namespace {

using nlohmann::json;
using testing::llama_config;
using testing::with;

json qwen3_vl() {
  json text = llama_config();
  text.erase("model_type");
  text["head_dim"] = 128;
  text["rope_scaling"] = {{"mrope_interleaved", true}, {"mrope_section", {24, 20, 20}}};
  return {{"model_type", "qwen3_vl"},
          {"image_token_id", 5},
          {"video_token_id", 6},
          {"tie_word_embeddings", false},
          {"transformers_version", "4.57.0.dev0"},
          {"text_config", text},
          {"vision_config",
           {{"hidden_size", 72},
            {"depth", 3},
            {"num_heads", 1},
            {"intermediate_size", 48},
            {"out_hidden_size", 64},
            {"num_position_embeddings", 2304},
            {"deepstack_visual_indexes", {1}}}}};
}

class Qwen3VlConfigTest : public testing::ConfigTest {
 protected:
  void refuse(const json& config, ErrorKind kind, const std::string& what) {
    expect_error(config, kind, what);
  }
};

TEST_F(Qwen3VlConfigTest, ReadsBothGenerations) {
  json newer = qwen3_vl();
  json& text = newer["text_config"];
  text["rope_parameters"] = text["rope_scaling"];
  text["rope_parameters"]["rope_theta"] = text["rope_theta"];
  text.erase("rope_scaling");
  text.erase("rope_theta");
  for (const json& content : {qwen3_vl(), newer}) {
    const ModelConfig config = read(content);
    const Qwen3VisionConfig vision = read_qwen3_vision(files(content), config.decoder);
    EXPECT_EQ(config.decoder.rope.sections, (std::array<int64_t, 3>{24, 20, 20}));
    EXPECT_TRUE(config.decoder.rope.interleaved);
    EXPECT_EQ(config.decoder.rope.theta, 500000.0);
    EXPECT_TRUE(config.decoder.qk_norm);
    EXPECT_FALSE(config.decoder.qkv_bias);
    EXPECT_EQ(config.decoder.head_size, 128);
    EXPECT_EQ(config.deep_levels, 1);
    EXPECT_EQ(vision.patch, 16);
    EXPECT_EQ(vision.position_side, 48);
    EXPECT_EQ(vision.deep_layers, std::vector<int64_t>{1});
  }
}

TEST_F(Qwen3VlConfigTest, HeightAndWidthTakeEveryThirdFrequency) {
  const ModelConfig config = read(qwen3_vl());
  const std::vector<int32_t> axes = rotary_axes(config.decoder.rope, 128);
  ASSERT_EQ(axes.size(), 64u);
  for (size_t i = 0; i < 60; ++i) EXPECT_EQ(axes[i], static_cast<int32_t>(i % 3)) << i;
  for (size_t i = 60; i < 64; ++i) EXPECT_EQ(axes[i], 0) << i;
}

TEST_F(Qwen3VlConfigTest, TheVersionOfTheFilesDecidesAboutPrompts) {
  for (const char* old : {"4.57.0.dev0", "4.99", "5.9.1", "5.0.0", "", "next", "5"}) {
    EXPECT_EQ(video_prompt_form(files(with(qwen3_vl(), "/transformers_version", old))),
              VideoPromptForm::transformers_4_57)
        << old;
  }
  for (const char* newer : {"5.10", "5.10.0.dev0", "5.17.0", "6.0.0", "10.1"}) {
    EXPECT_EQ(video_prompt_form(files(with(qwen3_vl(), "/transformers_version", newer))),
              VideoPromptForm::transformers_5_10)
        << newer;
  }
}

TEST_F(Qwen3VlConfigTest, SaysWhatIsWrong) {
  const json good = qwen3_vl();
  const std::string vision = "/vision_config/";
  refuse(with(good, vision + "deepstack_visual_indexes", {3}), ErrorKind::bad_input,
         "below the depth 3");
  refuse(with(good, vision + "deepstack_visual_indexes", {1, 0}), ErrorKind::bad_input,
         "increasing");
  refuse(with(good, vision + "deepstack_visual_indexes", {0, 1}), ErrorKind::bad_input,
         "with 2 decoder layers there must be fewer");
  refuse(with(good, vision + "deepstack_visual_indexes", nullptr), ErrorKind::bad_input,
         "deepstack_visual_indexes is not a list");
  refuse(with(good, vision + "num_position_embeddings", 2300), ErrorKind::bad_input, "no square");
  refuse(with(good, vision + "out_hidden_size", 32), ErrorKind::bad_input, "out_hidden_size");
  refuse(with(good, vision + "num_heads", 5), ErrorKind::bad_input, "num_heads");
  refuse(with(good, vision + "hidden_act", "silu"), ErrorKind::unsupported, "hidden_act");
  refuse(with(good, "/text_config/rope_scaling", nullptr), ErrorKind::bad_input, "mrope_section");
  refuse(with(good, "/video_token_id", nullptr), ErrorKind::bad_input, "video_token_index");
}

}  // namespace
}  // namespace kinora
