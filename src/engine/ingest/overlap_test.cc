// Stages that run at the same time: the same answer as one after the other, and nothing left behind
// wherever they are stopped.
#include <gtest/gtest.h>
#include <kinora/session.h>
#include <malloc.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <thread>

#include "base/error.h"
#include "base/gpu.h"
#include "engine/ingest/bounded_queue.h"
#include "support/film.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

int64_t entries(const char* directory) {
  int64_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) ++count;
  return count;
}

// The threads of this process, once those that have ended are gone: a thread can be joined a moment
// before the system forgets it.
int64_t threads_left(int64_t wanted) {
  int64_t count = entries("/proc/self/task");
  for (int wait = 0; wait < 1000 && count > wanted; ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    count = entries("/proc/self/task");
  }
  return count;
}

int64_t allocated_bytes() {
  const auto info = ::mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

// The CPU and every GPU.
std::vector<std::string> devices() {
  std::vector<std::string> names{"cpu"};
  for (size_t i = 0; i < cuda_devices().size(); ++i) names.push_back("cuda:" + std::to_string(i));
  return names;
}

class Overlap : public ::testing::TestWithParam<std::string> {
 protected:
  const testing::TempDir directory_;
  const Engine engine_{{.model = std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_tied_new",
                        .device = GetParam(),
                        .threads = 2,
                        .gpu_exact = true}};

  int64_t gpu_bytes() const {
    const Device device = parse_device(GetParam());
    return device.is_cpu() ? 0 : gpu_memory(device).used;
  }
  static AnswerOptions greedy() {
    AnswerOptions options;
    options.temperature = 0;
    options.max_tokens = 8;
    options.ignore_stop_tokens = true;
    return options;
  }

  // Counts what happens on the way to an answer and cancels it at the moment that is asked for.
  struct Interrupter {
    std::atomic<int64_t> events = 0, stop_at = -1;
    CancelToken token;

    void happened() {
      if (++events == stop_at) token.cancel();
    }
    // In small groups, so that there is much to count.
    SessionOptions session_options() {
      SessionOptions options;
      options.frames_per_group = 2;
      options.max_group_tokens = 20;
      options.progress = [this](std::string_view, int64_t, int64_t) { happened(); };
      return options;
    }
    void begin() {
      token = CancelToken();
      events = 0;
    }
    Answer finish(Session& session, const char* question) {
      AnswerOptions options = greedy();
      options.cancel = token;
      return session.ask(question, options, [this](std::string_view) { happened(); });
    }
    Answer ask(Session& session, const char* question) {
      begin();
      return finish(session, question);
    }
  };
  static Session& add_all(Session& session, const std::string& film) {
    InputOptions every;
    every.frames = FrameChoice::all();
    session.add(film, every);
    return session;
  }
};

TEST_P(Overlap, GivesTheSameTokensAsOneStageAfterTheOther) {
  KINORA_FRESH_RANDOM(random);
  const std::string first = testing::write_film(directory_.file("first"), random, 11);
  const std::string second = testing::write_film(directory_.file("second"), random, 6, 40, 96);
  const auto answer = [&](bool overlap, int decode_threads) {
    SessionOptions options;
    options.overlap = overlap;
    options.decode_threads = decode_threads;
    options.frames_per_group = 2 + random.below(5);
    Session session(engine_, options);
    InputOptions every;
    every.frames = FrameChoice::all();
    session.add(first, every);
    session.add(second, every);
    return session.ask("What is it?", greedy());
  };
  const Answer expected = answer(false, 1);
  EXPECT_EQ(expected.frames, 17);
  for (const int threads : {0, 1, 3}) {
    const Answer actual = answer(true, threads);
    EXPECT_EQ(actual.ids, expected.ids);
    EXPECT_EQ(actual.frames, 17);
    EXPECT_EQ(actual.visual_tokens, expected.visual_tokens);
    EXPECT_EQ(actual.row_bytes, expected.row_bytes);
  }
}

TEST_P(Overlap, TellsWhatWasDoneWhen) {
  KINORA_FRESH_RANDOM(random);
  SessionOptions options;
  options.frames_per_group = 4;
  options.max_group_tokens = 1;
  Session session(engine_, options);
  InputOptions every;
  every.frames = FrameChoice::all();
  session.add(testing::write_film(directory_.file("film"), random, 12), every);
  const Answer answer = session.ask("What is it?", greedy());
  std::map<std::string, int> stages;
  for (const Span& span : answer.spans) {
    const std::string stage = span.name.substr(0, span.name.find(' '));
    EXPECT_TRUE(span.lane.starts_with(stage)) << span.lane << ": " << span.name;
    EXPECT_LE(span.begin, span.end);
    EXPECT_GE(span.begin, 0);
    EXPECT_LE(span.end, answer.timings.total);
    ++stages[stage];
  }
  EXPECT_GE(stages["decode"], 1);
  EXPECT_EQ(stages["vision"], 3);
  EXPECT_GE(stages["prefill"], 3);
  EXPECT_EQ(stages["generate"], 1);
}

TEST_P(Overlap, CancellingAnywhereLeavesNothingBehind) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 12);
  Interrupter interrupter;
  const SessionOptions options = interrupter.session_options();
  Session session(engine_, options);
  const Answer expected = interrupter.ask(add_all(session, film), "What is it?");
  session.clear();
  const int64_t all_events = interrupter.events;
  const int64_t files = entries("/proc/self/fd");
  const int64_t here = entries(directory_.file("film").c_str());

  int cancelled = 0;
  int64_t threads = 0, bytes = 0, bytes_there = 0;
  for (int round = 0; round < 200; ++round) {
    if (round == 21) bytes_there = gpu_bytes();
    Session fresh(engine_, options);
    add_all(fresh, film);
    interrupter.begin();
    // Half of them at a moment of the work, half at a moment of the clock.
    const bool by_clock = round % 2 == 1;
    interrupter.stop_at = by_clock ? -1 : 1 + random.below(all_events);
    std::thread clock;
    if (by_clock) {
      clock = std::thread([cancel = interrupter.token, after = random.below(30'000)] {
        std::this_thread::sleep_for(std::chrono::microseconds(after));
        cancel.cancel();
      });
    }
    try {
      interrupter.finish(fresh, "What is it?");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::cancelled) << error.what();
      ++cancelled;
    }
    if (clock.joinable()) clock.join();
    EXPECT_EQ(entries("/proc/self/fd"), files) << "round " << round;
    if (round == 20) {  // by now every pool has its threads and every cache its size
      threads = entries("/proc/self/task");
      bytes = allocated_bytes();
    }
    if (round > 20) {
      EXPECT_LE(threads_left(threads), threads) << "round " << round;
    }
  }
  EXPECT_GT(cancelled, 50);
  EXPECT_LT(allocated_bytes() - bytes, 1 << 20);
  EXPECT_EQ(gpu_bytes(), bytes_there);
  EXPECT_EQ(entries(directory_.file("film").c_str()), here);

  interrupter.stop_at = -1;
  const Answer again = interrupter.ask(session, "What is it?");
  EXPECT_EQ(again.ids, expected.ids);
  EXPECT_EQ(again.row_bytes, expected.row_bytes);
}

TEST_P(Overlap, ACancelledQuestionAboutAVideoCanBeAskedAgain) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 12);
  Interrupter interrupter;
  const SessionOptions options = interrupter.session_options();
  Session untouched(engine_, options);
  const Answer first = interrupter.ask(add_all(untouched, film), "What is it?");
  const int64_t all_events = interrupter.events;
  const Answer second = interrupter.ask(untouched, "And then?");

  for (int round = 0; round < 10; ++round) {
    Session session(engine_, options);
    add_all(session, film);
    for (int times = 0; times < 3; ++times) {
      interrupter.stop_at = 1 + random.below(all_events - 1);
      try {
        interrupter.ask(session, "Something else, which is never answered?");
        session.clear();
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::cancelled) << error.what();
      }
    }
    interrupter.stop_at = -1;
    EXPECT_EQ(interrupter.ask(session, "What is it?").ids, first.ids) << "round " << round;
    interrupter.stop_at = 1;
    EXPECT_THROW(interrupter.ask(session, "Why?"), Error);
    interrupter.stop_at = -1;
    const Answer answer = interrupter.ask(session, "And then?");
    EXPECT_EQ(answer.ids, second.ids) << "round " << round;
    EXPECT_EQ(answer.row_bytes, second.row_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Overlap, ::testing::ValuesIn(devices()), [](const auto& test) {
  return test.param.substr(0, test.param.find(':')) + std::to_string(test.index);
});

TEST(BoundedQueue, HoldsBackTheProducerAndKeepsTheOrder) {
  BoundedQueue<int> queue(2);
  std::atomic<int> pushed = 0;
  std::thread producer([&] {
    for (int i = 0; i < 100; ++i) {
      if (!queue.push(i)) return;
      ++pushed;
    }
    queue.finish(std::make_exception_ptr(Error(ErrorKind::bad_input, "the end")));
  });
  const CancelToken never;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(queue.pop(never), i);
    EXPECT_LE(pushed, i + 1 + 2 + 1);
  }
  EXPECT_THROW(queue.pop(never), Error);
  producer.join();
}

TEST(BoundedQueue, StoppingWakesBothSides) {
  BoundedQueue<int> full(1), empty(1);
  EXPECT_TRUE(full.push(1));
  std::thread producer([&] { EXPECT_FALSE(full.push(2)); });
  std::thread consumer([&] { EXPECT_EQ(empty.pop({}), std::nullopt); });
  full.stop();
  empty.stop();
  producer.join();
  consumer.join();
  CancelToken cancelled;
  cancelled.cancel();
  BoundedQueue<int> waiting(1);
  EXPECT_THROW(waiting.pop(cancelled), Error);
}

}  // namespace
}  // namespace kinora
