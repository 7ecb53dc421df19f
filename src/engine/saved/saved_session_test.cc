// Sessions that are saved and opened again: the same answers without the video, for every memory
// and several families; what a file is refused for; what cannot be saved.
#include <gtest/gtest.h>
#include <kinora/session.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/files/archive.h"
#include "generate/draft_files.h"
#include "support/film.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

std::string fixture(const std::string& name) {
  return std::string(KINORA_FIXTURES) + "/models/" + name;
}

AnswerOptions greedy(int64_t tokens = 6) {
  AnswerOptions options;
  options.temperature = 0;
  options.max_tokens = tokens;
  options.ignore_stop_tokens = true;
  return options;
}

InputOptions every_frame() {
  InputOptions options;
  options.frames = FrameChoice::all();
  return options;
}

template <typename Action>
std::string error_of(ErrorKind kind, const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

void expect_same_words(const Answer& answer, const Answer& expected) {
  EXPECT_EQ(answer.ids, expected.ids);
  EXPECT_EQ(answer.prompt_ids, expected.prompt_ids);
}

void expect_same(const Answer& answer, const Answer& expected) {
  expect_same_words(answer, expected);
  // Two spans of nearly the same share may change places by rounding.
  const auto spans = [](const Answer& one) {
    std::set<std::tuple<size_t, double, double>> all;
    for (const EvidenceSpan& span : one.evidence) all.emplace(span.input, span.start, span.end);
    return all;
  };
  EXPECT_EQ(spans(answer), spans(expected));
}

class SavedSession : public ::testing::TestWithParam<const char*> {
 protected:
  std::string film(Random& random, int frames, const std::string& name = "film") {
    return testing::write_film(directory_.file(name), random, frames, 60, 80);
  }
  std::string file() const { return directory_.file("talk.kinora"); }

  const testing::TempDir directory_;
  const Engine engine_{{.model = fixture(GetParam()), .device = "cpu"}};
};

TEST_P(SavedSession, AnswersAsBeforeWithoutTheVideo) {
  KINORA_FRESH_RANDOM(random);
  for (const std::string memory :
       {"flat", "sliding:rows=20", "uniform:rows=24", "frame-retrieval:rows=24", "compact:rows=24",
        "mosaic:rows=24,cluster=4"}) {
    for (const auto& [tokens, retain] : {std::pair<std::string, std::string>("all", "all"),
                                         {"all", "key-norm:0.5"},
                                         {"novel:0.3", "all"}}) {
      SCOPED_TRACE(memory + " " + tokens + " " + retain);
      std::filesystem::remove_all(directory_.file("film"));
      const std::string path = film(random, 10);
      SessionOptions options;
      options.memory = memory;
      options.tokens = tokens;
      options.retain = retain;
      options.system = random.below(2) == 0 ? "" : "Be brief.";
      options.frames_per_group = 4;
      Session session(engine_, options);
      session.add(path, every_frame());
      const std::string key = session.memory_key();
      const MemoryFile saved = session.save(file());
      EXPECT_EQ(saved.key, key);
      EXPECT_EQ(saved.bytes, static_cast<int64_t>(std::filesystem::file_size(file())));
      const Answer first = session.ask("What is it?", greedy());
      const Answer second = session.ask("Why?", greedy());
      std::filesystem::remove_all(path);

      const MemoryFile described = describe_memory(file());
      EXPECT_EQ(described.key, key);
      EXPECT_EQ(described.memory, memory);
      EXPECT_EQ(described.token_choice, tokens);
      EXPECT_EQ(described.inputs.at(0).tokens, session.inputs().at(0).tokens);
      EXPECT_EQ(described.inputs.at(0).frames, 10);
      EXPECT_EQ(described.inputs[0].source, path);
      Session again = Session::reopen(engine_, file());
      EXPECT_EQ(again.inputs().at(0).times, session.inputs().at(0).times);
      const Forecast cost = again.forecast("What is it?");
      const Answer answer = again.ask("What is it?", greedy());
      EXPECT_EQ(answer.prompt_tokens, cost.tokens);
      EXPECT_EQ(answer.frames, 0);
      EXPECT_EQ(answer.visual_tokens, 0);
      expect_same(answer, first);
      expect_same(again.ask("Why?", greedy()), second);
      again.clear();
      expect_same(again.ask("What is it?", greedy()), first);
      // What was opened can be saved again, whatever was asked meanwhile.
      const MemoryFile copy = again.save(directory_.file("copy"));
      EXPECT_EQ(copy.key, key);
      EXPECT_EQ(copy.tokens, saved.tokens);
      expect_same(Session::reopen(engine_, directory_.file("copy")).ask("What is it?", greedy()),
                  first);
    }
  }
}

TEST_P(SavedSession, SavingAfterQuestionsLeavesThemOut) {
  KINORA_FRESH_RANDOM(random);
  Session session(engine_);
  session.add(film(random, 6), every_frame());
  session.add(directory_.file("film") + "/1002.ppm");
  const Answer first = session.ask("What is it?", greedy());
  const Answer second = session.ask("Why?", greedy());
  session.save(file());
  expect_same(session.ask("How?", greedy()),
              [&] {  // the session itself goes on
                Session other(engine_);
                other.add(directory_.file("film"), every_frame());
                other.add(directory_.file("film") + "/1002.ppm");
                other.ask("What is it?", greedy());
                other.ask("Why?", greedy());
                return other.ask("How?", greedy());
              }());
  Session again = Session::reopen(engine_, file());
  EXPECT_EQ(again.inputs().size(), 2u);
  expect_same(again.ask("What is it?", greedy()), first);
  expect_same(again.ask("Why?", greedy()), second);
  // More can be looked at; what the file holds cannot be read again.
  again.add(film(random, 4, "more"), every_frame());
  EXPECT_GT(again.ask("And this?", greedy()).visual_tokens, 0);
  // This family's template puts what is looked at first, wherever it was asked for.
  if (std::string(GetParam()) == "llava_onevision_new") return;
  Session third = Session::reopen(engine_, file());
  error_of(ErrorKind::usage, [&] { third.ask({{"First:"}, {}, {}, {"What?"}}, greedy()); });
  expect_same(third.ask("What is it?", greedy()), first);
}

INSTANTIATE_TEST_SUITE_P(Families, SavedSession,
                         ::testing::Values("qwen2_5_vl_tied_new", "llava_onevision_new",
                                           "qwen3_vl_tied"));

class SavedFile : public ::testing::Test {
 protected:
  std::string saved(Random& random, const SessionOptions& options = {}) {
    if (!std::filesystem::exists(directory_.file("film"))) {
      testing::write_film(directory_.file("film"), random, 8);
    }
    Session session(engine_, options);
    session.add(directory_.file("film"), every_frame());
    session.save(directory_.file("talk.kinora"));
    return directory_.file("talk.kinora");
  }

  const testing::TempDir directory_;
  const Engine engine_{{.model = fixture("qwen2_5_vl_tied_new"), .device = "cpu"}};
};

TEST_F(SavedFile, ASourceThatIsTakenInIsSavedAsFarAsItCame) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 12);
  for (const auto& [model, tokens] : {std::pair("qwen2_5_vl_tied_new", "all"),
                                      {"qwen2_5_vl_tied_new", "novel:0.4"},
                                      {"llava_onevision_new", "all"},
                                      {"llava_onevision_new", "evs:0.4"},
                                      {"qwen3_vl_tied", "novel:0.2"}}) {
    SCOPED_TRACE(std::string(model) + " " + tokens);
    const Engine engine({.model = fixture(model), .device = "cpu"});
    SessionOptions options;
    options.tokens = tokens;
    // All rows fit: with fewer, two clusters of nearly the same score may change places when keys
    // are turned back and again, and the evidence with them.
    options.memory = "mosaic:rows=4096,cluster=8";
    options.row_type = "f32";
    options.frames_per_group = 2;
    options.max_group_tokens = 1;
    Session watching(engine, options);
    InputOptions second;
    second.frames = FrameChoice::rate(1);
    watching.open(film, second);
    error_of(ErrorKind::usage, [&] { watching.save(directory_.file("talk.kinora")); });
    watching.take_in(6);
    const Answer early = watching.ask("What is it?", greedy());
    EXPECT_EQ(watching.save(directory_.file("early.kinora")).key, "");
    while (!watching.take_in(1).ended) continue;
    const Answer late = watching.ask("What now?", greedy());
    watching.save(directory_.file("late.kinora"));
    Session first = Session::reopen(engine, directory_.file("early.kinora"));
    expect_same(first.ask("What is it?", greedy()), early);
    EXPECT_TRUE(first.take_in(1).ended);
    Session other(engine, options);
    other.open(film, second);
    while (!other.take_in(1).ended) continue;
    Session second_file = Session::reopen(engine, directory_.file("late.kinora"));
    // Clusters follow the groups that frames come in, which another reader's pace decides.
    expect_same_words(second_file.ask("What now?", greedy()), other.ask("What now?", greedy()));
  }
}

TEST_F(SavedFile, OtherModelsAndDamagedFilesAreRefused) {
  KINORA_FRESH_RANDOM(random);
  const std::string path = saved(random);
  const Engine other({.model = fixture("qwen2_5_vl_untied_old"), .device = "cpu"});
  const std::string said = error_of(ErrorKind::bad_input, [&] { Session::reopen(other, path); });
  EXPECT_NE(said.find("qwen2_5_vl_tied_new"), std::string::npos) << said;
  // A model of that name whose weights were changed.
  std::filesystem::create_directory(directory_.file("m"));
  const std::string twin = directory_.file("m/qwen2_5_vl_tied_new");
  std::filesystem::copy(fixture("qwen2_5_vl_tied_new"), twin);
  expect_same(
      Session::reopen(Engine({.model = twin, .device = "cpu"}), path).ask("What is it?", greedy()),
      Session::reopen(engine_, path).ask("What is it?", greedy()));
  for (const std::string& name : real_files().list(twin)) {
    if (!name.ends_with(".safetensors")) continue;
    std::string weights = real_files().read(join_path(twin, name));
    weights[weights.size() - 1000] = static_cast<char>(weights[weights.size() - 1000] ^ 1);
    real_files().write(join_path(twin, name), weights);
  }
  const Engine changed({.model = twin, .device = "cpu"});
  EXPECT_NE(
      error_of(ErrorKind::bad_input, [&] { Session::reopen(changed, path); }).find("of that name"),
      std::string::npos);

  const std::string whole = real_files().read(path);
  const std::string bad = directory_.file("bad.kinora");
  real_files().write(bad, whole.substr(0, whole.size() / 2));
  error_of(ErrorKind::bad_input, [&] { Session::reopen(engine_, bad); });
  const auto archive = Archive::open(path);
  for (const ArchiveSection& section : archive->sections()) {
    if (section.bytes == 0) continue;
    std::string flipped = whole;
    const auto at = static_cast<size_t>(section.offset + random.below(section.bytes));
    flipped[at] = static_cast<char>(flipped[at] ^ 16);
    real_files().write(bad, flipped);
    error_of(ErrorKind::bad_input, [&] { Session::reopen(engine_, bad); });
  }
  error_of(ErrorKind::not_found, [&] { Session::reopen(engine_, directory_.file("none")); });
  error_of(ErrorKind::bad_input,
           [&] { Session::reopen(engine_, directory_.file("film") + "/1000.ppm"); });
}

TEST_F(SavedFile, KeysTellApartWhatAnswersDifferently) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 8);
  std::vector<std::string> keys;
  const auto key = [&](const SessionOptions& options, const InputOptions& input) {
    Session session(engine_, options);
    session.add(film, input);
    return session.memory_key();
  };
  SessionOptions system, memory, tokens, retain, type;
  system.system = "Be brief.";
  memory.memory = "mosaic";
  tokens.tokens = "novel:0.5";
  retain.retain = "key-norm:0.5";
  type.row_type = engine_.describe().weight_type == "f32" ? "bf16" : "f32";
  InputOptions fewer = every_frame();
  fewer.frames = FrameChoice::evenly(4);
  keys.push_back(key({}, every_frame()));
  EXPECT_EQ(key({}, every_frame()), keys[0]);
  EXPECT_EQ(keys[0].size(), 32u);
  for (const SessionOptions& options : {system, memory, tokens, retain, type}) {
    keys.push_back(key(options, every_frame()));
  }
  keys.push_back(key({}, fewer));
  std::filesystem::remove(film + "/1007.ppm");
  testing::write_film(film, random, 8);
  keys.push_back(key({}, every_frame()));
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::adjacent_find(keys.begin(), keys.end()), keys.end());
}

TEST_F(SavedFile, WhatCannotBeSavedIsSaid) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 8);
  const std::string path = directory_.file("talk.kinora");
  Session empty(engine_);
  error_of(ErrorKind::usage, [&] { empty.save(path); });
  SessionOptions by_question;
  by_question.retain = "attention-score:0.5";
  Session chooses(engine_, by_question);
  chooses.add(film, every_frame());
  error_of(ErrorKind::unsupported, [&] { chooses.save(path); });
  Session late(engine_);
  late.ask("Who are you?", greedy());
  late.add(film, every_frame());
  late.ask("What is it?", greedy());
  error_of(ErrorKind::unsupported, [&] { late.save(path); });
  EXPECT_FALSE(std::filesystem::exists(path));
  Session session(engine_);
  session.add(film, every_frame());
  error_of(ErrorKind::not_found, [&] { session.save(directory_.file("no/where")); });
  CancelToken stop;
  session.prepare();
  stop.cancel();
  error_of(ErrorKind::cancelled, [&] { session.save(path, stop); });
  EXPECT_FALSE(std::filesystem::exists(path));
  session.save(path);
  // Less memory than the file needs.
  const Engine small({.model = fixture("qwen2_5_vl_tied_new"),
                      .device = "cpu",
                      .memory_budget = engine_.describe().weight_bytes + 4096});
  error_of(ErrorKind::resource, [&] { Session::reopen(small, path); });
}

// A draft's rows are in the file, for the draft that made them. Without them it starts from the
// question; the answer is the same.
TEST_F(SavedFile, ADraftGoesOnFromItsRows) {
  Random random(31);
  const std::string film = testing::write_film(directory_.file("film"), random, 6);
  testing::DraftFiles draft(random, fixture("qwen2_5_vl_tied_new"));
  testing::DraftFiles stranger(random, fixture("qwen2_5_vl_tied_new"));
  const auto with = [](const std::string& name) {
    SessionOptions options;
    options.row_type = "f32";
    options.system = "A long word about how to answer.";
    options.draft = name;
    return options;
  };
  const std::string own = "sparrow:adapt=0,from=" + draft.write();
  const std::string other = "sparrow:adapt=0,from=" + stranger.write();
  const std::string path = directory_.file("talk.kinora"), bare = directory_.file("bare.kinora");
  for (const auto& [name, to] : {std::pair(own, path), std::pair(std::string("none"), bare)}) {
    Session session(engine_, with(name));
    session.add(film, every_frame());
    session.save(to);
  }
  EXPECT_TRUE(Archive::open(path)->has("draft"));
  EXPECT_FALSE(Archive::open(bare)->has("draft"));
  Session session(engine_, with(own));
  session.add(film, every_frame());
  session.prepare();
  const Answer expected = session.ask("What?", greedy(20));
  const auto reopened = [&](const std::string& from, const std::string& name) {
    return Session::reopen(engine_, from, with(name)).ask("What?", greedy(20));
  };
  const Answer same = reopened(path, own);
  EXPECT_EQ(same.draft->drafted, expected.draft->drafted);
  EXPECT_EQ(same.draft->right, expected.draft->right);
  for (const Answer& answer : {same, reopened(path, other), reopened(path, "none"),
                               reopened(path, "ngram:adapt=0"), reopened(bare, own)}) {
    EXPECT_EQ(answer.ids, expected.ids);
  }
  // Damage is found by those who need what is damaged.
  const std::string whole = real_files().read(path);
  for (const char* name : {"draft", "draft/keys", "draft/values"}) {
    const ArchiveSection section = Archive::open(path)->section(name);
    std::string flipped = whole;
    const auto at = static_cast<size_t>(section.offset + random.below(section.bytes));
    flipped[at] = static_cast<char>(flipped[at] ^ 16);
    const std::string bad = directory_.file("bad.kinora");
    real_files().write(bad, flipped);
    error_of(ErrorKind::bad_input, [&] { reopened(bad, own); });
    EXPECT_EQ(reopened(bad, "none").ids, expected.ids);
  }
}

}  // namespace
}  // namespace kinora
