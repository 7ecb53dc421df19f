// The command `tokenize`: ids and pieces of a text, against Hugging Face's ids.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "support/cli.h"
#include "support/reference_ids.h"
#include "support/temp_dir.h"

namespace kinora::testing {
namespace {

const std::string model = std::string(KINORA_FIXTURES) + "/models/llama3";

TEST(Tokenize, PrintsIdsAndPieces) {
  const Finished finished = kinora({"tokenize", "Hello<|eot_id|>", "-m", model});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_TRUE(finished.out.ends_with("\"<|eot_id|>\"\n")) << finished.out;
}

TEST(Tokenize, PrintsJsonForScripts) {
  const Finished finished = kinora({"tokenize", "One two\n", "-m", model, "--begin", "--json"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const auto json = nlohmann::json::parse(finished.out);
  EXPECT_EQ(json.at("count"), json.at("ids").size());
  std::string joined;
  for (const auto& piece : json.at("pieces")) joined += piece.get<std::string>();
  EXPECT_EQ(joined, "<|begin_of_text|>One two\n");
}

// The prompts of the reference cases, whose ids Hugging Face's tokenizers gave.
TEST(Tokenize, GivesTheIdsOfHuggingFace) {
  for (const std::string name : {"llama3", "qwen2_tied", "qwen3", "qwen2_5_vl_untied_old",
                                 "qwen3_vl_untied", "llava_onevision_old"}) {
    for (const std::string place : {"text", "turns"}) {
      const ReferenceIds expected(name, place);
      SCOPED_TRACE(name + " " + place);
      const Finished finished =
          kinora({"tokenize", expected.text, "-m", KINORA_FIXTURES "/models/" + name, "--json"});
      ASSERT_EQ(finished.code, 0) << finished.err;
      EXPECT_EQ(nlohmann::json::parse(finished.out).at("ids"), expected.prompt);
    }
  }
}

TEST(Tokenize, RefusesWhatItCannotRead) {
  EXPECT_EQ(kinora({"tokenize", "x", "-m", "/no/such/directory"}).code, 3);
  EXPECT_EQ(kinora({"tokenize", "\xff", "-m", model}).code, 4);
}

// What kinora has not is named, part by part.
TEST(Tokenize, UnsupportedPartsAreNamed) {
  const TempDir directory;
  std::ifstream file(model + "/tokenizer.json");
  const auto good = nlohmann::json::parse(file);
  for (const auto& [part, type] :
       std::vector<std::pair<std::string, std::string>>{{"model", "WordPiece"},
                                                        {"normalizer", "BertNormalizer"},
                                                        {"pre_tokenizer", "BertPreTokenizer"},
                                                        {"post_processor", "BertProcessing"},
                                                        {"decoder", "WordPiece"}}) {
    nlohmann::json changed = good;
    changed[part] = {{"type", type}};
    if (part == "model") changed[part]["vocab"] = good.at("model").at("vocab");
    std::ofstream(directory.file("tokenizer.json")) << changed;
    expect_error(kinora({"tokenize", "x", "-m", directory.path()}), 5, type);
  }
}

}  // namespace
}  // namespace kinora::testing
