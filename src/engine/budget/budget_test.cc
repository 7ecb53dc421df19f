// Budgets that a session keeps, subtitles that it reads along, and sessions side by side.
#include <gtest/gtest.h>
#include <kinora/session.h>

#include <fstream>
#include <limits>
#include <memory>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/gpu.h"
#include "engine/engine_state.h"
#include "support/film.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

class SessionBudget : public ::testing::Test {
 protected:
  const testing::TempDir directory_;
  const Engine engine_{{.model = std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_tied_new"}};

  static AnswerOptions greedy(int64_t tokens = 6) {
    AnswerOptions options;
    options.temperature = 0;
    options.max_tokens = tokens;
    options.ignore_stop_tokens = true;
    return options;
  }
  static InputOptions every() {
    InputOptions options;
    options.frames = FrameChoice::all();
    return options;
  }
};

TEST_F(SessionBudget, TheForecastIsWhatTheAnswerCosts) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 13);
  for (const char* retain : {"all", "key-norm:0.4"}) {
    SessionOptions options;
    options.retain = retain;
    options.frames_per_group = 4;
    Session session(engine_, options);
    session.add(film, every());
    for (const char* question : {"What is it?", "And then, what is next?"}) {
      const Forecast cost = session.forecast(question);
      const Answer answer = session.ask(question, greedy());
      EXPECT_EQ(cost.tokens, answer.prompt_tokens);
      EXPECT_EQ(cost.visual_tokens, answer.visual_tokens);
      EXPECT_EQ(cost.frames, answer.frames);
      const int64_t token_bytes = engine_.describe().row_bytes_per_token;
      const auto made = static_cast<int64_t>(answer.ids.size());
      EXPECT_EQ(cost.row_bytes + (made - 1) * token_bytes, answer.row_bytes) << retain;
    }
  }
}

TEST_F(SessionBudget, TheForecastCountsTheActivationsOfAGroup) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 40);
  const auto memory = [&](const char* retain, int64_t group_tokens) {
    SessionOptions options;
    options.retain = retain;
    options.frames_per_group = 2;
    options.max_group_tokens = group_tokens;
    Session session(engine_, options);
    session.add(film, every());
    const Forecast cost = session.forecast("What is it?");
    EXPECT_GT(cost.visual_tokens, 60);
    return cost.memory_bytes;
  };
  const int64_t endless = std::numeric_limits<int64_t>::max();
  EXPECT_LT(memory("all", 1), memory("all", 30));
  EXPECT_LT(memory("all", 30), memory("all", endless));
  EXPECT_EQ(memory("key-norm:0.5", 1), memory("key-norm:0.5", endless));  // never joined
}

TEST_F(SessionBudget, AForecastChangesNothing) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 40);
  const std::string other = testing::write_film(directory_.file("other"), random, 9);
  for (const char* retain : {"all", "key-norm:0.8"}) {
    SessionOptions options;
    options.retain = retain;
    options.frames_per_group = 4;
    Session measured(engine_, options);
    measured.add(film, every());
    const Forecast whole = measured.forecast("What is it?");
    options.memory_budget = whole.memory_bytes - whole.row_bytes / 2;
    Session silent(engine_, options), curious(engine_, options);
    const auto look_ahead = [&](const char* question) {
      const Forecast first = curious.forecast(question);
      const Forecast second = std::as_const(curious).forecast(question);
      EXPECT_EQ(first.frames, second.frames);
      EXPECT_EQ(first.row_bytes, second.row_bytes);
      EXPECT_EQ(first.memory_bytes, second.memory_bytes);
      EXPECT_EQ(first.changes, second.changes);
      return first;
    };
    silent.add(film, every());
    curious.add(film, every());
    const Forecast cost = look_ahead("Quite another question, and a longer one?");
    EXPECT_LT(cost.row_bytes, whole.row_bytes);
    EXPECT_FALSE(cost.changes.empty());
    EXPECT_EQ(curious.inputs()[0].times.size(), 40u);
    for (const char* question : {"What is it?", "Why?", "And then?"}) {
      look_ahead(question);
      const Answer answer = curious.ask(question, greedy());
      const Answer expected = silent.ask(question, greedy());
      EXPECT_EQ(answer.ids, expected.ids);
      EXPECT_EQ(answer.text, expected.text);
      EXPECT_EQ(answer.row_bytes, expected.row_bytes);
      EXPECT_EQ(answer.warnings, expected.warnings);
      silent.clear();  // the budget is full
      curious.clear();
    }
  }
}

TEST_F(SessionBudget, TheMostFramesThatFitAreLookedAt) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 61);
  const auto cost = [&](int64_t frames, int64_t budget) {
    SessionOptions options;
    options.memory_budget = budget;
    Session session(engine_, options);
    InputOptions input;
    input.frames = FrameChoice::evenly(frames);
    session.add(film, input);
    return session.forecast("What is it?");
  };
  const int64_t answer = 64 * engine_.describe().row_bytes_per_token;
  for (const int64_t frames : {2, 4, 8, 30, 58, 60}) {
    // Exactly enough for these frames, and one byte less.
    const int64_t enough = cost(frames, 0).memory_bytes + answer;
    EXPECT_EQ(cost(61, enough).frames, frames);
    if (frames > 2) {
      EXPECT_EQ(cost(61, enough - 1).frames, frames - 2);
    } else {
      EXPECT_THROW(cost(61, enough - 1), Error);
    }
  }
}

TEST_F(SessionBudget, AQuestionThatFailsGivesBackTheFramesItGaveUp) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 40);
  Session whole(engine_);
  whole.add(film, every());
  const Forecast cost = whole.forecast("What?");
  SessionOptions options;
  options.max_context = cost.tokens - cost.visual_tokens / 2;
  Session session(engine_, options);
  session.add(film, every());
  AnswerOptions cancelled = greedy();
  cancelled.cancel.cancel();
  EXPECT_THROW(session.ask("What?", cancelled), Error);
  EXPECT_EQ(session.inputs()[0].times.size(), 40u);
  Session fresh(engine_, options);
  fresh.add(film, every());
  const Answer answer = session.ask("What?", greedy()), expected = fresh.ask("What?", greedy());
  EXPECT_EQ(answer.ids, expected.ids);
  EXPECT_EQ(answer.warnings, expected.warnings);
  EXPECT_EQ(answer.warnings.size(), 1u);
}

TEST_F(SessionBudget, PreparedInputsGiveTheSameAnswer) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 8);
  Session plain(engine_), prepared(engine_);
  plain.add(film, every());
  prepared.add(film, every());
  const Answer read = prepared.prepare();
  EXPECT_EQ(read.frames, 8);
  EXPECT_EQ(prepared.prepare().frames, 0);  // once is enough
  const Answer expected = plain.ask("What is it?", greedy());
  const Answer answer = prepared.ask("What is it?", greedy());
  EXPECT_EQ(answer.ids, expected.ids);
  EXPECT_EQ(answer.row_bytes, expected.row_bytes);
  EXPECT_EQ(answer.frames, 0);
  EXPECT_EQ(prepared.ask("Why?", greedy()).ids, plain.ask("Why?", greedy()).ids);

  SessionOptions by_question;
  by_question.retain = "attention-score:0.5";
  Session refused(engine_, by_question);
  refused.add(film);
  EXPECT_THROW(refused.prepare(), Error);
}

TEST_F(SessionBudget, ABudgetThatRunsOutInTheMiddleLeavesTheSessionUsable) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 6);
  Session measured(engine_);
  measured.add(film, every());
  const Forecast cost = measured.forecast("What is it?");
  const int64_t token_bytes = engine_.describe().row_bytes_per_token;
  SessionOptions options;
  options.memory_budget = cost.memory_bytes + 150 * token_bytes;
  Session session(engine_, options);
  session.add(film, every());
  const Answer first = session.ask("What is it?", greedy());
  EXPECT_EQ(first.ids, measured.ask("What is it?", greedy()).ids);
  EXPECT_TRUE(first.warnings.empty());
  // An answer ends where the budget does …
  const Answer endless = session.ask("And then?", greedy(100'000));
  EXPECT_EQ(endless.stop, "budget-full");
  EXPECT_LE(endless.row_bytes, cost.row_bytes + 150 * token_bytes);
  EXPECT_GT(endless.ids.size(), 30u);
  // … and a question that does not fit is refused, again and again.
  for (int i = 0; i < 2; ++i) {
    try {
      session.ask("What was the very first thing of all the things that were there?", greedy());
      FAIL() << "the budget was passed";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::resource) << error.what();
    }
  }
  session.clear();
  EXPECT_EQ(session.ask("What is it?", greedy()).ids, first.ids);
}

TEST_F(SessionBudget, AnotherSessionThatTakesTheRoomMidwayEndsTheQuestionAndNotTheSession) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 60);
  Session alone(engine_);
  alone.add(film, every());
  const Forecast cost = alone.forecast("What is it?");
  const Answer expected = alone.ask("What is it?", greedy());

  // Room for one question and a half.
  const ModelDescription model = engine_.describe();
  EngineOptions shared_options;
  shared_options.model = std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_tied_new";
  shared_options.memory_budget =
      model.weight_bytes + cost.row_bytes * 3 / 2 + 64 * model.row_bytes_per_token;
  const Engine shared(shared_options);
  auto second = std::make_unique<Session>(shared);
  int64_t read = 0;
  bool told = false;
  SessionOptions options;
  options.frames_per_group = 2;
  options.max_group_tokens = 1;
  options.progress = [&](std::string_view stage, int64_t done, int64_t total) {
    if (stage != "prefill" || std::exchange(told, true)) return;
    read = done;
    EXPECT_LT(done, total);
    second->add(film, every());
    // Most of the room is still there, and it takes it.
    EXPECT_EQ(second->ask("What is it?", greedy()).warnings.size(), 0u);
  };
  Session first(shared, options);
  first.add(film, every());
  try {
    first.ask("What is it?", greedy());
    FAIL() << "two questions found room for one and a half";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::resource);
    EXPECT_NE(std::string(error.what()).find("used up after"), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
  EXPECT_GT(read, 0);
  // The one in whose favour it was ended goes on; when it is gone there is room again.
  EXPECT_GT(second->ask("Why?", greedy(2)).ids.size(), 0u);
  second.reset();
  const Answer again = first.ask("What is it?", greedy());
  EXPECT_EQ(again.ids, expected.ids);
  EXPECT_EQ(again.row_bytes, expected.row_bytes);
  EXPECT_TRUE(again.warnings.empty());
  // Failed and closed sessions have given everything back.
  first.clear();
  EXPECT_EQ(first.ask("What is it?", greedy()).ids, expected.ids);

  shared_options.memory_budget = model.weight_bytes;
  EXPECT_THROW(Engine{shared_options}, Error);
}

TEST_F(SessionBudget, SharesOfFramesAndPixelsAreLookedAt) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 40);
  const auto look = [&](double frames, double pixels) {
    SessionOptions options;
    options.frame_share = frames;
    options.pixel_share = pixels;
    Session session(engine_, options);
    const InputInfo input = session.add(film, every());
    EXPECT_EQ(session.ask("What?", greedy(1)).visual_tokens, input.tokens);
    return input;
  };
  const InputInfo whole = look(1, 1);
  ASSERT_EQ(whole.times.size(), 40u);
  const InputInfo half = look(0.5, 1);
  EXPECT_EQ(half.times.size(), 20u);
  EXPECT_EQ(half.times.front(), 0);
  EXPECT_EQ(half.times.back(), 39);
  EXPECT_EQ(half.width, whole.width);
  EXPECT_EQ(half.tokens * 2, whole.tokens);
  EXPECT_EQ(look(1e-9, 1).times.size(), 2u);
  const InputInfo small = look(1, 0.5);
  EXPECT_EQ(small.times.size(), 40u);
  EXPECT_LE(2 * small.width * small.height, whole.width * whole.height);
  for (const double share : {0.0, -1.0, 1.5}) {
    SessionOptions wrong;
    wrong.frame_share = share;
    EXPECT_THROW(Session(engine_, wrong), Error) << share;
  }
}

TEST_F(SessionBudget, FewerFramesAreSpreadOverTheWholeVideo) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 40);
  Session whole(engine_);
  whole.add(film, every());
  const Forecast cost = whole.forecast("What?");
  SessionOptions options;
  options.max_context = cost.tokens - cost.visual_tokens / 2;
  Session session(engine_, options);
  session.add(film, every());
  const Answer answer = session.ask("What?", greedy(2));
  EXPECT_LE(answer.prompt_tokens, options.max_context);
  EXPECT_EQ(answer.warnings.size(), 1u);
  const std::vector<double> times = session.inputs().at(0).times;
  ASSERT_GE(times.size(), 4u);
  EXPECT_LT(times.size(), 21u);
  EXPECT_EQ(times.front(), 0);
  EXPECT_EQ(times.back(), 39);
  for (size_t i = 1; i < times.size(); ++i) EXPECT_GT(times[i], times[i - 1]);
}

TEST_F(SessionBudget, SubtitlesStandBetweenTheirFrames) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 12);
  std::ofstream(directory_.file("film.srt")) << "1\n00:00:05,500 --> 00:00:07,000\nHello there\n\n"
                                                "2\n00:00:05,900 --> 00:00:06,000\nagain\n";
  InputOptions spoken = every();
  spoken.subtitles = directory_.file("film.srt");
  // The same by hand: two films with the words between them.
  const auto part = [&](const char* name, int from) {
    const std::string path = directory_.file(name);
    std::filesystem::create_directory(path);
    for (int i = from; i < from + 6; ++i) {
      const std::string picture = "/" + std::to_string(1000 + i) + ".ppm";
      std::filesystem::copy_file(film + picture, path + picture);
    }
    return path;
  };
  Session by_hand(engine_);
  by_hand.add(part("one", 0), every());
  by_hand.add(part("two", 6), every());
  const Answer expected =
      by_hand.ask({{}, {"[0:05] Hello there\n[0:05] again\n"}, {}, {"What is it?"}}, greedy());
  for (const int64_t frames : {2, 4, 16}) {
    SessionOptions options;
    options.frames_per_group = frames;
    Session session(engine_, options);
    session.add(film, spoken);
    const Answer answer = session.ask("What is it?", greedy());
    EXPECT_EQ(answer.ids, expected.ids) << frames;
    EXPECT_EQ(answer.prompt_tokens, expected.prompt_tokens);
    EXPECT_EQ(answer.frames, 12);
    // A second question finds all of it in memory.
    EXPECT_EQ(session.ask("Why?", greedy()).visual_tokens, 0);
  }
}

TEST_F(SessionBudget, SessionsOnManyThreadsShareOneEngine) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 8);
  const auto talk = [&](bool looks) {
    Session session(engine_);
    if (looks) session.add(film, every());
    std::vector<std::vector<int32_t>> ids;
    for (const char* question : {"What is it?", "Why?"}) {
      ids.push_back(session.ask(question, greedy()).ids);
    }
    return ids;
  };
  const auto seen = talk(true), told = talk(false);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] { EXPECT_EQ(talk(i % 2 == 0), i % 2 == 0 ? seen : told); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GpuBudget, MemoryOfTheDeviceThatRunsOutMidwayLeavesTheSessionUsable) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no GPU";
  KINORA_FRESH_RANDOM(random);
  const testing::TempDir directory;
  const std::string film = testing::write_film(directory.file("film"), random, 24);
  const Engine engine(
      {.model = std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_tied_new", .device = "cuda"});
  const Device device = EngineAccess::state(engine)->context.device;
  InputOptions every;
  every.frames = FrameChoice::all();
  AnswerOptions greedy;
  greedy.temperature = 0;
  greedy.max_tokens = 6;
  greedy.ignore_stop_tokens = true;
  Session plain(engine);
  plain.add(film, every);
  const Answer expected = plain.ask("What is it?", greedy);

  bool limited = false;
  SessionOptions options;
  options.frames_per_group = 2;
  options.max_group_tokens = 1;
  options.progress = [&](std::string_view stage, int64_t, int64_t) {
    if (stage != "prefill" || std::exchange(limited, true)) return;
    set_gpu_budget(device, gpu_memory(device).used + 1);
  };
  Session session(engine, options);
  session.add(film, every);
  try {
    session.ask("What is it?", greedy);
    ADD_FAILURE() << "the budget of the device was passed";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::resource) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
  }
  set_gpu_budget(device, 0);
  EXPECT_EQ(session.ask("What is it?", greedy).ids, expected.ids);
}

}  // namespace
}  // namespace kinora
