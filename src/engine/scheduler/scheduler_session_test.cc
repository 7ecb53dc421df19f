// Sessions on many threads share one engine: each answers as it does alone, while others come,
// fail, are cancelled and go.
#include <gtest/gtest.h>
#include <kinora/session.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/gpu.h"
#include "engine/engine_state.h"
#include "engine/scheduler/scheduler.h"
#include "generate/draft_files.h"
#include "support/film.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

std::vector<std::string> devices() {
  std::vector<std::string> names{"cpu"};
  for (size_t i = 0; i < cuda_devices().size(); ++i) names.push_back("cuda:" + std::to_string(i));
  return names;
}

constexpr const char* questions[] = {"What is it?", "And then, what is next?", "Why?",
                                     "Where is the house, and who is in it?", "How many?"};

// What one person does with a session.
struct Step {
  enum class Kind { ask, add, clear, cancelled, thrown };
  Kind kind = Kind::ask;
  std::string question;
  int64_t tokens = 0;
};
struct Script {
  SessionOptions options;
  std::vector<Step> steps;
};

// What came of a question.
struct Result {
  std::vector<int32_t> ids;
  std::string stop;
  std::string text;
  int64_t row_bytes = 0;
  std::optional<ErrorKind> failure;

  bool operator==(const Result&) const = default;
};
void PrintTo(const Result& result, std::ostream* out) {
  *out << result.ids.size() << " tokens, " << result.stop << ", " << result.row_bytes << " bytes";
  if (result.failure) *out << ", " << error_kind_name(*result.failure);
}

class SharedEngine : public ::testing::TestWithParam<std::string> {
 protected:
  // Films and scripts are always the same: where two logits of a small random model are nearly
  // equal, rounding, which depends on the number of rows, would decide. The moments are not.
  void SetUp() override {
    Random random(31);
    for (int i = 0; i < 3; ++i) {
      films_.push_back(
          testing::write_film(directory_.file("film" + std::to_string(i)), random, 4 + 3 * i));
    }
    draft_.write();
  }

  const Scheduler& scheduler() const { return *EngineAccess::state(engine_)->scheduler; }

  static AnswerOptions greedy(int64_t tokens) {
    AnswerOptions options;
    options.temperature = 0;
    options.repetition_penalty = 1;
    options.max_tokens = tokens;
    options.ignore_stop_tokens = true;
    return options;
  }
  // Near all that the model has positions for.
  static AnswerOptions endless() { return greedy(3000); }

  Script script(int who) const {
    Random random(static_cast<uint64_t>(100 + who));
    Script script;
    script.options.row_type = "f32";
    script.options.decode_threads = 1;
    script.options.frames_per_group = 2 + random.below(4);
    script.options.max_group_tokens = 8 + random.below(60);
    if (who % 3 == 1) script.options.draft = "ngram:adapt=0";
    if (who % 3 == 2) {
      script.options.draft = std::string("sparrow:adapt=0,") +
                             (who % 2 == 0 ? "" : "total=6,width=1,") +
                             "from=" + draft_.directory();
    }
    if (who % 4 == 3) {
      // Room for a few answers.
      const Forecast cost = Session(engine_, script.options).forecast(questions[0]);
      script.options.memory_budget =
          cost.memory_bytes + 2 * 150 * engine_.describe().row_bytes_per_token;
      for (int i = 0; i < 6; ++i) {
        script.steps.push_back({Step::Kind::ask, questions[random.below(5)], 100});
      }
      return script;
    }
    for (int i = 0; i < 7; ++i) {
      const double choice = random.uniform();
      const Step::Kind kind = choice < 0.5    ? Step::Kind::ask
                              : choice < 0.62 ? Step::Kind::add
                              : choice < 0.72 ? Step::Kind::clear
                              : choice < 0.9  ? Step::Kind::cancelled
                                              : Step::Kind::thrown;
      script.steps.push_back({kind, questions[random.below(5)], 4 + random.below(16)});
    }
    script.steps.push_back({Step::Kind::ask, questions[0], 24});
    return script;
  }

  // A question that never gets its answer; nothing of it remains.
  static void fail(Session& session, const Step& step, Random& random) {
    AnswerOptions options = endless();
    const int64_t moment = 1 + random.below(15);
    const bool by_clock = random.uniform() < 0.5;
    std::thread clock;
    if (step.kind == Step::Kind::cancelled && by_clock) {
      clock = std::thread([cancel = options.cancel, after = random.below(20'000)] {
        std::this_thread::sleep_for(std::chrono::microseconds(after));
        cancel.cancel();
      });
    }
    int64_t pieces = 0;
    const auto asking = std::this_thread::get_id();
    try {
      session.ask(step.question, options, [&](std::string_view) {
        EXPECT_EQ(std::this_thread::get_id(), asking);
        if (++pieces != moment) return;
        if (step.kind == Step::Kind::thrown) throw std::runtime_error("enough");
        if (!by_clock) options.cancel.cancel();
      });
      ADD_FAILURE() << "the answer ended";
    } catch (const Error& error) {
      EXPECT_EQ(step.kind, Step::Kind::cancelled);
      EXPECT_EQ(error.kind(), ErrorKind::cancelled) << error.what();
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(step.kind, Step::Kind::thrown);
      EXPECT_STREQ(error.what(), "enough");
    }
    if (clock.joinable()) clock.join();
  }

  // Alone, without what fails; or with it, and others that come and go.
  std::vector<Result> play(const Script& script, Random* mishaps) const {
    Session session(engine_, script.options);
    std::vector<Result> results;
    size_t film = 0;
    InputOptions every;
    every.frames = FrameChoice::all();
    for (const Step& step : script.steps) {
      switch (step.kind) {
        case Step::Kind::ask: {
          Result result;
          try {
            const Answer answer =
                session.ask(step.question, greedy(step.tokens),
                            [&](std::string_view piece) { result.text += piece; });
            EXPECT_EQ(result.text, answer.text);
            result.ids = answer.ids;
            result.stop = answer.stop;
            result.row_bytes = answer.row_bytes;
          } catch (const Error& error) {
            result.failure = error.kind();
          }
          results.push_back(result);
          break;
        }
        case Step::Kind::add:
          session.add(films_[film++ % films_.size()], every);
          break;
        case Step::Kind::clear:
          session.clear();
          break;
        case Step::Kind::cancelled:
        case Step::Kind::thrown:
          if (mishaps == nullptr) break;
          fail(session, step, *mishaps);
          if (step.kind == Step::Kind::cancelled) {  // and one that ends there
            Session doomed(engine_, script.options);
            doomed.add(films_[0], every);
            fail(doomed, step, *mishaps);
          }
          break;
      }
    }
    return results;
  }

  const testing::TempDir directory_;
  const std::string model_ = KINORA_FIXTURES "/models/qwen2_5_vl_tied_new";
  std::vector<std::string> films_;
  Random weights_{32};
  testing::DraftFiles draft_{weights_, model_};  // guesses that are nearly always wrong
  const Engine engine_{{.model = model_, .device = GetParam(), .threads = 2, .gpu_exact = true}};
};

// Some draft, in chains and trees: together with others they answer as one without a draft alone.
TEST_P(SharedEngine, SessionsOnManyThreadsAnswerAsAlone) {
  KINORA_FRESH_RANDOM(random);
  constexpr int count = 16;
  std::vector<Script> scripts;
  std::vector<std::vector<Result>> expected;
  bool full = false, refused = false;
  for (int i = 0; i < count; ++i) {
    scripts.push_back(script(i));
    Script plain = scripts.back();
    plain.options.draft = "none";
    expected.push_back(play(plain, nullptr));
    for (const Result& result : expected.back()) {
      full |= result.stop == "budget-full";
      refused |= result.failure == ErrorKind::resource;
    }
  }
  EXPECT_TRUE(full);
  EXPECT_TRUE(refused);
  EXPECT_EQ(scheduler().report().largest, 1);

  std::latch start(count);
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i, seed = random.next()] {
      SCOPED_TRACE("KINORA_TEST_SEED=" + std::to_string(random_seed));
      Random mishaps(seed);
      start.arrive_and_wait();
      const auto place = static_cast<size_t>(i);
      EXPECT_EQ(play(scripts[place], &mishaps), expected[place]) << "session " << i;
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Scheduler::Report report = scheduler().report();
  EXPECT_GT(report.largest, 1);
  EXPECT_LT(report.rounds, report.steps);
  EXPECT_EQ(report.waiting, 0);
}

TEST_P(SharedEngine, DraftsChangeNoAnswer) {
  const auto ask = [&](const std::string& draft) {
    SessionOptions options;
    options.row_type = "f32";
    options.draft = draft;
    Session session(engine_, options);
    session.add(films_[0]);
    std::vector<Answer> answers;
    for (const char* question : questions) answers.push_back(session.ask(question, greedy(60)));
    return answers;
  };
  const std::vector<Answer> plain = ask("none"), drafted = ask("ngram:adapt=0");
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(drafted[i].ids, plain[i].ids) << questions[i];
    EXPECT_EQ(drafted[i].text, plain[i].text);
    EXPECT_EQ(drafted[i].stop, plain[i].stop);
    EXPECT_EQ(drafted[i].row_bytes, plain[i].row_bytes);
    EXPECT_EQ(drafted[i].prompt_tokens, plain[i].prompt_tokens);
    EXPECT_FALSE(plain[i].draft.has_value());
    if (!drafted[i].draft) continue;
    EXPECT_EQ(1 + drafted[i].draft->passes + drafted[i].draft->right, 60);
    EXPECT_LE(drafted[i].draft->right, drafted[i].draft->drafted);
  }
}

TEST_P(SharedEngine, AWrongNameIsRefusedAtOnce) {
  for (const bool draft : {true, false}) {
    SessionOptions options;
    (draft ? options.draft : options.memory) = "nonsense";
    try {
      Session session(engine_, options);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_NE(std::string(error.what()).find("'nonsense'"), std::string::npos) << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, SharedEngine, ::testing::ValuesIn(devices()),
                         [](const auto& test) {
                           return test.param.substr(0, test.param.find(':')) +
                                  std::to_string(test.index);
                         });

}  // namespace
}  // namespace kinora
