// SentencePiece's models against what Hugging Face's tokenizers gives (tests/reference/make
// pieces).
#include "text/tokenizer_pieces.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "text/text_stream.h"
#include "text/tokenizer.h"
#include "text/tokenizer_test_file.h"

namespace kinora {
namespace {

using nlohmann::json;

const std::string fixtures = std::string(KINORA_FIXTURES) + "/tokenizers/";
constexpr const char* names[] = {"llama2", "mistral", "gemma", "unigram", "unigram-bytes"};

uint32_t fnv(std::span<const int32_t> ids) {
  uint64_t value = 0xcbf29ce484222325u;
  for (const int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      value = (value ^ (static_cast<uint32_t>(id) >> shift & 0xff)) * 0x100000001b3u;
    }
  }
  return static_cast<uint32_t>(value >> 32) ^ static_cast<uint32_t>(value);
}

std::vector<std::string> strings() {
  const std::string content = real_files().read(fixtures + "strings.bin");
  uint32_t count = 0;
  std::memcpy(&count, content.data() + 8, 4);
  std::vector<std::string> texts;
  for (size_t at = 12; texts.size() < count;) {
    size_t size = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(content.at(at++));
      size |= static_cast<size_t>(byte & 127) << shift;
      if (byte < 128) break;
    }
    texts.push_back(content.substr(at, size));
    at += size;
  }
  return texts;
}

TEST(Pieces, EncodeAsHuggingFace) {
  const std::vector<std::string> texts = strings();
  ASSERT_GE(texts.size(), 5000u);
  for (const std::string name : names) {
    const Tokenizer tokenizer = Tokenizer::load(real_files(), fixtures + name);
    const std::string content = real_files().read(fixtures + name + ".hashes");
    std::vector<uint32_t> hashes((content.size() - 12) / 4);
    std::memcpy(hashes.data(), content.data() + 12, 4 * hashes.size());
    ASSERT_EQ(hashes.size(), texts.size());
    int wrong = 0;
    for (size_t i = 0; i < texts.size() && wrong < 5; ++i) {
      if (fnv(tokenizer.encode(texts[i])) == hashes[i]) continue;
      ++wrong;
      ADD_FAILURE() << name << ", string " << i << ": " << json(texts[i]).dump();
    }
  }
}

TEST(Pieces, DecodeAsHuggingFaceAtOnceAndTokenByToken) {
  const json cases = json::parse(real_files().read(fixtures + "decode-pieces.json"));
  for (const std::string name : names) {
    const Tokenizer tokenizer = Tokenizer::load(real_files(), fixtures + name);
    for (const json& one : cases) {
      if (one.at("tokenizer") != name) continue;
      const auto ids = one.at("ids").get<std::vector<int32_t>>();
      EXPECT_EQ(tokenizer.decode(ids), one.at("text").get<std::string>()) << name;
      TextStream stream(tokenizer, false);
      std::string text;
      for (const int32_t id : ids) text += stream.push(id);
      EXPECT_EQ(text + stream.finish(), tokenizer.decode(ids)) << name;
    }
  }
}

// A change of the file, and a word of the message that refuses it.
struct Change {
  const char* about;
  std::function<void(json&)> make;
  ErrorKind kind = ErrorKind::unsupported;
};

TEST(Pieces, WhatCannotBeHonouredIsNamed) {
  const Change changes[] = {
      {"NFKC",
       [](json& file) {
         file["normalizer"] = {{"type", "NFKC"}};
       }},
      {"pattern",
       [](json& file) {
         file["normalizer"] = {
             {"type", "Replace"}, {"pattern", {{"Regex", " +"}}}, {"content", " "}};
       }},
      {"Whitespace",
       [](json& file) {
         file["pre_tokenizer"] = {{"type", "Whitespace"}};
       }},
      {"scheme",
       [](json& file) {
         file["pre_tokenizer"] = {
             {"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "sometimes"}};
       }},
      {"Split",
       [](json& file) {
         file["normalizer"] = nullptr;
         file["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"String", " "}}}};
       }},
      {"WordPiece",
       [](json& file) {
         file["decoder"] = {{"type", "WordPiece"}};
       }},
      {"decoder", [](json& file) { file["decoder"] = nullptr; }},
      {"Strip",
       [](json& file) {
         file["decoder"] = {{"type", "Strip"}, {"content", " "}, {"start", 0}, {"stop", 1}};
       }},
      {"WordLevel", [](json& file) { file["model"]["type"] = "WordLevel"; }},
      {"prepend",
       [](json& file) {
         file["normalizer"] = {{"type", "Prepend"}};
       },
       ErrorKind::bad_input},
      {"unk_token", [](json& file) { file["model"]["unk_token"] = "<no such>"; },
       ErrorKind::bad_input},
  };
  const json whole = json::parse(real_files().read(fixtures + "llama2/tokenizer.json"));
  for (const Change& change : changes) {
    json file = whole;
    change.make(file);
    try {
      tokenizer::testing::load_json(file);
      ADD_FAILURE() << change.about;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), change.kind) << error.what();
      EXPECT_NE(std::string(error.what()).find(change.about), std::string::npos) << error.what();
    }
  }
}

TEST(Pieces, DamagedScoresAreRefused) {
  const json whole = json::parse(real_files().read(fixtures + "unigram/tokenizer.json"));
  const Change changes[] = {
      {"vocab", [](json& file) { file["model"]["vocab"] = json::array(); }},
      {"vocab", [](json& file) { file["model"]["vocab"] = json::object(); }},
      {"entry 1", [](json& file) { file["model"]["vocab"][1] = "a"; }},
      {"entry 2",
       [](json& file) {
         file["model"]["vocab"][2] = json{"a", "b"};
       }},
      {"unk_id", [](json& file) { file["model"]["unk_id"] = 1'000'000; }},
      {"unk_id", [](json& file) { file["model"]["unk_id"] = -1; }},
  };
  for (const Change& change : changes) {
    json file = whole;
    change.make(file);
    try {
      tokenizer::testing::load_json(file);
      ADD_FAILURE() << change.about;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input) << error.what();
      EXPECT_NE(std::string(error.what()).find(change.about), std::string::npos) << error.what();
    }
  }
  json file = whole;
  file["model"]["unk_id"] = nullptr;
  const Tokenizer without = tokenizer::testing::load_json(file);
  EXPECT_THROW(without.encode("東"), Error);
}

TEST(Pieces, ReplacesEveryPlace) {
  EXPECT_EQ(tokenizer::replaced("", "a", "b"), "");
  EXPECT_EQ(tokenizer::replaced("aXaXXa", "X", "--"), "a--a----a");
  EXPECT_EQ(tokenizer::replaced("aaa", "aa", ""), "a");
}

}  // namespace
}  // namespace kinora
