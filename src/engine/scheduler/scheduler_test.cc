// Conversations on many threads that share one decoder: each gets what it gets alone, whatever
// happens to the others. The model is one whose every row depends on all rows before it.
#include "engine/scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
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
  explicit SchedulerTest(Scheduler::Clock clock = nullptr)
      : scheduler_(context_, model_.decoder(), std::move(clock)) {}

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
  Scheduler scheduler_;
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
    const Outcome actual =
        answer(talk, hidden, wanted, std::make_unique<NgramDrafter>(NgramOptions{.adapt = false}));
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

// Time that passes only in rounds: a group takes ten seconds, a step one.
class CountedTime : public SchedulerTest {
 protected:
  CountedTime() : SchedulerTest([this] { return now_.load(); }) {
    model_.path().on_batch = [this](std::span<const Sequence> batch) {
      // However slow threads are, all of them hand in their next before a round ends.
      EXPECT_TRUE(comes_true([&] { return scheduler_.report().waiting >= alive_; }));
      Done done;
      const bool step = batch[0].count() == 1;
      if (!step) done.group = batch[0].memory;
      for (const Sequence& sequence : batch) {
        if (step) done.steps.push_back(sequence.memory);
      }
      done_.push_back(std::move(done));
      if (during_) during_(batch);
      now_ = now_ + (step ? 1 : 10);
    };
  }

  // A conversation that is about to answer.
  struct Asked {
    std::unique_ptr<Talk> talk;
    Tensor hidden;
    const Memory* memory = nullptr;
  };
  Asked asked() {
    Asked made{std::make_unique<Talk>(context_, model_), {}, nullptr};
    const std::vector<int32_t> question{1, 2};
    const auto alone = quiet_.decoder().runner(context_);
    made.hidden = alone->forward(made.talk->read(question)).hidden;
    made.memory = &made.talk->memory();
    return made;
  }
  // Answers until it is cancelled, which it must be.
  std::thread endless_answer(Asked& who, const GenerateOptions& forever) {
    return std::thread([this, &who, forever] {
      try {
        answer(*who.talk, who.hidden, forever);
        ADD_FAILURE() << "the answer ended";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::cancelled) << error.what();
      }
    });
  }
  // Reads so many groups of three tokens; `last` is what the last one gives.
  std::thread reader(Talk& talk, size_t groups, Tensor* last) {
    return std::thread([this, &talk, groups, last] {
      for (size_t i = 0; i < groups; ++i) *last = scheduler_.prefill(talk.read(group_)).hidden;
      --alive_;
    });
  }

  // A round with a forward pass: of a group, or steps.
  struct Done {
    const Memory* group = nullptr;
    std::vector<const Memory*> steps = {};
  };
  std::vector<const Memory*> groups() const {
    std::vector<const Memory*> found;
    for (const Done& done : done_) {
      if (done.group != nullptr) found.push_back(done.group);
    }
    return found;
  }
  // Between one group and the next.
  std::vector<int64_t> rounds_of_steps() const {
    std::vector<int64_t> between;
    for (const Done& done : done_) {
      if (done.group != nullptr) {
        between.push_back(0);
      } else if (!between.empty()) {
        ++between.back();
      }
    }
    if (!between.empty()) between.pop_back();  // what came after the last one
    return between;
  }

  const std::vector<int32_t> group_{3, 1, 4};
  const testing::PathModel quiet_{vocabulary};  // the same, for what is not recorded
  std::atomic<double> now_ = 0;
  std::atomic<int64_t> alive_ = 0;  // tasks that will always be handed in
  std::vector<Done> done_;          // in order
  std::function<void(std::span<const Sequence>)> during_;
};

TEST_F(CountedTime, AnAnswerGetsHalfOfTheTimeOfALongPrefill) {
  constexpr size_t count = 20;
  Asked answering = asked();
  const GenerateOptions forever = options(endless);
  std::thread answers = endless_answer(answering, forever);
  EXPECT_TRUE(comes_true([&] { return scheduler_.report().rounds > 3; }));
  Talk reading(context_, model_);
  alive_ = 2;
  Tensor last;
  reader(reading, count, &last).join();
  forever.cancel.cancel();
  answers.join();
  EXPECT_EQ(rounds_of_steps(), std::vector<int64_t>(count - 1, 10));
  // And reading was not disturbed by it.
  alive_ = 0;
  std::vector<int32_t> text;
  for (size_t i = 0; i < count; ++i) text.insert(text.end(), group_.begin(), group_.end());
  EXPECT_EQ(answer(reading, last, options(9)).generated.ids,
            Talk(context_, model_)
                .ask(*quiet_.decoder().runner(context_), text, options(9))
                .generated.ids);
  EXPECT_EQ(scheduler_.report().prefills, static_cast<int64_t>(count));
}

// Groups of one session never come one after the other while another one waits, and an answer does
// not wait for more than one of them.
TEST_F(CountedTime, TwoPrefillsTakeTurns) {
  constexpr size_t count = 12;
  Asked answering = asked();
  const GenerateOptions forever = options(endless);
  std::thread answers = endless_answer(answering, forever);
  EXPECT_TRUE(comes_true([&] { return scheduler_.report().rounds > 3; }));
  Talk first(context_, model_), second(context_, model_);
  alive_ = 3;
  Tensor last[2];
  std::thread one = reader(first, count, &last[0]), other = reader(second, count, &last[1]);
  one.join();
  other.join();
  forever.cancel.cancel();
  answers.join();
  const std::vector<const Memory*> order = groups();
  ASSERT_EQ(order.size(), 2 * count);
  for (size_t i = 1; i < order.size(); ++i) EXPECT_NE(order[i], order[i - 1]) << "group " << i;
  EXPECT_EQ(rounds_of_steps(), std::vector<int64_t>(2 * count - 1, 10));
}

// Of more answers than a round takes, each has its turn in as many rounds as all of them fill.
TEST_F(CountedTime, ManyAnswersStepInTurn) {
  constexpr int64_t count = 130, full = 64, rounds = (count + full - 1) / full;
  alive_ = count;
  std::vector<Asked> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(asked());
  std::vector<std::thread> threads;
  for (Asked& one : all) {
    threads.emplace_back([&] {
      answer(*one.talk, one.hidden, options(12));
      --alive_;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Asked& one : all) {
    std::vector<size_t> turns;
    for (size_t i = 0; i < done_.size(); ++i) {
      const std::vector<const Memory*>& steps = done_[i].steps;
      EXPECT_LE(std::ssize(steps), full);
      if (std::find(steps.begin(), steps.end(), one.memory) != steps.end()) turns.push_back(i);
    }
    ASSERT_EQ(turns.size(), 11u);  // the first token comes from the question
    for (size_t i = 1; i < turns.size(); ++i) {
      EXPECT_LE(turns[i] - turns[i - 1], static_cast<size_t>(rounds));
    }
  }
}

// Whoever is cancelled takes part in no round after the one under way, and the others go on.
TEST_F(CountedTime, WhatIsCancelledRunsNoFurther) {
  constexpr size_t count = 3;
  std::vector<Asked> all;
  std::vector<GenerateOptions> forever(count, options(endless));
  for (GenerateOptions& one : forever) one.cancel = CancelToken();
  Talk reading(context_, model_);
  CancelToken stop_reading;
  std::atomic<size_t> stopped = 0;  // rounds until then
  size_t groups_read = 0;
  for (size_t i = 0; i < count; ++i) all.push_back(asked());
  during_ = [&](std::span<const Sequence> batch) {
    const auto part = [&](const Memory& memory) {
      return std::any_of(batch.begin(), batch.end(),
                         [&](const Sequence& one) { return one.memory == &memory; });
    };
    if (stopped == 0 && done_.size() > 30 && part(*all[0].memory)) {
      forever[0].cancel.cancel();
      stopped = done_.size();
    }
    if (part(reading.memory()) && ++groups_read == 3) stop_reading.cancel();
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) threads.push_back(endless_answer(all[i], forever[i]));
  std::thread reads([&] {
    EXPECT_THROW(
        {
          while (true) {
            scheduler_.prefill(reading.read(group_, stop_reading));
          }
        },
        Error);
  });
  reads.join();
  EXPECT_EQ(groups_read, 3u);
  EXPECT_EQ(reading.memory().token_count(), 2 * 3);  // that group left nothing
  threads[0].join();
  const int64_t ended = scheduler_.report().rounds;
  EXPECT_TRUE(comes_true([&] { return scheduler_.report().rounds > ended + 5; }));
  for (size_t i = 1; i < count; ++i) forever[i].cancel.cancel();
  for (size_t i = 1; i < count; ++i) threads[i].join();
  ASSERT_GT(stopped, 0u);
  for (size_t i = stopped; i < done_.size(); ++i) {
    const std::vector<const Memory*>& steps = done_[i].steps;
    EXPECT_EQ(std::find(steps.begin(), steps.end(), all[0].memory), steps.end()) << "round " << i;
  }
  EXPECT_GT(done_.size(), stopped + 5);
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
      if (turn % 3 == 1) drafter = std::make_unique<NgramDrafter>(NgramOptions{.adapt = false});
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
