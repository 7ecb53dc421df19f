// Small tokenizer.json files, whole or damaged, for the tests.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "support/temp_dir.h"
#include "text/tokenizer.h"
#include "text/tokenizer_bytes.h"
#include "text/tokenizer_utf8.h"

namespace kinora::tokenizer::testing {

// All 256 bytes (id = byte), "ab" (256), "abc" (257), GPT-2's own split, nothing else.
inline nlohmann::json small_tokenizer() {
  nlohmann::json vocabulary;
  for (char32_t character = 0; character < 0x200; ++character) {
    std::string letter;
    append_utf8(character, letter);
    if (const auto byte = byte_level_to_bytes(letter)) {
      vocabulary[letter] = static_cast<unsigned char>(byte->front());
    }
  }
  vocabulary["ab"] = 256;
  vocabulary["abc"] = 257;
  return {{"added_tokens", nlohmann::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"a b", "ab c"}}}}};
}

inline Tokenizer load_content(const std::string& content, const std::string& config = "") {
  const kinora::testing::TempDir directory;
  real_files().write(directory.file("tokenizer.json"), content);
  if (!config.empty()) real_files().write(directory.file("tokenizer_config.json"), config);
  return Tokenizer::load(real_files(), directory.path());
}

inline Tokenizer load_json(const nlohmann::json& root) { return load_content(root.dump()); }

}  // namespace kinora::tokenizer::testing
