#include "eval/import.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

std::vector<EvalItem> import_text(const std::string& format, const std::string& text,
                                  const std::string& questions = "") {
  const testing::TempDir directory;
  real_files().write(directory.file("annotations"), text);
  ImportOptions options{format, "videos", ""};
  if (!questions.empty()) {
    real_files().write(directory.file("questions"), questions);
    options.questions = directory.file("questions");
  }
  return import_annotations(real_files(), directory.file("annotations"), options);
}

TEST(Import, ReadsEveryPublishedForm) {
  auto items = import_text("mlvu", R"([{"video": "a.mp4", "duration": 4, "question": "Colour?",
      "candidates": ["Red", "Blue"], "answer": "Blue", "question_type": "plotQA"},
      {"video": "b.mp4", "question": "Tell", "answer": "A tale.", "question_type": "summary"}])");
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[0].parts[0].source, "videos/a.mp4");
  EXPECT_EQ(items[0].answers[0], "Blue");
  EXPECT_EQ(items[1].type, "summary");

  items = import_text("streamingbench", R"([{"video_id": 1, "video_path": "/data/x/s.mp4",
      "conversations": [{"question": "Now?", "answer": "Map", "choices": ["A compass.", "Map."],
      "end_time": 6.0, "task": "Object Recognition"}]}])");
  ASSERT_EQ(items.size(), 1u);
  EXPECT_EQ(items[0].parts[0].source, "videos/s.mp4");
  EXPECT_EQ(items[0].answers[0], "Map.");
  EXPECT_EQ(items[0].frames.end, 6.0);
  EXPECT_EQ(items[0].type, "Object Recognition");

  items = import_text("egoschema", R"({"u1": 1, "u3": 0})",
                      R"([{"q_uid": "u1", "question": "Why?", "option 0": "a", "option 1": "b"},
                          {"q_uid": "u2", "question": "Who?", "option 0": "a", "option 1": "b"}])");
  ASSERT_EQ(items.size(), 1u);
  EXPECT_EQ(items[0].answers[0], "b");

  items = import_text("longvideobench", R"([{"video_path": "v.mp4", "question": "What?",
      "candidates": ["x", "y"], "correct_choice": 1, "question_category": "S2E"}])");
  EXPECT_EQ(items.at(0).answers[0], "y");

  items = import_text(
      "lvbench",
      "{\"key\": \"k\", \"qa\": [{\"uid\": \"1\", \"question\": \"What?\\n(A) one\\n(B) "
      "two\", \"answer\": \"B\", \"question_type\": [\"event\"]}]}\n");
  EXPECT_EQ(items.at(0).question, "What?");
  EXPECT_EQ(items.at(0).options, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(items.at(0).answers[0], "two");

  items = import_text(
      "nextqa",
      "video,frame_count,question,answer,qid,type,a0,a1\n4010,9,\"why, oh why\",1,6,CW,x,y\n");
  EXPECT_EQ(items.at(0).question, "why, oh why");
  EXPECT_EQ(items.at(0).answers[0], "y");

  items = import_text("videodetailcaption",
                      R"([{"video_name": "v_1", "question": "Describe", "answer": "Long."}])");
  EXPECT_EQ(items.at(0).parts[0].source, "videos/v_1.mp4");
}

TEST(Import, SaysWhatIsWrong) {
  EXPECT_THROW(import_text("unheard-of", "[]"), Error);
  EXPECT_THROW(import_text("mlvu", "[{\"video\": \"a\"}]"), Error);
  EXPECT_THROW(import_text("mlvu", "not json"), Error);
  EXPECT_THROW(import_text("egoschema", "{}"), Error);
  EXPECT_THROW(import_text("mlvu", R"([{"video": "a", "question": "?", "candidates": ["x"],
                                        "answer": "y", "question_type": "t"}])"),
               Error);
}

// The real annotation files, where a directory of them is named.
TEST(Import, TakesThePublishedFilesWhole) {
  const char* directory = std::getenv("KINORA_VIDEOQA");
  if (directory == nullptr) GTEST_SKIP() << "KINORA_VIDEOQA names no directory";
  const std::pair<const char*, const char*> sets[] = {
      {"mlvu", "mlvu/1_plotQA.json"},
      {"mlvu", "mlvu/4_count.json"},
      {"mlvu", "mlvu/9_summary.json"},
      {"videomme", "videomme.json"},
      {"mvbench", "mvbench.json"},
      {"streamingbench", "streamingbench_realtime.json"},
      {"ovobench", "ovobench_realtime_backeward.json"}};
  for (const auto& [format, file] : sets) {
    const auto items =
        import_annotations(real_files(), join_path(directory, file), {format, "videos", ""});
    EXPECT_GT(items.size(), 100u) << file;
  }
}

// Copies of values that nest so deeply would use up the stack.
TEST(Import, DeepNestingIsRefused) {
  const std::string deep = std::string(250'000, '[') + std::string(250'000, ']');
  const auto refused = [](const std::string& format, const std::string& text,
                          const std::string& questions = "") {
    try {
      import_text(format, text, questions);
      ADD_FAILURE() << format << " takes it";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input);
      EXPECT_NE(std::string(error.what()).find("values nest too deeply"), std::string::npos)
          << error.what();
    }
  };
  for (const std::string& format : import_formats()) {
    if (format == "nextqa") continue;  // CSV
    const std::string questions = format == "egoschema" ? "[]" : "";
    refused(format, deep, questions);
    refused(format, "{\"x\": " + deep + "}\n", questions);
  }
  refused("egoschema", "{}", deep);
}

}  // namespace
}  // namespace kinora
