// Many conversations about one film: each answers as a session of its own would, and the film's
// rows are stored and counted once.
#include <gtest/gtest.h>
#include <kinora/session.h>

#include <thread>

#include "base/error.h"
#include "engine/session_state.h"
#include "generate/draft_files.h"
#include "support/film.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

constexpr auto text = Modality::text, film = Modality::video;

class ForkedSession : public ::testing::TestWithParam<std::string> {
 protected:
  ForkedSession() {
    Random random(5);
    film_ = testing::write_film(directory_.file("film"), random, 9);
    options_.row_type = "f32";
    options_.decode_threads = 1;
    options_.memory = GetParam();
  }

  std::unique_ptr<SessionState> session() const {
    return std::make_unique<SessionState>(EngineAccess::state(engine_), options_);
  }
  std::unique_ptr<SessionState> with_film() const {
    auto made = session();
    made->add({film_, {}, 1, {}, "", false, {}}, {});
    return made;
  }
  static Answer ask(SessionState& session, const std::vector<ContentPart>& parts) {
    GenerateOptions options;
    options.max_tokens = 12;
    options.ignore_stop_tokens = true;
    return session.ask(parts, options, nullptr, {});
  }

  testing::TempDir directory_;
  std::string film_;
  Engine engine_{{.model = KINORA_FIXTURES "/models/qwen2_5_vl_tied_new", .device = "cpu"}};
  SessionOptions options_;
};

INSTANTIATE_TEST_SUITE_P(Memories, ForkedSession,
                         ::testing::Values("flat", "mosaic", "frame-retrieval"));

TEST_P(ForkedSession, AnswersAsASessionOfItsOwn) {
  const std::string questions[] = {"What is it?", "Who is there, and why?", "How many?"};
  auto base = with_film();
  base->prepare({{film, ""}}, {});
  std::vector<std::unique_ptr<SessionState>> forks;
  for (size_t i = 0; i < 3; ++i) forks.push_back(base->fork());
  std::vector<Answer> answers(3);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      answers[i] = ask(*forks[i], {{film, ""}, {text, questions[i]}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < 3; ++i) {
    auto alone = with_film();
    const Answer expected = ask(*alone, {{film, ""}, {text, questions[i]}});
    EXPECT_EQ(answers[i].ids, expected.ids);
    EXPECT_EQ(answers[i].prompt_ids, expected.prompt_ids);
    EXPECT_EQ(answers[i].frames, 0) << "the film was read again";
    EXPECT_LT(answers[i].prompt_tokens, expected.prompt_tokens);
  }
}

TEST_P(ForkedSession, GoesOnFromASavedMemory) {
  auto base = with_film();
  base->save(directory_.file("film.kinora"), {});
  const Answer expected = ask(*base->fork(), {{film, ""}, {text, "What is it?"}});
  auto again = reopen_session(EngineAccess::state(engine_), directory_.file("film.kinora"), {}, {});
  for (int i = 0; i < 2; ++i) {
    auto fork = again->fork();
    const Answer answer = ask(*fork, {{film, ""}, {text, "What is it?"}});
    EXPECT_EQ(answer.ids, expected.ids);
    EXPECT_EQ(answer.frames, 0);
    fork->adopt(
        {{"user", {{film, ""}, {text, "What is it?"}}}, {"assistant", {{text, answer.text}}}});
    EXPECT_FALSE(ask(*fork, {{text, "And then?"}}).ids.empty());
  }
}

TEST_P(ForkedSession, WaitsForTheEndOfWhatIsBeingTakenIn) {
  auto base = session();
  base->open({film_, FrameChoice::all(), 1, {}, "", false, {}}, {});
  EXPECT_THROW(base->fork(), Error);
  while (!base->take_in(1000, {}, 0).ended) {
  }
  const Answer expected = ask(*base, {{film, ""}, {text, "What is it?"}});
  base->clear();
  auto fork = base->fork();
  EXPECT_EQ(ask(*fork, {{film, ""}, {text, "What is it?"}}).ids, expected.ids);
}

TEST_P(ForkedSession, TakesUpAConversation) {
  auto whole = with_film();
  const Answer first = ask(*whole, {{film, ""}, {text, "What is it?"}});
  const Answer second = ask(*whole, {{text, "And then?"}});
  const std::vector<Turn> said = {{"user", {{film, ""}, {text, "What is it?"}}},
                                  {"assistant", {{text, first.text}}}};
  // In a session that has seen nothing, in one that was prepared, and in a fork of the same talk.
  auto cold = with_film();
  cold->adopt(said);
  EXPECT_EQ(ask(*cold, {{text, "And then?"}}).ids, second.ids);
  auto base = with_film();
  base->prepare({{film, ""}}, {});
  auto fork = base->fork();
  fork->adopt(said);
  const Answer taken_up = ask(*fork, {{text, "And then?"}});
  EXPECT_EQ(taken_up.ids, second.ids);
  EXPECT_EQ(taken_up.frames, 0);
}

// With the rows of text that its draft has: it guesses as the session itself would have.
TEST_P(ForkedSession, DraftsFromWhatWasRead) {
  Random random(8);
  testing::DraftFiles draft(random, KINORA_FIXTURES "/models/qwen2_5_vl_tied_new");
  options_.system = "A long word about how to answer, which is read once for all conversations.";
  options_.draft = "none";
  const Answer plain = ask(*with_film(), {{film, ""}, {text, "What is it?"}});
  options_.draft = "sparrow:adapt=0,from=" + draft.write();
  auto base = with_film();
  base->prepare({{film, ""}}, {});
  const auto fork = base->fork(), second = base->fork();
  ask(*second, {{film, ""}, {text, "Who is there, and why?"}});
  const Answer forked = ask(*fork, {{film, ""}, {text, "What is it?"}});
  const Answer itself = ask(*base, {{film, ""}, {text, "What is it?"}});
  for (const Answer& answer : {forked, itself}) {
    EXPECT_EQ(answer.ids, plain.ids);
    EXPECT_GT(answer.draft->drafted, 0);
    EXPECT_EQ(answer.draft->right, itself.draft->right);
    EXPECT_EQ(answer.draft->drafted, itself.draft->drafted);
  }
}

TEST_P(ForkedSession, RefusesTurnsWithTooManyInputs) {
  auto one = with_film();
  EXPECT_THROW(one->adopt({{"user", {{film, ""}, {film, ""}, {text, "?"}}}}), Error);
}

TEST(ForkedBudget, CountsSharedRowsOnce) {
  testing::TempDir directory;
  Random random(6);
  const std::string path = testing::write_film(directory.file("film"), random, 8);
  const Engine engine({.model = KINORA_FIXTURES "/models/qwen2_5_vl_tied_new",
                       .device = "cpu",
                       .memory_budget = int64_t{1} << 30});
  const EngineState& state = *EngineAccess::state(engine);
  auto base = std::make_unique<SessionState>(EngineAccess::state(engine), SessionOptions());
  base->add({path, {}, 1, {}, "", false, {}}, {});
  base->prepare({});
  const int64_t held = base->bytes().total();
  EXPECT_EQ(state.rows.used(), held);
  {
    auto fork = base->fork();
    EXPECT_EQ(state.rows.used(), held);
    EXPECT_EQ(fork->bytes().shared, held);
    GenerateOptions options;
    options.max_tokens = 5;
    fork->ask({{film, ""}, {text, "What is it?"}}, options, nullptr, {});
    EXPECT_EQ(state.rows.used(), fork->bytes().total());
    EXPECT_GT(state.rows.used(), held);
  }
  EXPECT_EQ(state.rows.used(), held);
}

}  // namespace
}  // namespace kinora
