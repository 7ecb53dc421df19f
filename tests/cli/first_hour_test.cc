// What a person meets in the first hour: words in the wrong place, a model that knows little, names
// that are nearly right.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "cli/ask_words.h"
#include "support/cli.h"
#include "support/temp_dir.h"

namespace kinora::testing {
namespace {

const std::string model = std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_untied_old";

class FirstHour : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new TempDir;
    make_media("-f lavfi -i testsrc2=size=64x48:rate=8:duration=2 -pix_fmt yuv420p " + clip());
  }
  static void TearDownTestSuite() {
    delete directory_;
    directory_ = nullptr;
  }
  static std::string file(const std::string& name) { return directory_->file(name); }
  static std::string clip() { return file("clip.mp4"); }
  static TempDir* directory_;
};
TempDir* FirstHour::directory_ = nullptr;

// The words taken apart where only these names are there; an error is its text.
std::string taken_apart(const std::vector<std::string>& words,
                        const std::set<std::string>& there = {}) {
  try {
    const cli::AskWords parts =
        cli::split_ask_words(words, [&](const std::string& name) { return there.contains(name); });
    std::string text;
    for (const std::string& input : parts.inputs) text += input + " + ";
    return text + parts.question;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return std::string("! ") + error.what();
  }
}

TEST(AskWords, InputsComeFirstAndTheQuestionLast) {
  EXPECT_EQ(taken_apart({"talk.mp4", "What is it?"}), "talk.mp4 + What is it?");
  EXPECT_EQ(taken_apart({"a.PNG", "b.jpeg", "What changed?"}), "a.PNG + b.jpeg + What changed?");
  EXPECT_EQ(taken_apart({"rtsp://camera/1", "Who?"}), "rtsp://camera/1 + Who?");
  EXPECT_EQ(taken_apart({"-", "Who?"}), "- + Who?");
  EXPECT_EQ(taken_apart({"folder", "Who?"}, {"folder"}), "folder + Who?");
  EXPECT_EQ(taken_apart({"Hello"}), "Hello");
  // The quotes say which word the question is; what is wrong with the other is said on opening it.
  EXPECT_EQ(taken_apart({"talk", "What is it?"}), "talk + What is it?");
}

TEST(AskWords, WhatLacksAQuestionIsNotGuessed) {
  const std::string none = "! there is no question; write it last, in quotes: ";
  EXPECT_EQ(taken_apart({"demo"}), none + "kinora ask demo \"…\"");
  EXPECT_EQ(taken_apart({"talk.mp4"}), none + "kinora ask talk.mp4 \"…\"");
  EXPECT_EQ(taken_apart({"my talk.mp4"}, {"my talk.mp4"}),
            none + "kinora ask \"my talk.mp4\" \"…\"");
  EXPECT_EQ(taken_apart({"a.png", "b.png"}), none + "kinora ask a.png b.png \"…\"");
  EXPECT_EQ(taken_apart({"What is it?", "talk.mp4"}),
            "! the question comes last: kinora ask talk.mp4 \"What is it?\"");
}

TEST(AskWords, AnUnquotedQuestionIsRecognised) {
  const std::string quotes = "! write the question in quotes, after the videos: ";
  EXPECT_EQ(taken_apart({"talk.mp4", "What", "is", "it?"}),
            quotes + "kinora ask talk.mp4 \"What is it?\"");
  EXPECT_EQ(taken_apart({"What", "is", "it?"}), quotes + "kinora ask \"What is it?\"");
  EXPECT_EQ(taken_apart({"What", "is", "in", "talk.mp4"}),
            quotes + "kinora ask talk.mp4 \"What is in\"");
}

TEST_F(FirstHour, AVideoWithoutAQuestionIsAUsageError) {
  expect_error(kinora({"ask", clip(), "-m", model}), 2, "there is no question");
  expect_error(kinora({"ask", "demo"}), 2, "there is no question");
  expect_error(kinora({"ask", clip(), "What", "is", "this", "-m", model}), 2, "in quotes");
  const Finished json = kinora({"ask", "demo", "--json"});
  EXPECT_EQ(json.code, 2);
  EXPECT_EQ(nlohmann::json::parse(json.out).at("error").at("kind"), "usage");
}

constexpr const char* little = "knows only a small drawn world";

TEST_F(FirstHour, TheBundledModelSaysWhatItKnowsBeforeItAnswers) {
  const Finished street = kinora({"ask", clip(), "What happens?", "-q"});
  EXPECT_EQ(street.code, 0) << street.err;
  EXPECT_TRUE(street.err.starts_with("kinora: note: ")) << street.err;
  EXPECT_NE(street.err.find(little), std::string::npos) << street.err;
  EXPECT_NE(street.err.find("-m "), std::string::npos) << street.err;
  // Without any video it knows even less.
  EXPECT_NE(kinora({"ask", "Who are you?", "-q"}).err.find(little), std::string::npos);
  const Finished json = kinora({"ask", clip(), "What happens?", "--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const auto warnings = nlohmann::json::parse(json.out).at("warnings");
  ASSERT_EQ(warnings.size(), 1u) << warnings;
  EXPECT_NE(warnings[0].get<std::string>().find(little), std::string::npos);
  const Finished chat = kinora_shell("printf 'Who?\\n' | $KINORA chat -q " + clip());
  EXPECT_NE(chat.err.find(little), std::string::npos) << chat.err;
}

TEST_F(FirstHour, TheBundledModelIsSilentAboutItsOwnWorld) {
  EXPECT_EQ(kinora({"ask", "demo", "What moves after the bear?", "-q"}).err, "");
  EXPECT_EQ(kinora({"ask", clip(), "What?", "-m", model, "-q", "--max-tokens", "2"}).err, "");
}

TEST_F(FirstHour, TheBundledModelIsSilentAboutItsOwnSets) {
  const auto evaluated = [&](nlohmann::json item) {
    item.update({{"id", "1"}, {"video", "clip.mp4"}, {"question", "What?"}, {"answer", "x"}});
    std::ofstream(file("set.jsonl")) << item.dump() << "\n";
    const Finished finished =
        kinora({"eval", file("set.jsonl"), "--no-cache", "--max-tokens", "2"});
    EXPECT_EQ(finished.code, 0) << finished.err;
    return finished.err;
  };
  EXPECT_NE(evaluated({{"fps", 1}}).find(little), std::string::npos);
  EXPECT_EQ(evaluated({{"fps", 1}, {"kind", "what_mover"}}), "");
}

TEST_F(FirstHour, InfoSaysWhatTheBundledModelKnows) {
  const std::string tiny = std::string(KINORA_FIXTURES) + "/../../models/kinora-tiny";
  EXPECT_NE(kinora({"info", tiny}).out.find(little), std::string::npos);
  const auto json = nlohmann::json::parse(kinora({"info", tiny, "--json"}).out);
  ASSERT_EQ(json.at("warnings").size(), 1u);
  EXPECT_EQ(kinora({"info", model}).out.find(little), std::string::npos);
  EXPECT_TRUE(nlohmann::json::parse(kinora({"info", model, "--json"}).out).at("warnings").empty());
}

}  // namespace
}  // namespace kinora::testing
