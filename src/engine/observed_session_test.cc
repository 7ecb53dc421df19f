// What an observer of a session is shown is what a direct computation with the model's parts gives,
// in whatever groups the session reads, pruned or not, on either device.
#include <gtest/gtest.h>
#include <kinora/session.h>

#include <algorithm>
#include <fstream>

#include "attention/policies/policy.h"
#include "attention/search/inspection.h"
#include "attention/search/search.h"
#include "base/error.h"
#include "base/gpu.h"
#include "engine/direct_prefill.h"
#include "engine/engine_state.h"
#include "engine/session_state.h"
#include "support/film.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

const std::string question = "What is it?";

std::unique_ptr<Attention> policy(const std::string& text) {
  AttentionOptions options;
  options.sparse.dense_below = 0;
  return make_attention(text, options);
}

// Notes the groups and passes everything on.
class Noting final : public AttentionObserver {
 public:
  explicit Noting(AttentionObserver& inner) : inner_(inner) {}
  void begin_group(const PromptGroup& group) override {
    EXPECT_EQ(group.first, end_);
    end_ = group.first + group.count;
    groups.push_back(group.count);
    total = group.total;
    inner_.begin_group(group);
  }
  bool wants(int layer) const override { return inner_.wants(layer); }
  void see(const Context& context, const AttentionCall& call) override {
    inner_.see(context, call);
  }
  std::vector<int64_t> groups;
  int64_t total = 0;

 private:
  AttentionObserver& inner_;
  int64_t end_ = 0;
};

class ObservedSession : public ::testing::Test {
 protected:
  const testing::TempDir directory_;
  const std::string model_ = std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_tied_new";
  const Engine engine_{{.model = model_, .device = "cpu"}};
  const EngineState& state_ = *EngineAccess::state(engine_);

  static SessionOptions options(const std::string& retain, int64_t group_tokens) {
    SessionOptions options;
    options.retain = retain;
    options.row_type = "f32";
    options.frames_per_group = 8;
    options.max_group_tokens = group_tokens;
    return options;
  }
  static Answer read(Session& session, const std::string& film, AttentionObserver* observer,
                     int64_t tokens = 0, const std::string& subtitles = "") {
    InputOptions every;
    every.frames = FrameChoice::all();
    every.subtitles = subtitles;
    session.add(film, every);
    SessionAccess::state(session).observe(observer);
    AnswerOptions greedy;
    greedy.temperature = 0;
    greedy.ignore_stop_tokens = true;
    greedy.max_tokens = tokens;
    return session.ask(question, greedy);
  }
};

TEST_F(ObservedSession, InspectionIsTheDirectComputation) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 24, 120, 160);
  const char* sparse = "a-shape:sink=3,local=16";
  for (const auto& [retain, tokens] :
       {std::pair{"all", 0}, std::pair{"all", 100}, std::pair{"key-norm:0.5", 2048}}) {
    SCOPED_TRACE(std::string(retain) + " " + std::to_string(tokens));
    InspectionOptions looking;
    looking.layer = 1;
    LayerInspection inspection(looking, policy(sparse));
    Noting noting(inspection);
    Session session(engine_, options(retain, tokens));
    const Answer answer = read(session, film, &noting);
    EXPECT_TRUE(answer.ids.empty());
    ASSERT_EQ(noting.total, answer.prompt_tokens);
    EXPECT_EQ(noting.groups.size() == 1, tokens == 0);

    const auto calls = testing::read_directly(state_.context, *state_.model, film, question,
                                              noting.groups, parse_retention(retain));
    const std::vector<HeadInspection> heads = inspection.heads();
    ASSERT_EQ(static_cast<int64_t>(heads.size()), calls.front().queries.size(1));
    const auto reference = policy(sparse);
    for (const HeadInspection& head : heads) {
      testing::Held held;
      for (const testing::RecordedCall& call : calls) {
        if (call.layer != 1) continue;
        const auto part = testing::held_by(state_.context, *reference, call, head.head);
        held.recall += part.recall;
        held.pairs += part.pairs;
        held.visible += part.visible;
      }
      EXPECT_LT(held.pairs, held.visible);
      EXPECT_NEAR(head.recall, held.recall / static_cast<double>(answer.prompt_tokens), 1e-4);
      EXPECT_EQ(head.share, static_cast<double>(held.pairs) / static_cast<double>(held.visible));
      EXPECT_EQ(head.pattern, "a-shape");
      for (int row = 0; row < head.attention.side; ++row) {
        double sum = 0;
        for (int key = 0; key < head.attention.side; ++key) sum += head.attention.at(row, key);
        EXPECT_NEAR(sum, 1, 1e-3);
      }
    }
    EXPECT_EQ(static_cast<int64_t>(inspection.modalities().size()), answer.prompt_tokens);
  }
}

TEST_F(ObservedSession, TheSearchFindsWhatItFindsDirectly) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 16, 120, 160);
  SearchOptions options;
  options.boundaries = {Boundary::none};
  options.candidates = {parse_pattern("a-shape:sink=128,local=1024"),
                        parse_pattern("grid:sink=16,stride=7,lines=v"),
                        parse_pattern("grid:sink=64,stride=20,lines=h")};
  options.grow = false;
  options.spare = 0;
  options.dense_share = 0.3;
  HeadTable fresh;
  fresh.shape.layers = state_.model->info().rows.layers;
  HeadTable observed = fresh, direct = fresh;
  PatternSearch search(observed, options, nullptr);
  Noting noting(search);
  Session session(engine_, ObservedSession::options("all", 0));
  read(session, film, &noting);
  ASSERT_TRUE(observed.complete());

  PatternSearch again(direct, options, nullptr);
  for (const testing::RecordedCall& call :
       testing::read_directly(state_.context, *state_.model, film, question, noting.groups)) {
    const RowSet rows[] = {call.rows()};
    again.see(state_.context, {call.layer, call.query_view(), rows, call.scale});
  }
  ASSERT_EQ(observed.heads.size(), direct.heads.size());
  for (size_t i = 0; i < direct.heads.size(); ++i) {
    EXPECT_EQ(to_string(*observed.heads[i]), to_string(*direct.heads[i]));
    EXPECT_NEAR(observed.heads[i]->recall, direct.heads[i]->recall, 1e-4);
    EXPECT_NEAR(observed.heads[i]->error, direct.heads[i]->error, 1e-3);
  }
}

TEST_F(ObservedSession, SubtitlesPruningAndTheQuestionsProbesAreShown) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 24, 120, 160);
  const std::string subtitles = directory_.file("film.srt");
  std::ofstream(subtitles) << "1\n00:00:05,000 --> 00:00:07,000\nA dog barks.\n\n"
                              "2\n00:00:11,000 --> 00:00:12,000\nThe dog stops.\n";
  for (const char* retain : {"all", "value-norm:0.4", "attention-score:0.3"}) {
    SCOPED_TRACE(retain);
    LayerInspection everything({}, policy("a-shape:sink=8,local=30000000"));
    Noting noting(everything);
    Session session(engine_, options(retain, 128));
    const Answer answer = read(session, film, &noting, 4, subtitles);
    EXPECT_GT(noting.groups.size(), 2u);
    for (const HeadInspection& head : everything.heads()) {
      EXPECT_NEAR(head.recall, 1, 1e-5);
      EXPECT_EQ(head.share, 1);
    }
    const std::vector<Modality>& modalities = everything.modalities();
    ASSERT_EQ(static_cast<int64_t>(modalities.size()), answer.prompt_tokens);
    EXPECT_EQ(std::count(modalities.begin(), modalities.end(), Modality::video),
              answer.visual_tokens);
    int runs = 1;
    for (size_t i = 1; i < modalities.size(); ++i) runs += modalities[i] != modalities[i - 1];
    EXPECT_EQ(runs, 7);  // text, frames, a subtitle, frames, a subtitle, frames, the question

    Session alone(engine_, options(retain, 128));  // looking on changes nothing
    EXPECT_EQ(read(alone, film, nullptr, 4, subtitles).ids, answer.ids);
  }
}

TEST_F(ObservedSession, WhatAnObserverThrowsEndsTheQuestionAndNothingElse) {
  class Refusing final : public AttentionObserver {
   public:
    bool wants(int layer) const override { return layer == 1; }
    void see(const Context&, const AttentionCall& call) override {
      if (call.queries.ordinals.front() > 0) throw Error(ErrorKind::usage, "enough seen");
    }
  };
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 16, 120, 160);
  Refusing refusing;
  Session session(engine_, options("key-norm:0.5", 100));
  EXPECT_THROW(read(session, film, &refusing, 4), Error);
  SessionAccess::state(session).observe(nullptr);
  AnswerOptions greedy;
  greedy.temperature = 0;
  greedy.ignore_stop_tokens = true;
  greedy.max_tokens = 4;
  Session fresh(engine_, options("key-norm:0.5", 100));
  EXPECT_EQ(session.ask(question, greedy).ids, read(fresh, film, nullptr, 4).ids);
}

TEST_F(ObservedSession, ALayerOrHeadThatIsNotThereIsRefused) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 4);
  InspectionOptions looking;
  looking.head = 99;
  LayerInspection inspection(looking, policy("grid"));
  Session session(engine_, options("all", 0));
  EXPECT_THROW(read(session, film, &inspection), Error);
}

TEST_F(ObservedSession, AGpuShowsWhatTheCpuShows) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no GPU";
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 24, 120, 160);
  const Engine gpu({.model = model_, .device = "cuda", .gpu_exact = true});
  for (const char* retain : {"all", "key-norm:0.5"}) {
    const auto inspect = [&](const Engine& engine) {
      LayerInspection inspection({}, policy("a-shape:sink=3,local=16"));
      Session session(engine, options(retain, 200));
      read(session, film, &inspection, 4);
      return inspection.heads();
    };
    const auto there = inspect(gpu), here = inspect(engine_);
    ASSERT_EQ(there.size(), here.size());
    for (size_t i = 0; i < here.size(); ++i) {
      EXPECT_NEAR(there[i].recall, here[i].recall, 2e-3) << retain << " " << i;
      EXPECT_NEAR(there[i].share, here[i].share, 1e-12) << retain << " " << i;
    }
  }
}

}  // namespace
}  // namespace kinora
