// Sequences of several sessions in one forward, against each of them alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "model/decoder/batch_case.h"
#include "model/decoder/wrapped_memory.h"
#include "ops/gather.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::BatchSession;
using testing::sanitized;

class BatchTest : public testing::BatchCase {};

// Prefill groups and decoding steps of sessions that are anywhere in their text.
TEST_P(BatchTest, RaggedBatchesGiveWhatEachGivesAlone) {
  KINORA_FRESH_RANDOM(random);
  const std::vector<int64_t> sizes = {1, 7, 64, 130, 1, 1};
  const size_t rounds = sanitized() ? 2 : sizes.size();
  std::vector<BatchSession> sessions, twins;
  for (size_t i = 0; i < sizes.size(); ++i) {
    sessions.push_back(session(random, 300));
    twins.push_back(twin(sessions[i]));
    const int64_t before = i % 2 == 0 ? random.below(40) : 0;
    read_alone(sessions[i], before);
    read_alone(twins[i], before);
  }
  for (size_t round = 0; round < rounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    std::vector<int64_t> counts;
    for (size_t i = 0; i < sizes.size(); ++i) counts.push_back(sizes[(i + round) % sizes.size()]);
    expect_as_alone(sessions, twins, counts);
  }
}

// Every number of sequences comes at least three times: plainly, while a graph is captured, and
// when it is replayed for other sequences than before. Exact numbers on a GPU have graphs up to 8
// tokens; captured_batch_test.cc has the rest.
TEST_P(BatchTest, OneTo64DecodingStepsAtOnce) {
  KINORA_FRESH_RANDOM(random);
  const std::vector<int64_t> numbers =
      sanitized()
          ? std::vector<int64_t>{1, 9, 1, 9, 1, 9}
          : std::vector<int64_t>{1, 2, 3,  8, 9,  16, 17, 64, 5, 40, 5, 64, 1, 33, 64, 2, 16,
                                 3, 5, 33, 2, 17, 8,  40, 1,  9, 3,  8, 16, 9, 17, 33, 40};
  const int64_t most = *std::max_element(numbers.begin(), numbers.end());
  std::vector<BatchSession> sessions, twins;
  std::vector<int32_t> next;
  for (int64_t i = 0; i < most; ++i) {
    sessions.push_back(session(random, 1 + random.below(50)));
    twins.push_back(twin(sessions.back()));
    const auto length = static_cast<int64_t>(sessions.back().script.ids.size());
    Sequence prompt = sessions.back().next(length);
    prompt.hidden_rows = 1;
    next.push_back(preferred(alone_->forward(prompt).hidden)[0]);
    read_alone(twins.back(), length);
  }
  int64_t first = 0;
  for (size_t round = 0; round < numbers.size(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    std::vector<Sequence> batch;
    std::vector<size_t> members;
    for (int64_t i = 0; i < numbers[round]; ++i) {
      members.push_back(static_cast<size_t>((first + i) % most));
      sessions[members.back()].script.add(next[members.back()]);
      batch.push_back(sessions[members.back()].next(1));
    }
    first += numbers[round];
    const std::vector<Forwarded> results = runner_->forward(batch);
    for (size_t i = 0; i < members.size(); ++i) {
      SCOPED_TRACE("sequence " + std::to_string(i));
      ASSERT_FALSE(results[i].failure);
      BatchSession& twin = twins[members[i]];
      twin.script.add(next[members[i]]);
      expect_close(results[i].hidden, alone_->forward(twin.next(1)).hidden);
      next[members[i]] = preferred(results[i].hidden)[0];
    }
  }
}

// A few tokens of each sequence, again and again, with another number of sequences in between.
TEST_P(BatchTest, StepsOfSeveralTokensShareGraphs) {
  KINORA_FRESH_RANDOM(random);
  const std::vector<std::vector<int64_t>> rounds = {{2, 5, 1}, {3},       {5, 2, 1}, {1, 2, 5},
                                                    {3},       {8, 8, 8}, {3},       {8, 8, 8},
                                                    {4, 2, 2}, {8, 8, 8}, {60, 1, 3}};
  std::vector<BatchSession> sessions, twins;
  for (int i = 0; i < 3; ++i) {
    sessions.push_back(session(random, 300));
    twins.push_back(twin(sessions.back()));
    read_alone(sessions.back(), 10 * i);
    read_alone(twins.back(), 10 * i);
  }
  for (size_t round = 0; round < (sanitized() ? 5 : rounds.size()); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const size_t number = rounds[round].size();
    expect_as_alone(std::span(sessions).first(number), std::span(twins).first(number),
                    rounds[round]);
  }
}

class BatchStatesTest : public BatchTest {
 protected:
  // Some of the numbers below `count`, at least one.
  static std::vector<int32_t> some_of(Random& random, int64_t count) {
    std::vector<int32_t> some;
    for (int64_t i = 0; i < count; ++i) {
      if (random.below(2) == 0) some.push_back(static_cast<int32_t>(i));
    }
    if (some.empty()) some.push_back(static_cast<int32_t>(random.below(count)));
    return some;
  }

  Tensor rows_of(const Tensor& all, std::span<const int32_t> rows) {
    Tensor picked(DType::f32, {std::ssize(rows), all.size(1)}, all.device());
    gather_rows(context_, all, rows, picked);
    return picked;
  }

  // Sequences that want different layers, of all tokens or of some, and different numbers of hidden
  // rows.
  void run(std::span<const int64_t> counts, size_t rounds, bool some_rows = false) {
    KINORA_FRESH_RANDOM(random);
    const int last = decoder_->layer_count() - 1;
    const std::vector<std::vector<int>> wishes = {{}, {0}, {last}, {0, last}};
    std::vector<int> all(static_cast<size_t>(decoder_->layer_count()));
    std::iota(all.begin(), all.end(), 0);
    std::vector<BatchSession> sessions, twins;
    for (size_t i = 0; i < counts.size(); ++i) {
      const int64_t before = random.below(30);
      const auto length = before + counts[i] * static_cast<int64_t>(rounds);
      sessions.push_back(session(random, length));
      twins.push_back(twin(sessions.back()));
      read_alone(sessions.back(), before);
      read_alone(twins.back(), before);
    }
    for (size_t round = 0; round < rounds; ++round) {
      std::vector<Sequence> batch;
      for (size_t i = 0; i < counts.size(); ++i) {
        batch.push_back(sessions[i].next(counts[i]));
        batch[i].states = wishes[(i + round) % wishes.size()];
        if (some_rows) batch[i].state_rows = some_of(random, counts[i]);
        batch[i].hidden_rows = i % 3 == 0 ? 1 : i % 3 == 1 ? counts[i] : 0;
      }
      const std::vector<Forwarded> results = runner_->forward(batch);
      for (size_t i = 0; i < counts.size(); ++i) {
        SCOPED_TRACE("round " + std::to_string(round) + ", sequence " + std::to_string(i));
        ASSERT_FALSE(results[i].failure);
        Sequence sequence = twins[i].next(counts[i]);
        sequence.states = all;
        sequence.hidden_rows = batch[i].hidden_rows;
        const Forwarded expected = alone_->forward(sequence);
        expect_close(results[i].hidden, expected.hidden);
        ASSERT_EQ(results[i].states.size(), batch[i].states.size());
        for (size_t k = 0; k < batch[i].states.size(); ++k) {
          const Tensor& state = expected.states[static_cast<size_t>(batch[i].states[k])];
          expect_close_state(results[i].states[k],
                             some_rows ? rows_of(state, batch[i].state_rows) : state);
        }
      }
    }
  }
};

TEST_P(BatchStatesTest, OfDecodingSteps) { run(std::vector<int64_t>{1, 3, 1, 5}, 4); }

TEST_P(BatchStatesTest, OfGroups) { run(std::vector<int64_t>{130, 1, 7, 2}, 2); }

TEST_P(BatchStatesTest, OfSomeTokens) {
  run(std::vector<int64_t>{130, 1, 7, 2}, 2, true);
  run(std::vector<int64_t>{1, 3, 1, 5}, 2, true);
}

TEST_P(BatchTest, ForksGoOnAsIfAlone) {
  KINORA_FRESH_RANDOM(random);
  constexpr int64_t early = 20, prefix = 45, own = 120;
  BatchSession whole = session(random, prefix);
  read_alone(whole, early);
  const MemoryMark mark = whole.memory->mark();
  read_alone(whole, prefix - early);

  // Two forks at the end, one in the middle, and the memory that they were made of.
  std::vector<BatchSession> sessions(4), twins;
  for (size_t i = 0; i < sessions.size(); ++i) {
    const int64_t shared = i == 2 ? early : prefix;
    BatchSession& session = sessions[i];
    session.script.ids.assign(whole.script.ids.begin(), whole.script.ids.begin() + shared);
    session.script.tokens.assign(whole.script.tokens.begin(), whole.script.tokens.begin() + shared);
    extend(random, session.script, own);
    twins.push_back(twin(session));
    read_alone(twins.back(), shared);
  }
  sessions[0].memory = whole.memory->fork(whole.memory->mark());
  sessions[1].memory = whole.memory->fork(whole.memory->mark());
  sessions[2].memory = whole.memory->fork(mark);
  sessions[3].memory = std::move(whole.memory);
  for (const std::vector<int64_t>& counts :
       {std::vector<int64_t>{1, 1, 1, 1}, {1, 1, 1, 1}, {7, 64, 1, 3}, {1, 1, 1, 1}}) {
    expect_as_alone(sessions, twins, counts);
  }
}

// More generations than row sets that a layer reads together.
TEST_P(BatchTest, ForksOfForksGoOnAsIfAlone) {
  KINORA_FRESH_RANDOM(random);
  constexpr int generations = most_row_sets + 2;
  std::vector<BatchSession> sessions(1), twins(1);
  sessions[0] = session(random, 60);
  twins[0] = twin(sessions[0]);
  read_alone(sessions[0], 10);
  read_alone(twins[0], 10);
  for (int generation = 1; generation <= generations; ++generation) {
    SCOPED_TRACE("generation " + std::to_string(generation));
    Memory& parent = *sessions.back().memory;
    const int64_t held = parent.token_count();
    BatchSession child;
    child.script = sessions.back().script;
    child.script.ids.resize(static_cast<size_t>(held));
    child.script.tokens.resize(static_cast<size_t>(held));
    extend(random, child.script, 60);
    child.memory = parent.fork(parent.mark());
    sessions.push_back(std::move(child));
    twins.push_back(twin(sessions.back()));
    read_alone(twins.back(), held);
    expect_as_alone(sessions, twins, std::vector<int64_t>(sessions.size(), 2));
  }
}

TEST_P(BatchTest, KeysMayBeTurnedWhenTheyAreRead) {
  KINORA_FRESH_RANDOM(random);
  std::vector<BatchSession> sessions, twins;
  for (int i = 0; i < 3; ++i) {
    sessions.push_back(session(random, 400));
    twins.push_back(twin(sessions.back()));
  }
  for (const size_t i : {0, 1}) {
    sessions[i].memory =
        std::make_unique<testing::UnrotatedMemory>(std::move(sessions[i].memory), config_.rope);
  }
  for (const std::vector<int64_t>& counts :
       {std::vector<int64_t>{64, 7, 1}, {1, 1, 1}, {7, 130, 64}, {1, 2, 1}}) {
    expect_as_alone(sessions, twins, counts);
  }
}

TEST_P(BatchTest, NothingGivesNothing) {
  EXPECT_TRUE(runner_->forward(std::span<const Sequence>()).empty());
}

INSTANTIATE_TEST_SUITE_P(Devices, BatchTest, testing::batch_places(), testing::batch_label);
INSTANTIATE_TEST_SUITE_P(Devices, BatchStatesTest, testing::batch_places(), testing::batch_label);

}  // namespace
}  // namespace kinora
