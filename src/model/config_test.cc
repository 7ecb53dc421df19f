#include "model/config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

using nlohmann::json;

class ConfigTest : public ::testing::Test {
 protected:
  ModelConfig read(const json& config) {
    std::ofstream(directory_.file("config.json")) << config.dump();
    return read_config(real_files(), directory_.path());
  }
  void expect_error(const json& config, ErrorKind kind, const std::string& what) {
    try {
      read(config);
      ADD_FAILURE() << "accepted, though " << what;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }

  testing::TempDir directory_;
};

json llama() {
  return {{"model_type", "llama"},
          {"hidden_size", 64},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"intermediate_size", 96},
          {"vocab_size", 100},
          {"max_position_embeddings", 131072},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 500000.0},
          {"tie_word_embeddings", false},
          {"eos_token_id", {1, 2}}};
}

json qwen_vl() {
  json config = llama();
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

json llava() {
  json text = llama();
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

TEST_F(ConfigTest, ReadsALlama) {
  const ModelConfig config = read(llama());
  EXPECT_EQ(config.family, Family::llama);
  EXPECT_EQ(config.decoder.hidden, 64);
  EXPECT_EQ(config.decoder.kv_heads, 2);
  EXPECT_EQ(config.decoder.head_size, 16);
  EXPECT_EQ(config.decoder.max_position, 131072);
  EXPECT_FLOAT_EQ(config.decoder.norm_epsilon, 1e-5f);
  EXPECT_EQ(config.decoder.rope.theta, 500000.0);
  EXPECT_FALSE(config.decoder.qkv_bias);
  EXPECT_FALSE(config.decoder.rope.sections);
  EXPECT_EQ(config.decoder.tied, false);
  EXPECT_EQ(config.stop_tokens, (std::vector<int32_t>{1, 2}));
}

TEST_F(ConfigTest, StopTokensOfGenerationWin) {
  std::ofstream(directory_.file("generation_config.json")) << R"({"eos_token_id": 9})";
  EXPECT_EQ(read(llama()).stop_tokens, std::vector<int32_t>{9});
  std::ofstream(directory_.file("generation_config.json")) << R"({"eos_token_id": "x"})";
  expect_error(llama(), ErrorKind::bad_input, "eos_token_id");
  std::ofstream(directory_.file("generation_config.json")) << "{";
  expect_error(llama(), ErrorKind::bad_input, "generation_config.json is not valid JSON");
}

TEST_F(ConfigTest, SamplingDefaultsAreGreedyUnlessTheFileSays) {
  EXPECT_EQ(read(llama()).generation.temperature, 0);
  std::ofstream(directory_.file("generation_config.json"))
      << R"({"do_sample": false, "temperature": 0.7, "repetition_penalty": 1.05})";
  EXPECT_EQ(read(llama()).generation.temperature, 0);
  EXPECT_EQ(read(llama()).generation.repetition_penalty, 1.05);
  std::ofstream(directory_.file("generation_config.json"))
      << R"({"do_sample": true, "temperature": 0.7, "top_p": 0.8})";
  EXPECT_EQ(read(llama()).generation.temperature, 0.7);
  EXPECT_EQ(read(llama()).generation.top_p, 0.8);
  EXPECT_EQ(read(llama()).generation.top_k, 50);
  std::ofstream(directory_.file("generation_config.json"))
      << R"({"do_sample": true, "temperature": -1})";
  expect_error(llama(), ErrorKind::bad_input, "temperature");
}

TEST_F(ConfigTest, ReadsBothGenerationsOfRope) {
  json old = llama();
  old["rope_scaling"] = {{"rope_type", "llama3"},
                         {"factor", 32.0},
                         {"low_freq_factor", 1.0},
                         {"high_freq_factor", 4.0},
                         {"original_max_position_embeddings", 8192}};
  json fresh = llama();
  fresh["rope_parameters"] = old["rope_scaling"];
  fresh["rope_parameters"]["rope_theta"] = 500000.0;
  fresh.erase("rope_theta");
  for (const json& config : {old, fresh}) {
    const RopeConfig rope = read(config).decoder.rope;
    EXPECT_EQ(rope.theta, 500000.0);
    ASSERT_TRUE(rope.llama3);
    EXPECT_EQ(rope.llama3->factor, 32);
    EXPECT_EQ(rope.llama3->original_max_position, 8192);
  }
  old["rope_scaling"]["rope_type"] = "yarn";
  expect_error(old, ErrorKind::unsupported, "yarn");
}

TEST_F(ConfigTest, ReadsFlatAndNestedQwenAlike) {
  const json flat = qwen_vl();
  json nested = flat;
  const json text = llama();
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
    EXPECT_EQ(config.decoder.rope.sections, (std::array<int64_t, 3>{2, 3, 3}));
    EXPECT_EQ(config.decoder.rope.theta, 500000.0);
    EXPECT_TRUE(config.decoder.qkv_bias);
    EXPECT_FALSE(config.decoder.output_bias);
    EXPECT_EQ(config.decoder.tied, false);
    ASSERT_TRUE(config.qwen_vision);
    EXPECT_EQ(config.qwen_vision->patch, 14);
    EXPECT_EQ(config.qwen_vision->full_layers, std::vector<int64_t>{1});
    EXPECT_EQ(config.image_token, 5);
    EXPECT_EQ(config.video_token, 6);
    EXPECT_EQ(config.stop_tokens, (std::vector<int32_t>{1, 2}));
  }
}

TEST_F(ConfigTest, ReadsLlava) {
  const ModelConfig config = read(llava());
  ASSERT_TRUE(config.siglip && config.llava);
  EXPECT_EQ(config.siglip->grid(), 5);
  EXPECT_EQ(config.llava->feature_layers, 3);
  EXPECT_TRUE(config.decoder.qkv_bias);

  json video = llava();
  video["vision_feature_layer"] = -2;
  video["multimodal_projector_bias"] = false;
  EXPECT_EQ(read(video).llava->feature_layers, 2);
  EXPECT_FALSE(read(video).llava->projector_bias);
}

TEST_F(ConfigTest, LetsTheFilesDecideAboutTyingWhereTheConfigDoesNot) {
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

TEST_F(ConfigTest, SaysWhatIsWrong) {
  try {
    read_config(real_files(), directory_.file("nowhere"));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::not_found);
  }
  try {
    read_config(real_files(), directory_.path());
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::not_found);
    EXPECT_NE(std::string(error.what()).find("no config.json"), std::string::npos);
  }
  const auto with = [](json config, const std::string& key, const json& value) {
    config[json::json_pointer(key)] = value;
    return config;
  };
  expect_error(json::array(), ErrorKind::bad_input, "not a JSON object");
  expect_error(with(llama(), "/model_type", "bert\n"), ErrorKind::unsupported,
               "it knows qwen2_5_vl, llava_onevision, llama, qwen2, qwen3");
  expect_error(json::object(), ErrorKind::unsupported, "model_type");
  json missing = llama();
  missing.erase("hidden_size");
  expect_error(missing, ErrorKind::bad_input, "hidden_size is missing");
  for (const json& value : {json(0), json(-4), json(1e30), json("64"), json(1 << 30), json(64.5),
                            json(UINT64_MAX), json(true), json::array({64})}) {
    expect_error(with(llama(), "/hidden_size", value), ErrorKind::bad_input, "hidden_size");
  }
  expect_error(with(llama(), "/num_attention_heads", 5), ErrorKind::bad_input, "heads");
  expect_error(with(llama(), "/num_key_value_heads", 3), ErrorKind::bad_input, "heads");
  expect_error(with(llama(), "/head_dim", 15), ErrorKind::bad_input, "even");
  expect_error(with(llama(), "/rms_norm_eps", -1), ErrorKind::bad_input, "rms_norm_eps");
  expect_error(with(llama(), "/rope_theta", 0), ErrorKind::bad_input, "rope_theta");
  expect_error(with(llama(), "/rope_scaling", 3), ErrorKind::bad_input, "rope_scaling");
  expect_error(with(llama(), "/use_sliding_window", true), ErrorKind::unsupported, "sliding");
  expect_error(with(llama(), "/layer_types", {"sliding_attention"}), ErrorKind::unsupported,
               "layer_types");
  expect_error(with(llama(), "/hidden_act", "gelu"), ErrorKind::unsupported, "hidden_act");
  expect_error(with(qwen_vl(), "/rope_scaling/mrope_section", {2, 3, 4}), ErrorKind::bad_input,
               "mrope_section");
  expect_error(with(qwen_vl(), "/rope_scaling", nullptr), ErrorKind::bad_input, "mrope_section");
  expect_error(with(qwen_vl(), "/vision_config", nullptr), ErrorKind::bad_input,
               "vision_config.hidden_size is missing");
  expect_error(with(qwen_vl(), "/vision_config/fullatt_block_indexes", {7}), ErrorKind::bad_input,
               "fullatt_block_indexes");
  expect_error(with(qwen_vl(), "/vision_config/out_hidden_size", 32), ErrorKind::bad_input,
               "out_hidden_size");
  expect_error(with(qwen_vl(), "/text_config", 3), ErrorKind::bad_input, "text_config");
  expect_error(with(llava(), "/vision_config/model_type", "clip"), ErrorKind::unsupported, "clip");
  expect_error(with(llava(), "/text_config/model_type", "gemma"), ErrorKind::unsupported, "gemma");
  expect_error(with(llava(), "/vision_feature_layer", -5), ErrorKind::bad_input, "feature_layer");
}

TEST_F(ConfigTest, ReadsThePublishedQwen) {
  const std::string directory = KINORA_SOURCE "/../shared/data/qwen2.5-vl-7b-instruct";
  if (!real_files().is_file(directory + "/config.json")) GTEST_SKIP() << "no published config here";
  const ModelConfig config = read_config(real_files(), directory);
  EXPECT_EQ(config.decoder.head_size, 128);
  EXPECT_EQ(config.decoder.rope.sections, (std::array<int64_t, 3>{16, 24, 24}));
  EXPECT_EQ(config.qwen_vision->full_layers, (std::vector<int64_t>{7, 15, 23, 31}));
  EXPECT_EQ(config.stop_tokens, (std::vector<int32_t>{151645, 151643}));
}

}  // namespace
}  // namespace kinora
