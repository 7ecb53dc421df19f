#include "eval/dataset.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

EvalData read_text(const std::string& text) {
  const testing::TempDir directory;
  real_files().write(directory.file("set.jsonl"), text);
  return read_eval_data(real_files(), directory.file("set.jsonl"));
}

TEST(EvalData, ReadsEveryFormOfAQuestion) {
  const EvalData data = read_text(
      R"({"video": "a.mp4", "question": "What?", "answer": "A cat", "type": "what", "fps": 2})"
      "\n\n"
      R"({"id": "x", "video": "/b.mp4", "question": "Which?", "options": ["one", "two"], "answer": "B"})"
      "\n"
      R"({"parts": [{"text": "Note."}, {"video": "c.mp4"}], "question": "Who?", "answer": ["me", "I"]})"
      "\n"
      R"({"image": "d.png", "question": "How many?", "answer": 3, "end": 4.5})"
      "\n"
      R"({"video": "a.mp4", "question": "Tell", "events": ["A cat comes", "It goes"]})"
      "\n"
      R"({"video": "a.mp4", "question": "?", "answer": "x", "fps": 2, "frames": 4096, "all_frames": true,)"
      R"( "depth": 0.25, "length": 33})");
  EXPECT_TRUE(data.problems.empty());
  ASSERT_EQ(data.items.size(), 6u);
  EXPECT_EQ(data.items[5].frames, FrameChoice::all());
  EXPECT_EQ(data.items[5].depth, 0.25);
  EXPECT_EQ(data.items[5].length, 33);
  EXPECT_NE(data.items[5].prefix_key(), data.items[0].prefix_key());
  EXPECT_TRUE(data.items[0].parts[0].source.ends_with("/a.mp4"));
  EXPECT_EQ(data.items[0].id, "1");
  EXPECT_EQ(data.items[0].frames, FrameChoice::rate(2));
  EXPECT_EQ(data.items[1].frames, FrameChoice{});
  EXPECT_EQ(data.items[1].parts[0].source, "/b.mp4");
  EXPECT_EQ(data.items[1].answers, std::vector<std::string>{"two"});
  EXPECT_EQ(data.items[1].line, 3);
  EXPECT_EQ(data.items[2].parts.size(), 2u);
  EXPECT_EQ(data.items[2].answers.size(), 2u);
  EXPECT_EQ(data.items[3].answers, std::vector<std::string>{"3"});
  EXPECT_EQ(data.items[3].frames, FrameChoice{.end = 4.5});
  EXPECT_EQ(data.items[4].events.size(), 2u);
  EXPECT_NE(data.items[0].prefix_key(), data.items[1].prefix_key());
}

TEST(EvalData, NamesBadLinesAndKeepsTheRest) {
  const EvalData data = read_text(
      "{not json\n"
      R"({"video": "a.mp4", "question": "What?", "answer": "x"})"
      "\n"
      R"({"video": "a.mp4", "answer": "x"})"
      "\n"
      R"({"video": "a.mp4", "question": 5, "answer": "x"})"
      "\n"
      R"({"video": "a.mp4", "question": "?", "options": ["a", "b"], "answer": "c"})"
      "\n"
      R"({"video": "a.mp4", "question": "?", "options": ["a", "b"], "answer": 2})"
      "\n[1]\n"
      R"({"video": "a.mp4", "question": "?", "answer": "x", "depth": 2})"
      "\n"
      R"({"video": "a.mp4", "question": "?", "answer": "x", "all_frames": 1})"
      "\n"
      R"({"id": "2", "video": "a.mp4", "question": "again", "answer": "x"})");
  EXPECT_EQ(data.items.size(), 1u);
  std::vector<int64_t> lines;
  for (const EvalProblem& problem : data.problems) lines.push_back(problem.line);
  EXPECT_EQ(lines, (std::vector<int64_t>{1, 3, 4, 5, 6, 7, 8, 9, 10}));
}

TEST(EvalData, ReadsTheTimesOfFacts) {
  const EvalData data = read_text(
      R"({"video": "a.mp4", "question": "?", "answer": "x", "times": [[1, 2.5], [4, 4]]})"
      "\n"
      R"({"video": "a.mp4", "question": "?", "answer": "x", "times": [[1, 2]], "all_times": true})"
      "\n"
      R"({"video": "a.mp4", "question": "?", "answer": "x", "times": 3})"
      "\n"
      R"({"video": "a.mp4", "question": "?", "answer": "x", "times": [[2, 1]]})"
      "\n"
      R"({"video": "a.mp4", "question": "?", "answer": "x", "times": [[1, "2"]]})"
      "\n"
      R"({"video": "a.mp4", "question": "?", "answer": "x", "times": [1, 2]})"
      "\n"
      R"({"video": "a.mp4", "question": "?", "answer": "x", "times": [[1, 2]], "all_times": 1})");
  ASSERT_EQ(data.items.size(), 2u);
  EXPECT_EQ(data.problems.size(), 5u);
  ASSERT_EQ(data.items[0].times.size(), 2u);
  EXPECT_EQ(data.items[0].times[0].end, 2.5);
  EXPECT_FALSE(data.items[0].all_times);
  EXPECT_TRUE(data.items[1].all_times);
  const EvalItem again = read_text(eval_line(data.items[1])).items.at(0);
  EXPECT_EQ(again.times.size(), 1u);
  EXPECT_TRUE(again.all_times);
}

// Numbers that no count can be are refused before they are converted.
TEST(EvalData, RefusesCountsBeyondReason) {
  const std::string good = R"({"video": "a.mp4", "question": "?", "answer": "x"})";
  for (const char* key : {"frames", "length"}) {
    for (const char* value : {"1e300", "-1e300", "-1", "1e16", "9223372036854775808",
                              "18446744073709551615", "-9223372036854775809", "\"4\"", "[4]"}) {
      const std::string line = fmt::format(
          R"({{"video": "a.mp4", "question": "?", "answer": "x", "{}": {}}})", key, value);
      SCOPED_TRACE(line);
      const EvalData data = read_text(good + "\n" + line + "\n");
      EXPECT_EQ(data.items.size(), 1u);
      ASSERT_EQ(data.problems.size(), 1u);
      EXPECT_EQ(data.problems[0].line, 2);
      EXPECT_NE(data.problems[0].message.find(key), std::string::npos) << data.problems[0].message;
    }
  }
  EXPECT_EQ(read_text(R"({"video": "a.mp4", "question": "?", "answer": "x", "frames": 1e15})")
                .items.at(0)
                .frames,
            FrameChoice::evenly(1'000'000'000'000'000));
}

TEST(EvalData, WorkIsLinearInTheFile) {
  const testing::TempDir directory;
  const std::string path = directory.file("set.jsonl");
  const std::vector<std::pair<const char*, std::string>> lines = {
      {"questions", R"({"video": "a.mp4", "question": "?", "answer": "x"})"
                    "\n"},
      {"the same id", R"({"id": "a", "video": "a.mp4", "question": "?", "answer": "x"})"
                      "\n"},
      {"nothing", "\n"},
      {"open brackets", "["},
      {"quotes", "\""}};
  for (const auto& [name, line] : lines) {
    SCOPED_TRACE(name);
    const auto turns = [&](int64_t count) {
      std::string text = R"({"video": "a.mp4", "question": "?", "answer": "x"})"
                         "\n";
      for (int64_t i = 0; i < count; ++i) text += line;
      real_files().write(path, text);
      LoopGuard guard;
      read_eval_data(real_files(), path, guard);
      return guard.turns();
    };
    EXPECT_LE(static_cast<double>(turns(20'000)), 2.2 * static_cast<double>(turns(10'000)));
  }
  real_files().write(path, std::string(10'000, '\n'));
  const CancelToken cancel;
  cancel.cancel();
  EXPECT_THROW(read_eval_data(real_files(), path, cancel), Error);
}

TEST(EvalData, SaysWhatAnAnswerMustHold) {
  const EvalData data =
      read_text(R"({"video": "a.mp4", "question": "?", "answer": "x", "contains": true})"
                "\n"
                R"({"video": "a.mp4", "question": "?", "answer": "x", "contains": false})"
                "\n"
                R"({"video": "a.mp4", "question": "?", "answer": "x", "contains": "x"})");
  ASSERT_EQ(data.items.size(), 2u);
  EXPECT_EQ(data.problems.size(), 1u);
  EXPECT_TRUE(data.items[0].contains);
  EXPECT_FALSE(data.items[1].contains);
  EXPECT_TRUE(read_text(eval_line(data.items[0])).items.at(0).contains);
}

TEST(EvalData, RefusesAFileWithoutAnyQuestion) {
  EXPECT_THROW(read_text(""), Error);
  EXPECT_THROW(read_text("nothing\n"), Error);
  EXPECT_THROW(read_eval_data(real_files(), "/nowhere.jsonl"), Error);
}

TEST(EvalData, WritesWhatItReads) {
  const std::string line =
      R"({"id": "q", "parts": [{"text": "Note."}, {"video": "/c.mp4"}], "question": "Who?",)"
      R"( "options": ["me", "you"], "answer": "you", "type": "who", "start": 1.5, "end": 3})";
  const EvalItem item = read_text(line).items.at(0);
  const EvalItem again = read_text(eval_line(item)).items.at(0);
  EXPECT_EQ(again.prefix_key(), item.prefix_key());
  EXPECT_EQ(again.options, item.options);
  EXPECT_EQ(again.answers, item.answers);
  EXPECT_EQ(again.type, "who");
}

}  // namespace
}  // namespace kinora
