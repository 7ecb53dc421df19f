// The command `eval` on the small set of the repository (made by `python -m training.world.make_set
// skills --lengths 32 --videos 2 --questions 33 --seed ci`): the bundled model, files to report.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "support/cli.h"
#include "support/temp_dir.h"

namespace kinora::testing {
namespace {

const std::string small_set = std::string(KINORA_FIXTURES) + "/eval/DATA.jsonl";

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<nlohmann::json> lines_of(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

// What a results file holds below its first line, which names the format.
std::vector<nlohmann::json> answers_of(const std::string& path) {
  std::vector<nlohmann::json> lines = lines_of(path);
  EXPECT_TRUE(!lines.empty() && lines[0].contains("format")) << path;
  if (!lines.empty()) lines.erase(lines.begin());
  return lines;
}

double right_share(const std::vector<nlohmann::json>& answers) {
  double right = 0;
  for (const auto& answer : answers) right += answer.at("score").get<double>();
  return answers.empty() ? 0 : right / static_cast<double>(answers.size());
}

TEST(Eval, TheBundledModelKnowsEverySkillOfTheSmallSet) {
  const TempDir folder;
  const Finished finished =
      kinora({"eval", small_set, "--no-cache", "--results", folder.file("a"), "--markdown",
              folder.file("a.md"), "--html", folder.file("a.html")});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const auto answers = answers_of(folder.file("a"));
  std::set<std::string> skills;
  for (const auto& answer : answers) skills.insert(answer.at("type"));
  EXPECT_EQ(answers.size(), lines_of(small_set).size());
  EXPECT_EQ(skills.size(), 15);
  EXPECT_GE(right_share(answers), 0.97) << finished.out;
  EXPECT_NE(content_of(folder.file("a.md")).find("| caption | 32 | 2 |"), std::string::npos);
  EXPECT_NE(content_of(folder.file("a.html")).find("</html>"), std::string::npos);
}

TEST(Eval, ComparesMemoriesInOneCommand) {
  const TempDir folder;
  // Rows of one picture pair in sixteen: enough for most questions only if they are the right ones.
  const Finished finished =
      kinora({"eval", small_set, "--no-cache", "--max-tokens", "12", "--memory", "flat", "--memory",
              "uniform:rows=16", "--memory", "compact:rows=100000", "--results", folder.file("a")});
  ASSERT_EQ(finished.code, 0) << finished.err;
  std::map<std::string, std::vector<nlohmann::json>> answers;
  for (auto& line : answers_of(folder.file("a"))) answers[line.at("policy")].push_back(line);
  ASSERT_EQ(answers.size(), 3u);
  const double all = right_share(answers.at("memory=flat"));
  EXPECT_EQ(right_share(answers.at("memory=compact:rows=100000")), all);
  EXPECT_LT(right_share(answers.at("memory=uniform:rows=16")), all);
  EXPECT_NE(finished.out.find("memory=uniform:rows=16"), std::string::npos) << finished.out;

  const Finished wrong = kinora({"eval", small_set, "--memory", "uniform:rows=none"});
  EXPECT_NE(wrong.code, 0);
  EXPECT_NE(wrong.err.find("1 or more"), std::string::npos) << wrong.err;
}

TEST(Eval, JudgesTheTimesThatAnswersName) {
  const TempDir folder;
  const Finished finished =
      kinora({"eval", small_set, "--no-cache", "--evidence", "--results", folder.file("answers")});
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_NE(finished.out.find("## Times that answers name"), std::string::npos) << finished.out;
  double named = 0, guessed = 0;
  int one = 0, several = 0;
  for (const auto& answer : answers_of(folder.file("answers"))) {
    if (!answer.contains("evidence")) continue;
    const auto& evidence = answer.at("evidence");
    several += evidence.at("several").get<bool>();
    if (evidence.at("several").get<bool>()) continue;
    ++one;
    named += evidence.at("found").get<double>();
    guessed += evidence.at("guessed").get<double>();
    EXPECT_LE(evidence.at("length").get<double>(), 1.0 / 16 + 1e-6);  // two of 32 frames
  }
  EXPECT_GT(one, 20);
  EXPECT_GT(several, 1);
  EXPECT_GE(named / one, 0.85) << finished.out;
  EXPECT_LT(guessed / one, 0.6);
}

TEST(Eval, ACalibrationChoosesHeadsThatPoint) {
  const TempDir folder;
  const std::string table = folder.file("heads.json");
  const Finished finished = kinora({"calibrate", small_set, "--heads", "2", "-o", table});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const auto json = nlohmann::json::parse(content_of(table));
  EXPECT_EQ(json.at("format"), "kinora-evidence");
  EXPECT_FALSE(json.at("chosen").empty());
  EXPECT_NE(finished.out.find("names the time of"), std::string::npos) << finished.out;
  const std::string timeless = folder.file("set.jsonl");
  std::ofstream(timeless) << R"({"video": "a.mp4", "question": "?", "answer": "x"})";
  expect_error(kinora({"calibrate", timeless, "-o", table}), 4, "times");
}

TEST(Eval, AnotherVideoIsNoHelp) {
  const TempDir folder;
  const Finished finished = kinora(
      {"eval", small_set, "--no-cache", "--wrong-video", "--results", folder.file("answers")});
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_LT(right_share(answers_of(folder.file("answers"))), 0.7);
}

TEST(Eval, MultipliesInOneTypeAtATime) {
  expect_error(kinora({"eval", small_set, "--f32", "--bf16"}), 2, "--bf16 excludes --f32");
}

TEST(Eval, ABadLineAndAMissingVideoDoNotStopTheRest) {
  const TempDir folder;
  const std::string image = std::filesystem::absolute(small_set).replace_filename("image-0.png");
  std::ofstream(folder.file("set.jsonl"))
      << R"({"id": "first", "question": "Who are you?", "answer": "x", "type": "chat"})"
      << "\n"
      << "{not json\n"
      << R"({"id": "gone", "video": "gone.mp4", "question": "What?", "answer": "x"})"
      << "\n"
      << nlohmann::json{{"id", "last"},
                        {"image", image},
                        {"question", "What is this?"},
                        {"answer", "x"}}
      << "\n";
  const std::vector<std::string> command{"eval", folder.file("set.jsonl"), "--no-cache",
                                         "--results", folder.file("answers")};
  const Finished finished = kinora(command);
  ASSERT_EQ(finished.code, 3) << finished.err;  // that of the video that is not there
  EXPECT_NE(finished.err.find("line 2"), std::string::npos) << finished.err;
  EXPECT_NE(finished.err.find("gone.mp4"), std::string::npos) << finished.err;
  EXPECT_NE(finished.out.find("1 questions could not be asked, 1 lines could not be read"),
            std::string::npos)
      << finished.out;
  EXPECT_EQ(answers_of(folder.file("answers")).size(), 2);

  const Finished again = kinora(command);
  EXPECT_NE(again.out.find("2 answers, 2 of them from earlier"), std::string::npos) << again.out;
  EXPECT_EQ(answers_of(folder.file("answers")).size(), 2);
}

}  // namespace
}  // namespace kinora::testing
