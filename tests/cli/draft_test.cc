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

// The last number before these words.
double number_before(const std::string& text, const std::string& words) {
  const size_t end = text.rfind(words);
  if (end == std::string::npos) return 0;
  const size_t begin = text.find_last_not_of("0123456789.", end - 1);
  return std::stod(text.substr(begin + 1, end - begin - 1));
}

// Tokens a pass and times the plain speed, by everything that answers.
TEST(Draft, SaysWhatItWasWorth) {
  const std::string question = caption,
                    always = " --fps 0.5 --draft sparrow:adapt=0 --temperature 0";
  const std::string typed = "printf '" + question + "\n' | $KINORA ";
  for (const std::string& command :
       {"$KINORA ask demo '" + question + "'", typed + "chat demo",
        typed + "watch demo --speed max",
        "$KINORA watch demo --speed max --every 1h '" + question + "' < /dev/null"}) {
    SCOPED_TRACE(command);
    const size_t redirect = command.find(" < ");
    const std::string whole = command.substr(0, redirect) + always +
                              (redirect == std::string::npos ? "" : command.substr(redirect));
    const Finished finished = kinora_shell(whole);
    ASSERT_EQ(finished.code, 0) << finished.err;
    EXPECT_GT(number_before(finished.err, " a pass, "), 1.4) << finished.err;
    EXPECT_NE(finished.err.find(" x plain\n"), std::string::npos) << finished.err;
    EXPECT_EQ(finished.out.find(" a pass"), std::string::npos) << finished.out;
  }
  const Finished quiet = kinora_shell(typed + "chat demo -q" + always);
  EXPECT_EQ(quiet.err.find(" a pass"), std::string::npos) << quiet.err;
  const Finished plain = kinora_shell(typed + "chat demo --draft none");
  EXPECT_EQ(plain.err.find(" a pass"), std::string::npos) << plain.err;
  const Finished lines = kinora_shell(typed + "watch demo --speed max --json" + always);
  EXPECT_NE(lines.out.find("\"draft\":{"), std::string::npos) << lines.out;
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
