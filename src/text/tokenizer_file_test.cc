// What tokenizer.json may say, and one clear line for everything else.
#include "text/tokenizer_file.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "support/random_data.h"
#include "text/tokenizer_test_file.h"

namespace kinora::tokenizer {
namespace {

using nlohmann::json;
using testing::load_content;
using testing::load_json;
using testing::small_tokenizer;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  return "no error";
}

std::string error_with(const std::function<void(json&)>& damage) {
  json root = small_tokenizer();
  damage(root);
  return error_of([&] { load_json(root); });
}

void expect_says(const std::string& message, std::string_view part) {
  EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
}

TEST(TokenizerFile, ReadsTheSmallOne) {
  const Tokenizer tokenizer = load_json(small_tokenizer());
  EXPECT_EQ(tokenizer.encode("abc abab"), (std::vector<int32_t>{257, ' ', 256, 256}));
}

TEST(TokenizerFile, MergesMayBePairs) {
  json root = small_tokenizer();
  root["model"]["merges"] = json::parse(R"([["a", "b"], ["ab", "c"]])");
  EXPECT_EQ(load_json(root).encode("abcab"), (std::vector<int32_t>{257, 256}));
  root["model"]["merges"] = {"#version: 0.2", "a b"};
  EXPECT_EQ(load_json(root).encode("abc"), (std::vector<int32_t>{256, 'c'}));
}

TEST(TokenizerFile, ASpaceMayGoBefore) {
  json root = small_tokenizer();
  root["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_EQ(load_json(root).encode("ab"), (std::vector<int32_t>{' ', 256}));
  EXPECT_EQ(load_json(root).encode(" ab"), (std::vector<int32_t>{' ', 256}));
}

TEST(TokenizerFile, SaysWhatIsWrong) {
  expect_says(error_of([] { Tokenizer::load(real_files(), "/no/such/directory"); }),
              "/no/such/directory/tokenizer.json: no such file");
  expect_says(error_of([] { load_content(""); }), "is not valid JSON");
  expect_says(error_of([] { load_content("\xff\xfe"); }), "is not valid JSON");
  expect_says(error_of([] { load_content("[1, 2]"); }), "is not a JSON object");
  expect_says(error_of([] { load_content("{}"); }), "has no model");
  expect_says(error_of([] { load_content(std::string(1'000'000, '[')); }), "is nested too deeply");
  const std::string whole = small_tokenizer().dump();
  expect_says(error_of([&] { load_content(whole.substr(0, whole.size() / 2)); }),
              "is not valid JSON");
  expect_says(error_of([&] { load_content(whole, "{"); }), "tokenizer_config.json: is not valid");
  expect_says(error_of([&] { load_content(whole, R"({"eos_token": 5})"); }),
              "eos_token is not a string");
}

TEST(TokenizerFile, SaysWhatIsWrongWithTheVocabulary) {
  expect_says(error_with([](json& root) { root["model"].erase("vocab"); }), "has no model.vocab");
  expect_says(error_with([](json& root) { root["model"]["vocab"] = json::object(); }), "is empty");
  expect_says(error_with([](json& root) { root["model"]["vocab"]["zz"] = -1; }),
              "the id of token \"zz\" is out of range: -1");
  expect_says(error_with([](json& root) { root["model"]["vocab"]["zz"] = 1e300; }), "out of range");
  expect_says(error_with([](json& root) { root["model"]["vocab"]["zz"] = 1ull << 63; }),
              "out of range");
  expect_says(error_with([](json& root) { root["model"]["vocab"]["zz"] = "5"; }), "out of range");
  expect_says(error_with([](json& root) { root["model"]["vocab"]["zz"] = 65; }),
              "two tokens have the id 65");
  expect_says(error_with([](json& root) { root["model"]["unk_token"] = "nowhere"; }),
              "model.unk_token is not in model.vocab");
  expect_says(error_with([](json& root) { root["model"]["unk_token"] = 3; }),
              "model.unk_token is not a string");
  expect_says(error_with([](json& root) { root["model"]["byte_fallback"] = true; }),
              "byte_fallback");
  expect_says(error_with([](json& root) { root["model"]["vocab"][std::string(9999, 'x')] = 300; }),
              "a token has 9999 bytes");
}

TEST(TokenizerFile, SaysWhatIsWrongWithTheMerges) {
  expect_says(error_with([](json& root) { root["model"].erase("merges"); }), "no model.merges");
  expect_says(error_with([](json& root) { root["model"]["merges"] = json::array(); }),
              "model.merges is empty");
  expect_says(error_with([](json& root) {
                root["model"]["merges"] = {"a b", "ab qq"};
              }),
              "merge 2 names the token \"qq\"");
  expect_says(error_with([](json& root) { root["model"]["merges"] = {"a c"}; }),
              "merge 1 names the token \"ac\"");
  expect_says(error_with([](json& root) { root["model"]["merges"] = {"a b c"}; }),
              "merge 1 is not two tokens");
  expect_says(error_with([](json& root) { root["model"]["merges"] = {"ab"}; }),
              "merge 1 is not two tokens");
  expect_says(error_with([](json& root) { root["model"]["merges"] = {1}; }), "merge 1 is neither");
  expect_says(error_with([](json& root) { root["model"]["merges"] = json{{"a", 1}}; }), "merge");
}

TEST(TokenizerFile, NamesWhatIsNotSupported) {
  const auto type = [](const char* part, const char* name) {
    return [=](json& root) { root[part] = {{"type", name}}; };
  };
  expect_says(error_with(type("model", "WordPiece")),
              "the model type \"WordPiece\" is not supported");
  expect_says(error_with(type("normalizer", "NFKC")), "the normalizer \"NFKC\" is not supported");
  expect_says(error_with(type("pre_tokenizer", "Whitespace")), "the pre-tokenizer \"Whitespace\"");
  expect_says(error_with([](json& root) { root["pre_tokenizer"] = nullptr; }), "ByteLevel");
  expect_says(error_with(type("post_processor", "BertProcessing")), "\"BertProcessing\"");
  expect_says(error_with(type("decoder", "WordPiece")), "the decoder \"WordPiece\"");
  expect_says(error_with([](json& root) { root["decoder"] = nullptr; }), "the decoder \"null\"");
  expect_says(error_with([](json& root) { root["normalizer"] = json::object(); }), "has no type");
  expect_says(error_with([](json& root) { root["model"]["dropout"] = 0.1; }), "dropout");
  expect_says(error_with([](json& root) { root["model"]["end_of_word_suffix"] = "</w>"; }),
              "end_of_word_suffix");
  const auto split = [](const json& change) {
    return [=](json& root) {
      json step = {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Isolated"}};
      step.update(change);
      root["pre_tokenizer"] = {{"type", "Sequence"},
                               {"pretokenizers", {step, {{"type", "ByteLevel"}}}}};
    };
  };
  expect_says(error_with(split({{"behavior", "Removed"}})), "the Split behavior");
  expect_says(error_with(split({{"invert", true}})), "invert");
  expect_says(error_with(split({{"pattern", {{"String", "a"}}}})), "the Split pattern");
  expect_says(error_with(split({{"pattern", {{"Regex", "a("}}}})), "cannot compile");
  EXPECT_EQ(error_with(split(json::object())), "no error");
}

TEST(TokenizerFile, SaysWhatIsWrongWithAddedTokens) {
  const auto added = [](const json& tokens) {
    return [=](json& root) { root["added_tokens"] = tokens; };
  };
  expect_says(error_with(added("x")), "added_tokens is not a list");
  expect_says(error_with(added({{{"id", 300}}})), "an added token has no content");
  expect_says(error_with(added({{{"content", "<s>"}}})), "the id of token \"<s>\" is out of range");
  expect_says(error_with(added({{{"content", "<s>"}, {"id", 99}}})), "two tokens have the id 99");
  expect_says(error_with(added({{{"content", "ab"}, {"id", 300}}})),
              "the added token \"ab\" has the id 300, but 256 in model.vocab");
  expect_says(error_with(added({{{"content", "<s>"}, {"id", 300}, {"lstrip", 1}}})),
              "lstrip is not true or false");
  expect_says(
      error_with(added({{{"content", "<s>"}, {"id", 300}}, {{"content", "<s>"}, {"id", 301}}})),
      "listed twice");
  expect_says(error_with([](json& root) {
                root["post_processor"] = {{"type", "TemplateProcessing"},
                                          {"single", {{{"SpecialToken", {{"id", "<s>"}}}}}}};
              }),
              "does not explain \"<s>\"");
}

TEST(TokenizerFile, DamagedFilesNeverCrash) {
  KINORA_FRESH_RANDOM(random);
  const std::string whole =
      real_files().read(std::string(KINORA_FIXTURES) + "/tokenizers/llama/tokenizer.json");
  int refused = 0;
  for (int round = 0; round < 150; ++round) {
    std::string damaged = whole;
    for (int64_t hits = 1 + random.below(4); hits > 0; --hits) {
      const auto place = static_cast<size_t>(random.below(std::ssize(damaged)));
      switch (random.below(3)) {
        case 0:
          damaged[place] = static_cast<char>(random.below(256));
          break;
        case 1:
          damaged.erase(place, static_cast<size_t>(random.below(40)));
          break;
        default:
          damaged.insert(place,
                         damaged.substr(static_cast<size_t>(random.below(std::ssize(damaged))),
                                        static_cast<size_t>(random.below(40))));
      }
    }
    try {
      const Tokenizer tokenizer = load_content(damaged);
      tokenizer.decode(tokenizer.encode("It's <|eot_id|> é 123\n"));
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 50);
}

}  // namespace
}  // namespace kinora::tokenizer
