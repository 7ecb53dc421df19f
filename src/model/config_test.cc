#include "model/config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "model/config_case.h"

namespace kinora {
namespace {

using nlohmann::json;
using testing::llama_config;
using testing::with;
using ConfigTest = testing::ConfigTest;

TEST_F(ConfigTest, ReadsALlama) {
  EXPECT_EQ(family_of(files(llama_config())).model_type(), "llama");
  const ModelConfig config = read(llama_config());
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
  EXPECT_EQ(read(llama_config()).stop_tokens, std::vector<int32_t>{9});
  std::ofstream(directory_.file("generation_config.json")) << R"({"eos_token_id": "x"})";
  expect_error(llama_config(), ErrorKind::bad_input, "eos_token_id");
  std::ofstream(directory_.file("generation_config.json")) << "{";
  expect_error(llama_config(), ErrorKind::bad_input, "generation_config.json is not valid JSON");
}

TEST_F(ConfigTest, SamplingDefaultsAreGreedyUnlessTheFileSays) {
  EXPECT_EQ(read(llama_config()).generation.temperature, 0);
  std::ofstream(directory_.file("generation_config.json"))
      << R"({"do_sample": false, "temperature": 0.7, "repetition_penalty": 1.05})";
  EXPECT_EQ(read(llama_config()).generation.temperature, 0);
  EXPECT_EQ(read(llama_config()).generation.repetition_penalty, 1.05);
  std::ofstream(directory_.file("generation_config.json"))
      << R"({"do_sample": true, "temperature": 0.7, "top_p": 0.8})";
  EXPECT_EQ(read(llama_config()).generation.temperature, 0.7);
  EXPECT_EQ(read(llama_config()).generation.top_p, 0.8);
  EXPECT_EQ(read(llama_config()).generation.top_k, 50);
  std::ofstream(directory_.file("generation_config.json"))
      << R"({"do_sample": true, "temperature": -1})";
  expect_error(llama_config(), ErrorKind::bad_input, "temperature");
}

TEST_F(ConfigTest, ReadsBothGenerationsOfRope) {
  json old = llama_config();
  old["rope_scaling"] = {{"rope_type", "llama3"},
                         {"factor", 32.0},
                         {"low_freq_factor", 1.0},
                         {"high_freq_factor", 4.0},
                         {"original_max_position_embeddings", 8192}};
  json fresh = llama_config();
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

TEST_F(ConfigTest, SaysWhatIsWrong) {
  try {
    ConfigFiles::read(real_files(), directory_.file("nowhere"));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::not_found);
  }
  try {
    ConfigFiles::read(real_files(), directory_.path());
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::not_found);
    EXPECT_NE(std::string(error.what()).find("no config.json"), std::string::npos);
  }
  expect_error(json::array(), ErrorKind::bad_input, "not a JSON object");
  expect_error(with(llama_config(), "/model_type", "bert\n"), ErrorKind::unsupported,
               "it knows qwen2_5_vl, llava_onevision, qwen3_vl, llama, qwen2, qwen3");
  expect_error(json::object(), ErrorKind::unsupported, "model_type");
  json missing = llama_config();
  missing.erase("hidden_size");
  expect_error(missing, ErrorKind::bad_input, "hidden_size is missing");
  for (const json& value : {json(0), json(-4), json(1e30), json("64"), json(1 << 30), json(64.5),
                            json(UINT64_MAX), json(true), json::array({64})}) {
    expect_error(with(llama_config(), "/hidden_size", value), ErrorKind::bad_input, "hidden_size");
  }
  expect_error(with(llama_config(), "/num_attention_heads", 5), ErrorKind::bad_input, "heads");
  expect_error(with(llama_config(), "/num_key_value_heads", 3), ErrorKind::bad_input, "heads");
  expect_error(with(llama_config(), "/head_dim", 15), ErrorKind::bad_input, "even");
  expect_error(with(llama_config(), "/rms_norm_eps", -1), ErrorKind::bad_input, "rms_norm_eps");
  expect_error(with(llama_config(), "/rope_theta", 0), ErrorKind::bad_input, "rope_theta");
  expect_error(with(llama_config(), "/rope_scaling", 3), ErrorKind::bad_input, "rope_scaling");
  expect_error(with(llama_config(), "/use_sliding_window", true), ErrorKind::unsupported,
               "sliding");
  expect_error(with(llama_config(), "/layer_types", {"sliding_attention"}), ErrorKind::unsupported,
               "layer_types");
  expect_error(with(llama_config(), "/hidden_act", "gelu"), ErrorKind::unsupported, "hidden_act");
}

}  // namespace
}  // namespace kinora
