#include "eval/run.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "engine/engine_state.h"
#include "engine/evidence/evidence_heads.h"
#include "eval/answer_key.h"
#include "eval/page.h"
#include "eval/report.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

class EvalRun : public ::testing::Test {
 protected:
  EvalRun() {
    for (const char* name : {"one", "two"}) {
      std::filesystem::create_directory(directory_.file(name));
      for (int i = 0; i < 4; ++i) {
        std::ofstream picture(directory_.file(name) + "/" + std::to_string(i) + ".ppm",
                              std::ios::binary);
        picture << "P6\n32 32\n255\n" << std::string(32 * 32 * 3, static_cast<char>(name[0] + i));
      }
    }
    std::ofstream(directory_.file("set.jsonl"))
        << R"({"id": "a", "video": "one", "question": "What?", "answer": "x", "type": "what"})"
           "\n"
        << R"({"id": "b", "video": "two", "question": "Who?", "answer": "x", "type": "who"})"
           "\n"
        << R"({"id": "c", "video": "one", "question": "Who?", "answer": "x", "type": "who"})"
           "\n"
        << R"({"id": "d", "video": "gone", "question": "Who?", "answer": "x", "type": "who"})"
           "\n";
    data_ = read_eval_data(real_files(), directory_.file("set.jsonl"));
    options_.max_tokens = 4;
  }

  testing::TempDir directory_;
  Engine engine_{{.model = std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_tied_new"}};
  EvalData data_;
  EvalOptions options_;
  std::vector<EvalPolicy> policies_{policy("wide", "f32"), policy("narrow", "bf16")};

 private:
  static EvalPolicy policy(const std::string& name, const std::string& row_type) {
    EvalPolicy made;
    made.name = name;
    made.session.row_type = row_type;
    return made;
  }
};

TEST_F(EvalRun, AnswersEveryQuestionAndCountsMissingVideos) {
  const EvalOutcome outcome = run_eval(engine_, data_, policies_, options_);
  EXPECT_EQ(outcome.records.size(), 6u);
  ASSERT_EQ(outcome.problems.size(), 2u);
  EXPECT_EQ(outcome.problems[0].line, 4);
  EXPECT_NE(outcome.problems[0].message.find("gone"), std::string::npos);
  // Sharing a prefill does not change an answer.
  EvalData alone = data_;
  std::erase_if(alone.items, [](const EvalItem& item) { return item.id != "c"; });
  const EvalOutcome single = run_eval(engine_, alone, {policies_[0]}, options_);
  for (const EvalRecord& record : outcome.records) {
    if (record.id == "c" && record.policy == "wide") {
      EXPECT_EQ(record.answer, single.records.at(0).answer);
    }
  }
  const auto tables = report_tables(outcome, {"wide", "narrow"});
  const std::string markdown = as_markdown(tables, "Test");
  EXPECT_NE(markdown.find("| who | 4 | 2 |"), std::string::npos) << markdown;
  EvalPage page;
  page.title = "a < b";
  page.tables = tables;
  int64_t mistakes = 0;
  page.mistakes = find_mistakes(outcome, data_, 2, mistakes);
  EXPECT_EQ(mistakes, std::count_if(outcome.records.begin(), outcome.records.end(),
                                    [](const EvalRecord& record) { return record.score < 1; }));
  ASSERT_EQ(page.mistakes.size(), std::min<size_t>(2, static_cast<size_t>(mistakes)));
  page.more_mistakes = mistakes - 2;
  add_frames(page.mistakes, {});
  for (const Mistake& mistake : page.mistakes) {
    ASSERT_FALSE(mistake.frames.empty());
    EXPECT_TRUE(mistake.frames[0].starts_with("\x89PNG"));
  }
  page.problems = {"line 4: <gone>"};
  page.command = "kinora eval 'my set.jsonl'";
  const std::string html = as_html(page);
  for (const std::string& part :
       {std::string("a &lt; b"), fmt::format("Wrong answers: {}", mistakes),
        std::string("src=\"data:image/png;base64,iVBOR"), page.mistakes[0].item->question,
        std::string("Could not be asked: 1"), std::string("line 4: &lt;gone&gt;"), page.command}) {
    EXPECT_NE(html.find(part), std::string::npos) << part;
  }
}

TEST_F(EvalRun, GoesOnWhereItStopped) {
  options_.results = directory_.file("results.jsonl");
  int64_t asked = 0;
  options_.progress = [&](int64_t, int64_t) {
    if (++asked == 2) options_.cancel.cancel();
  };
  EXPECT_THROW(run_eval(engine_, data_, policies_, options_), Error);
  // A crash in the middle of a line costs only that line.
  std::ofstream(options_.results, std::ios::app) << R"({"setting": "torn)";
  options_.cancel = CancelToken();
  options_.progress = nullptr;
  const EvalOutcome resumed = run_eval(engine_, data_, policies_, options_);
  EXPECT_EQ(resumed.resumed, 2);
  EXPECT_EQ(resumed.records.size(), 6u);
  const EvalOutcome again = run_eval(engine_, data_, policies_, options_);
  EXPECT_EQ(again.resumed, 6);
  EXPECT_EQ(again.prefill_tokens, 0);
}

TEST_F(EvalRun, ATimeLimitEndsItBetweenVideos) {
  options_.results = directory_.file("results.jsonl");
  options_.time_limit = 1e-9;
  const EvalOutcome nothing = run_eval(engine_, data_, policies_, options_);
  EXPECT_TRUE(nothing.records.empty());
  EXPECT_NE(nothing.stopped.find("0 of 3"), std::string::npos) << nothing.stopped;
  options_.time_limit = 0;
  const EvalOutcome rest = run_eval(engine_, data_, policies_, options_);
  EXPECT_EQ(rest.records.size(), 6u);
  EXPECT_TRUE(rest.stopped.empty());
}

TEST_F(EvalRun, TheFirstQuestionAboutAVideoBearsItsCost) {
  options_.results = directory_.file("results.jsonl");
  data_.items[0].depth = 0.5;
  data_.items[0].length = 77;
  const EvalOutcome fresh = run_eval(engine_, data_, {policies_[0]}, options_);
  const EvalOutcome again = run_eval(engine_, data_, {policies_[0]}, options_);  // from the file
  for (const EvalOutcome* outcome : {&fresh, &again}) {
    ASSERT_EQ(outcome->records.size(), 3u);
    for (const EvalRecord& record : outcome->records) {
      const bool first = record.id != "c";
      EXPECT_EQ(record.prefill > 0, first) << record.id;
      EXPECT_EQ(record.share, first ? 1 : 0) << record.id;
      EXPECT_EQ(record.row_bytes > 0, first) << record.id;
      EXPECT_EQ(record.length, record.id == "a" ? 77 : 4) << record.id;
      EXPECT_EQ(record.depth, record.id == "a" ? 0.5 : -1) << record.id;
    }
  }
  const std::string report = as_markdown(report_tables(fresh, {"wide"}), "Test");
  EXPECT_NE(report.find("| wide | 77 | 1 |"), std::string::npos) << report;
}

TEST_F(EvalRun, TheWrongVideoControlAsksAboutAnotherVideo) {
  std::erase_if(data_.items, [](const EvalItem& item) { return item.id == "d"; });
  options_.results = directory_.file("results.jsonl");
  run_eval(engine_, data_, {policies_[0]}, options_);
  options_.wrong_video = true;
  const EvalOutcome control = run_eval(engine_, data_, {policies_[0]}, options_);
  EXPECT_EQ(control.resumed, 0);  // answers about the right video are not taken for these
  EXPECT_EQ(control.records.size(), 3u);
}

// What was kept is used again for the same question about the same pictures, and for nothing else.
TEST_F(EvalRun, AnswersToOtherQuestionsAreNotTaken) {
  std::erase_if(data_.items, [](const EvalItem& item) { return item.id == "d"; });
  options_.results = directory_.file("results.jsonl");
  const std::vector<EvalPolicy> one{policies_[0]};
  run_eval(engine_, data_, one, options_);
  const auto resumed = [&](const EvalData& data) {
    return run_eval(engine_, data, one, options_).resumed;
  };
  EXPECT_EQ(resumed(data_), 3);
  EvalData changed = data_;
  changed.items[0].question = "Which?";
  EXPECT_EQ(resumed(changed), 2);
  changed = data_;
  changed.items[1].options = {"x", "y"};
  EXPECT_EQ(resumed(changed), 2);
  changed = data_;
  changed.items[1].answers = {"y"};
  EXPECT_EQ(resumed(changed), 2);
  changed = data_;
  changed.items[2].frames = FrameChoice::evenly(2);
  EXPECT_EQ(resumed(changed), 2);
  changed = data_;
  changed.items[0].id = "renamed";
  EXPECT_EQ(resumed(changed), 3);
  changed = data_;
  std::erase_if(changed.items, [](const EvalItem& item) { return item.id != "b"; });
  EXPECT_EQ(run_eval(engine_, changed, one, options_).records.size(), 1u);  // not the others'
  options_.max_tokens = 5;
  EXPECT_EQ(resumed(data_), 0);
  options_.max_tokens = 4;
  // The same names, another picture.
  std::ofstream(directory_.file("two/2.ppm"), std::ios::binary) << "P6\n32 32\n255\n"
                                                                << std::string(32 * 32 * 3, 'z');
  EXPECT_EQ(resumed(data_), 2);
}

// Nor for the same question to the same weights with another template, table, draft or device.
TEST_F(EvalRun, AnswersInOtherSettingsAreNotTaken) {
  namespace fs = std::filesystem;
  const testing::TempDir folder, home;
  ASSERT_EQ(::setenv("XDG_DATA_HOME", home.path().c_str(), 1), 0);
  const std::string model = folder.file("model");
  fs::create_directory(model);
  for (const fs::directory_entry& entry :
       fs::directory_iterator(std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_tied_new")) {
    fs::create_symlink(fs::canonical(entry.path()), model + "/" + entry.path().filename().string());
  }
  std::erase_if(data_.items, [](const EvalItem& item) { return item.id != "b"; });
  options_.results = directory_.file("results.jsonl");
  const std::vector<EvalPolicy> one{policies_[0]};
  const auto resumed = [&](const EngineOptions& options) {
    return run_eval(Engine(options), data_, one, options_).resumed;
  };
  const EngineOptions plain{.model = model, .device = "cpu"};
  EXPECT_EQ(resumed(plain), 0);
  EXPECT_EQ(resumed(plain), 1);
  const std::string published =
      nlohmann::json::parse(real_files().read(model + "/chat_template.json")).at("chat_template");
  EvidenceHeads heads = evidence_heads_of(EngineAccess::state(Engine(plain))->model->info());
  // Files of one kind have the same length; those that every session reads make sense.
  const auto content_of = [&](const std::string& file, int64_t number) {
    if (file.ends_with(".jinja")) return fmt::format("{{# {} #}}{}", number, published);
    if (!file.ends_with("evidence.json")) return std::to_string(number);
    heads.chosen = {{0, uint64_t{1} << number}};
    return to_json(heads);
  };
  const std::string kept = home.file("kinora/model");
  fs::create_directories(kept);
  fs::create_directory(model + "/draft");
  for (const std::string& file : {model + "/chat_template.jinja", model + "/kinora-attention.json",
                                  model + "/kinora-evidence.json", kept + "/kinora-attention.json",
                                  kept + "/kinora-evidence.json", model + "/draft/config.json"}) {
    SCOPED_TRACE(file);
    std::ofstream(file) << content_of(file, 0);
    EXPECT_EQ(resumed(plain), 0);
    EXPECT_EQ(resumed(plain), 1);
    // The same size at the same time, other bytes; what is named by content is told apart.
    const auto time = fs::last_write_time(file);
    std::ofstream(file) << content_of(file, 1);
    fs::last_write_time(file, time);
    EXPECT_EQ(resumed(plain), file.ends_with("config.json") ? 1 : 0);
    EXPECT_EQ(resumed(plain), 1);
  }
  ::unsetenv("XDG_DATA_HOME");
}

TEST_F(EvalRun, DevicesAndPrecisionsAreSettings) {
  EngineState state(
      {.model = std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_tied_new", .device = "cpu"},
      real_files());
  const std::string before = engine_setting(state);
  EXPECT_EQ(engine_setting(state), before);
  state.native_bf16 = true;
  EXPECT_NE(engine_setting(state), before);
  state.native_bf16 = false;
  state.activations = DType::bf16;
  EXPECT_NE(engine_setting(state), before);
  state.activations = DType::f32;
  state.context.device = Device::cuda();
  EXPECT_NE(engine_setting(state), before);
  state.context.device = Device::cpu();
  EXPECT_EQ(engine_setting(state), before);
}

TEST_F(EvalRun, OtherFilesAreLeftAlone) {
  std::ifstream set(directory_.file("set.jsonl"));
  const std::string questions{std::istreambuf_iterator<char>(set), {}};
  const std::string deep = std::string(250'000, '[') + std::string(250'000, ']');
  const std::string contents[] = {
      questions,
      "no end of line",
      "\n",
      "[]\n",
      "{}\n",
      std::string("\0\0\0 ftyp", 8),
      "{\"format\": 1}\n",
      "{\"format\":\"kinora eval results\",\"version\":2}\n{\"key\": " + deep + "}\n"};
  for (const std::string& content : contents) {
    options_.results = directory_.file("precious");
    std::ofstream(options_.results, std::ios::binary) << content;
    EXPECT_THROW(run_eval(engine_, data_, policies_, options_), Error) << content;
    std::ifstream file(options_.results, std::ios::binary);
    EXPECT_EQ((std::string{std::istreambuf_iterator<char>(file), {}}), content);
  }
  // A file that is empty, or that a crash left with the beginning of its first line, is taken.
  for (const char* begun : {"", "{\"form"}) {
    std::ofstream(options_.results, std::ios::binary) << begun;
    EXPECT_EQ(run_eval(engine_, data_, policies_, options_).resumed, 0);
    EXPECT_EQ(run_eval(engine_, data_, policies_, options_).resumed, 6);
  }
  options_.results = directory_.path();
  EXPECT_THROW(run_eval(engine_, data_, policies_, options_), Error);
  options_.results = directory_.file("no/such/folder");
  EXPECT_THROW(run_eval(engine_, data_, policies_, options_), Error);
}

}  // namespace
}  // namespace kinora
