// Conversations on many threads that share one decoder: each gets what it gets alone, whatever
// happens to the others. The model is one whose every row depends on all rows before it.
#include "engine/scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <mutex>
#include <set>
#include <thread>

#include "base/error.h"
#include "generate/draft_case.h"
#include "generate/ngram.h"
#include "generate/path_model.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::Outcome;
using testing::random_ids;
using testing::Talk;

constexpr int64_t vocabulary = 12;
constexpr int64_t endless = 1'000'000'000;

// Whether it came true before a minute was over.
template <typename Condition>
bool comes_true(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

class SchedulerTest : public ::testing::Test {
 protected:
  static GenerateOptions options(int64_t tokens) {
    GenerateOptions options;
    options.max_tokens = tokens;
    options.ignore_stop_tokens = true;
    return options;
  }
  std::unique_ptr<DecoderRunner> runner() const { return model_.decoder().runner(context_); }

  // The answer to what was read, through the scheduler.
  Outcome answer(Talk& talk, const Tensor& hidden, const GenerateOptions& options,
                 std::unique_ptr<Drafter> drafter = nullptr,
                 const std::function<void()>& on_piece = nullptr) {
    Generation generation(talk.state(), options, std::move(drafter));
    std::string streamed;
    const auto asking = std::this_thread::get_id();
    scheduler_.run(generation, hidden, options.cancel, [&](std::string_view piece) {
      EXPECT_EQ(std::this_thread::get_id(), asking);
      streamed += piece;
      if (on_piece) on_piece();
    });
    return talk.outcome(generation.result(), streamed);
  }

  ThreadPool pool_{1};
  Context context_{pool_};
  testing::PathModel model_{vocabulary};
  Scheduler scheduler_{context_, model_.decoder()};
};

TEST_F(SchedulerTest, ASessionAloneNeverWaits) {
  KINORA_FRESH_RANDOM(random);
  const auto alone = runner();
  Talk talk(context_, model_), twin(context_, model_);
  Scheduler::Report expected;
  for (int turn = 1; turn <= 5; ++turn) {
    const auto question = random_ids(random, 1 + random.below(20), vocabulary);
    const GenerateOptions wanted = options(1 + random.below(30));
    const Tensor hidden = scheduler_.prefill(talk.read(question)).hidden;
    const Outcome actual = answer(talk, hidden, wanted, std::make_unique<NgramDrafter>());
    expect_same(actual, twin.ask(*alone, question, wanted));
    ++expected.prefills;
    expected.rounds += 1 + actual.generated.draft.passes;  // the first one only starts the answer
    const Scheduler::Report report = scheduler_.report();
    EXPECT_EQ(report.prefills, expected.prefills);
    EXPECT_EQ(report.rounds, expected.rounds);
    EXPECT_EQ(report.steps, expected.rounds);
    EXPECT_EQ(report.largest, 1);
    EXPECT_EQ(report.waiting, 0);
  }
}

// More of them than one round takes.
TEST_F(SchedulerTest, AnswersThatWaitTogetherStepTogether) {
  KINORA_FRESH_RANDOM(random);
  constexpr int64_t count = 66;
  std::vector<std::unique_ptr<Talk>> talks;
  std::vector<Tensor> hidden;
  std::vector<Outcome> expected;
  const auto alone = runner();
  for (int64_t i = 0; i < count; ++i) {
    const auto question = random_ids(random, 1 + random.below(20), vocabulary);
    expected.push_back(Talk(context_, model_).ask(*alone, question, options(20 + i % 5)));
    talks.push_back(std::make_unique<Talk>(context_, model_));
    hidden.push_back(alone->forward(talks.back()->read(question)).hidden);
  }
  // The first step goes on when all are there.
  std::atomic<bool> gathered = false;
  model_.path().on_batch = [&](std::span<const Sequence>) {
    if (gathered) return;
    EXPECT_TRUE(comes_true([&] { return scheduler_.report().waiting == count; }));
    gathered = true;
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < talks.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto tokens = static_cast<int64_t>(expected[i].generated.ids.size());
      expect_same(answer(*talks[i], hidden[i], options(tokens)), expected[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Scheduler::Report report = scheduler_.report();
  EXPECT_EQ(report.largest, 64);
  EXPECT_EQ(report.waiting, 0);
  int64_t steps = 0;
  for (const Outcome& outcome : expected) steps += 1 + outcome.generated.draft.passes;
  EXPECT_EQ(report.steps, steps);
  EXPECT_LT(report.rounds, steps / 8);
}

// Some threads want every piece of their answers, the others only the first token and the end.
TEST_F(SchedulerTest, WholeAnswersEqualStreamedOnes) {
  KINORA_FRESH_RANDOM(random);
  const auto alone = runner();
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    const auto question = random_ids(random, 1 + random.below(20), vocabulary);
    const GenerateOptions wanted = options(1 + random.below(40));
    const Outcome expected = Talk(context_, model_).ask(*alone, question, wanted);
    threads.emplace_back([this, i, question, wanted, expected] {
      Talk talk(context_, model_);
      const Tensor hidden = scheduler_.prefill(talk.read(question)).hidden;
      if (i % 2 == 0) return expect_same(answer(talk, hidden, wanted), expected);
      Generation generation(talk.state(), wanted, nullptr);
      int firsts = 0;
      scheduler_.run(generation, hidden, wanted.cancel, nullptr, [&] { ++firsts; });
      EXPECT_EQ(firsts, 1);
      const Generated& whole = generation.result();
      expect_same(talk.outcome(whole, whole.text), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(scheduler_.report().waiting, 0);
}

TEST_F(SchedulerTest, AnAnswerGetsStepsBetweenTheGroupsOfALongPrefill) {
  KINORA_FRESH_RANDOM(random);
  constexpr size_t groups = 20;
  std::vector<int64_t> steps_before;  // each group
  model_.path().on_batch = [&](std::span<const Sequence> batch) {
    if (batch[0].count() == 1) return;  // a step
    steps_before.push_back(scheduler_.report().steps);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  Talk answering(context_, model_), reading(context_, model_), twin(context_, model_);
  const auto question = random_ids(random, 1, vocabulary);
  const Tensor hidden = scheduler_.prefill(answering.read(question)).hidden;
  GenerateOptions forever = options(endless);
  std::thread answers([&] {
    try {
      answer(answering, hidden, forever);
      ADD_FAILURE() << "the answer ended";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::cancelled) << error.what();
    }
  });
  EXPECT_TRUE(comes_true([&] { return scheduler_.report().rounds > 0; }));
  std::vector<int32_t> text;
  Tensor last;
  for (size_t i = 0; i < groups; ++i) {
    const auto ids = random_ids(random, 2 + random.below(30), vocabulary);
    text.insert(text.end(), ids.begin(), ids.end());
    last = scheduler_.prefill(reading.read(ids)).hidden;
  }
  forever.cancel.cancel();
  answers.join();
  ASSERT_EQ(steps_before.size(), groups);
  for (size_t i = 1; i < groups; ++i) {
    EXPECT_GT(steps_before[i], steps_before[i - 1]) << "group " << i;
  }
  // And reading was not disturbed by it.
  model_.path().on_batch = nullptr;
  EXPECT_EQ(answer(reading, last, options(9)).generated.ids,
            twin.ask(*runner(), text, options(9)).generated.ids);
  EXPECT_EQ(scheduler_.report().prefills, static_cast<int64_t>(groups) + 1);
}

TEST_F(SchedulerTest, GroupsKeepTheirOrderAndCancelledOnesLeave) {
  constexpr int32_t count = 6, given_up = 3;
  std::vector<int32_t> order;
  std::atomic<bool> released = false;
  model_.path().on_batch = [&](std::span<const Sequence> batch) {
    order.push_back(batch[0].ids[0]);
    if (batch[0].ids[0] != 0) return;
    EXPECT_TRUE(comes_true([&] { return released.load(); }));
  };
  std::vector<std::unique_ptr<Talk>> talks;
  std::vector<CancelToken> cancels(count);
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < count; ++i) {
    talks.push_back(std::make_unique<Talk>(context_, model_));
    threads.emplace_back([&, i, talk = talks.back().get()] {
      const std::vector<int32_t> ids{i, 1};
      try {
        scheduler_.prefill(talk->read(ids, cancels[static_cast<size_t>(i)]));
        EXPECT_NE(i, given_up);
        EXPECT_EQ(talk->memory().token_count(), 2);
      } catch (const Error& error) {
        EXPECT_EQ(i, given_up) << error.what();
        EXPECT_EQ(error.kind(), ErrorKind::cancelled) << error.what();
        EXPECT_EQ(talk->memory().token_count(), 0);
      }
    });
    EXPECT_TRUE(comes_true([&] { return scheduler_.report().waiting == i + 1; }));
  }
  // It need not wait for the one that is under way.
  cancels[given_up].cancel();
  threads[given_up].join();
  EXPECT_FALSE(released);
  EXPECT_EQ(scheduler_.report().waiting, count - 1);
  talks[given_up].reset();
  released = true;
  for (std::thread& thread : threads) {
    if (thread.joinable()) thread.join();
  }
  EXPECT_EQ(order, (std::vector<int32_t>{0, 1, 2, 4, 5}));
  EXPECT_EQ(scheduler_.report().waiting, 0);
}

TEST_F(SchedulerTest, WhatFailsForAllIsToldToAllAndTheNextRoundIsFine) {
  KINORA_FRESH_RANDOM(random);
  constexpr int64_t count = 5;
  const auto question = random_ids(random, 4, vocabulary);
  const Outcome expected = Talk(context_, model_).ask(*runner(), question, options(20));
  std::atomic<bool> gathered = false, failed = false;
  model_.path().on_batch = [&](std::span<const Sequence> batch) {
    if (batch[0].count() > 1) return;
    if (!gathered) {
      EXPECT_TRUE(comes_true([&] { return scheduler_.report().waiting == count; }));
      gathered = true;
    }
    if (batch.size() == count && !failed.exchange(true)) {
      throw Error(ErrorKind::resource, "the device has no memory left");
    }
  };
  std::atomic<int64_t> failures = 0;
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < count; ++i) {
    threads.emplace_back([&] {
      Talk talk(context_, model_);
      const Talk::Point before = talk.here();
      const Tensor hidden = runner()->forward(talk.read(question)).hidden;
      try {
        answer(talk, hidden, options(20));
        ADD_FAILURE() << "it was not told";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::resource) << error.what();
        ++failures;
      }
      talk.go_back(before);
      const Tensor again = scheduler_.prefill(talk.read(question)).hidden;
      expect_same(answer(talk, again, options(20)), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, count);
  EXPECT_EQ(scheduler_.report().waiting, 0);
}

// Conversations with everything that can happen to them at once.
class BusyScheduler : public SchedulerTest {
 protected:
  enum class Mishap { cancelled, thrown, broken };

  // An answer without an end, ended by a mishap after a few pieces.
  void meet(Mishap mishap, Talk& talk, std::span<const int32_t> question, int64_t moment) {
    const Talk::Point before = talk.here();
    GenerateOptions forever = options(endless);
    int64_t pieces = 0;
    try {
      const Tensor hidden = scheduler_.prefill(talk.read(question, forever.cancel)).hidden;
      answer(talk, hidden, forever, nullptr, [&] {
        if (++pieces != moment) return;
        if (mishap == Mishap::cancelled) forever.cancel.cancel();
        if (mishap == Mishap::thrown) throw Error(ErrorKind::usage, "enough");
        if (mishap == Mishap::broken) set_broken(talk, true);
      });
      ADD_FAILURE() << "the answer ended";
    } catch (const Error& error) {
      const ErrorKind kinds[] = {ErrorKind::cancelled, ErrorKind::usage, ErrorKind::bad_input};
      EXPECT_EQ(error.kind(), kinds[static_cast<size_t>(mishap)]) << error.what();
    }
    // Its last step is whole.
    EXPECT_EQ(talk.memory().token_count(), static_cast<int64_t>(talk.history().size()));
    EXPECT_EQ(talk.memory().token_count(), talk.next_position());
    set_broken(talk, false);
    talk.go_back(before);
  }
  void set_broken(const Talk& talk, bool broken) {
    const std::lock_guard lock(mutex_);
    if (broken) broken_.insert(&talk.memory());
    if (!broken) broken_.erase(&talk.memory());
  }

  void converse(uint64_t seed) {
    Random random(seed);
    const auto alone = runner();
    auto talk = std::make_unique<Talk>(context_, model_);
    auto twin = std::make_unique<Talk>(context_, model_);
    for (int turn = 0; turn < 12; ++turn) {
      const auto question = random_ids(random, 1 + random.below(40), vocabulary);
      if (random.uniform() < 0.4) {
        meet(static_cast<Mishap>(random.below(3)), *talk, question, 1 + random.below(20));
        if (random.uniform() < 0.7) continue;
        // Sometimes that was its end.
        talk = std::make_unique<Talk>(context_, model_);
        twin = std::make_unique<Talk>(context_, model_);
      }
      GenerateOptions wanted = options(1 + random.below(40));
      if (random.uniform() < 0.5) wanted.sampling.temperature = random.uniform(0.5, 2);
      wanted.sampling.seed = random.next();
      std::unique_ptr<Drafter> drafter;
      if (turn % 3 == 1) drafter = std::make_unique<NgramDrafter>();
      if (turn % 3 == 2) {
        drafter = std::make_unique<testing::ScriptedDrafter>(
            [own = Random(random.next())](auto, int64_t, int64_t deepest) mutable {
              return testing::random_tree(own, {}, 1 + own.below(20), deepest, vocabulary);
            });
      }
      Tensor hidden;
      for (auto next = question.begin(); next != question.end();) {  // in groups
        const auto end = next + std::min<int64_t>(question.end() - next, 1 + random.below(15));
        hidden = scheduler_.prefill(talk->read({next, end})).hidden;
        next = end;
      }
      expect_same(answer(*talk, hidden, wanted, std::move(drafter)),
                  twin->ask(*alone, question, wanted));
    }
  }

  std::mutex mutex_;
  std::set<const Memory*> broken_;
};

TEST_F(BusyScheduler, EveryAnswerIsAsAlone) {
  KINORA_FRESH_RANDOM(random);
  model_.path().on_sequence = [&](const Sequence& sequence) {
    const std::lock_guard lock(mutex_);
    if (broken_.contains(sequence.memory)) throw Error(ErrorKind::bad_input, "it is broken");
  };
  constexpr int count = 16;
  std::latch start(count);
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([this, &start, random_seed, seed = random.next()] {
      SCOPED_TRACE("KINORA_TEST_SEED=" + std::to_string(random_seed));
      start.arrive_and_wait();
      converse(seed);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(scheduler_.report().waiting, 0);
}

}  // namespace
}  // namespace kinora
