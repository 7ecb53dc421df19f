// Test support: a config.json that a test writes, and the result of reading it.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "model/families/families.h"
#include "support/temp_dir.h"

namespace kinora::testing {

// A small Llama, which the tests damage.
inline nlohmann::json llama_config() {
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

// The same with another value at one place.
inline nlohmann::json with(nlohmann::json config, const std::string& key,
                           const nlohmann::json& value) {
  config[nlohmann::json::json_pointer(key)] = value;
  return config;
}

class ConfigTest : public ::testing::Test {
 protected:
  ConfigFiles files(const nlohmann::json& config) {
    std::ofstream(directory_.file("config.json")) << config.dump();
    return ConfigFiles::read(real_files(), directory_.path());
  }
  // As the family that it names reads it.
  ModelConfig read(const nlohmann::json& config) {
    const ConfigFiles written = files(config);
    return family_of(written).read(written);
  }
  // `read_more` is what a family reads besides.
  void expect_error(const nlohmann::json& config, ErrorKind kind, const std::string& what,
                    const std::function<void(const ConfigFiles&)>& read_more = nullptr) {
    try {
      read(config);
      if (read_more) read_more(files(config));
      ADD_FAILURE() << "accepted, though " << what;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }

  TempDir directory_;
};

}  // namespace kinora::testing
