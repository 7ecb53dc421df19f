// The command `tokenize`: ids and pieces of a text, against Hugging Face's ids.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/cli.h"

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

TEST(Tokenize, RefusesWhatItCannotRead) {
  EXPECT_EQ(kinora({"tokenize", "x", "-m", "/no/such/directory"}).code, 3);
  EXPECT_EQ(kinora({"tokenize", "\xff", "-m", model}).code, 4);
}

}  // namespace
}  // namespace kinora::testing
