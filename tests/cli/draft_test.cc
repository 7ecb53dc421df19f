// Drafts as a person uses them, with the one that came with the bundled model.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/cli.h"
#include "support/temp_dir.h"

namespace kinora::testing {
namespace {

constexpr const char* caption = "Describe the video.";

nlohmann::json ask(const std::string& draft, const std::string& temperature) {
  const Finished finished = kinora({"ask", "demo", caption, "--temperature", temperature, "--seed",
                                    "3", "--draft", draft, "--json"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  return nlohmann::json::parse(finished.out);
}

TEST(Draft, OfTheBundledModelIsOftenRightAndChangesNoAnswer) {
  for (const std::string temperature : {"0", "0.7"}) {
    const auto plain = ask("none", temperature);
    ASSERT_GT(plain.at("tokens").at("answer").get<int64_t>(), 20);
    for (const char* draft :
         {"auto", "sparrow:adapt=0", "sparrow:adapt=0,total=48,depth=5,width=10",
          "sparrow:adapt=0,total=5,depth=3,width=1", "pruned:keep=0.1,adapt=0"}) {
      const auto drafted = ask(draft, temperature);
      EXPECT_EQ(drafted.at("answer"), plain.at("answer")) << draft;
      EXPECT_EQ(drafted.at("tokens"), plain.at("tokens"));
      if (std::string(draft) == "auto") continue;
      // Tokens a pass, the model's own included.
      const auto tokens = drafted.at("tokens").at("answer").get<double>();
      EXPECT_GT(tokens / drafted.at("draft").at("passes").get<double>(), 1.8) << draft;
    }
  }
}

TEST(Draft, ThatIsNotThereIsRefused) {
  expect_error(kinora({"ask", "Why?", "--draft", "./absent"}), 3, "./absent");
  expect_error(kinora({"ask", "Why?", "--draft", "sparrow:depth=99"}), 2, "depth is '99'");
}

TEST(BenchDraft, ComparesInTurns) {
  const Finished finished = kinora({"bench", "draft", "demo", caption, "--turns", "1", "--drafts",
                                    "ngram", "sparrow:adapt=0", "--json"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const auto result = nlohmann::json::parse(finished.out);
  ASSERT_EQ(result.at("drafts").size(), 3u);
  EXPECT_EQ(result.at("drafts")[0].at("draft"), "none");
  EXPECT_EQ(result.at("drafts")[0].at("accepted_length"), 1.0);
  for (const auto& draft : result.at("drafts")) {
    EXPECT_TRUE(draft.at("same_answer").get<bool>());
    EXPECT_GT(draft.at("tokens_per_s").get<double>(), 0);
  }
  EXPECT_GT(result.at("drafts")[2].at("accepted_length").get<double>(), 1.8);
  const Finished table = kinora({"bench", "draft", "demo", "What?", "--turns", "1"});
  EXPECT_NE(table.out.find("| ngram |"), std::string::npos) << table.out;
  expect_error(kinora({"bench", "draft", "demo", "What?", "--drafts", "nonsense"}), 2,
               "--drafts 'nonsense'");
}

}  // namespace
}  // namespace kinora::testing
