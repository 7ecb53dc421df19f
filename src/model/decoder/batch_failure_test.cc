// One sequence of a batch fails: its memory is as it was before, and the others notice nothing.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "base/error.h"
#include "model/decoder/batch_case.h"
#include "model/decoder/wrapped_memory.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::BatchSession;
using testing::FaultyMemory;
using testing::Script;
using Stage = FaultyMemory::Stage;

constexpr size_t spoilt = 1;  // place of the sequence that fails

ErrorKind kind_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error.kind();
  }
}

void disk_is_full() { throw Error(ErrorKind::resource, "as a full disk would"); }

struct Fault {
  std::string name;
  ErrorKind kind;
  // Found before anything is computed: the others then run as a batch without this one.
  bool early;
  std::function<void(Sequence&, FaultyMemory&)> arm;
};

class BatchFailureTest : public testing::BatchCase {
 protected:
  std::vector<Fault> faults() {
    const auto at = [](Stage stage, int layer) {
      return [=](Sequence&, FaultyMemory& memory) { memory.fail(stage, layer, disk_is_full); };
    };
    return {
        {"too few ids", ErrorKind::internal, true,
         [](Sequence& sequence, FaultyMemory&) { sequence.ids.pop_back(); }},
        {"too wide embeddings", ErrorKind::internal, true,
         [this](Sequence& sequence, FaultyMemory&) {
           sequence.embeddings = Tensor::zeros(
               DType::f32, Shape{sequence.count(), config_.hidden + 1}, context_.device);
         }},
        {"too many hidden rows", ErrorKind::internal, true,
         [](Sequence& sequence, FaultyMemory&) { sequence.hidden_rows = sequence.count() + 1; }},
        {"layers out of order", ErrorKind::internal, true,
         [](Sequence& sequence, FaultyMemory&) {
           sequence.states = {1, 0};
         }},
        {"states of a token that is not there", ErrorKind::internal, true,
         [](Sequence& sequence, FaultyMemory&) {
           sequence.state_rows = {static_cast<int32_t>(sequence.count())};
         }},
        {"no attention", ErrorKind::internal, true,
         [](Sequence& sequence, FaultyMemory&) { sequence.attention = nullptr; }},
        {"a memory for another model", ErrorKind::internal, true,
         [this](Sequence& sequence, FaultyMemory&) { sequence.memory = &foreign_; }},
        {"cancelled before", ErrorKind::cancelled, true,
         [](Sequence& sequence, FaultyMemory&) { sequence.cancel.cancel(); }},
        {"a node that is its own parent", ErrorKind::internal, false,
         [](Sequence& sequence, FaultyMemory&) {
           sequence.parents.assign(sequence.tokens.size(), 0);
         }},
        {"begin", ErrorKind::resource, false, at(Stage::begin, 0)},
        {"append of layer 0", ErrorKind::resource, false, at(Stage::append, 0)},
        {"append of layer 1", ErrorKind::resource, false, at(Stage::append, 1)},
        {"read of layer 1", ErrorKind::resource, false, at(Stage::read, 1)},
        {"after layer 0", ErrorKind::resource, false, at(Stage::after, 0)},
        {"after the last layer", ErrorKind::resource, false,
         at(Stage::after, decoder_->layer_count() - 1)},
        {"cancelled during layer 0", ErrorKind::cancelled, false,
         [](Sequence& sequence, FaultyMemory& memory) {
           memory.fail(Stage::after, 0, [cancel = sequence.cancel] { cancel.cancel(); });
         }},
    };
  }

  // Sessions that have read something, the same for the same scripts.
  std::vector<BatchSession> sessions(std::span<const Script> scripts) {
    std::vector<BatchSession> made(scripts.size());
    for (size_t i = 0; i < scripts.size(); ++i) {
      made[i].script = scripts[i];
      made[i].memory = flat();
      if (i == spoilt) {
        auto faulty = std::make_unique<FaultyMemory>(std::move(made[i].memory));
        faulty_ = faulty.get();
        made[i].memory = std::move(faulty);
      }
      read_alone(made[i], static_cast<int64_t>(10 * i));
    }
    return made;
  }
  static std::vector<Sequence> next(std::vector<BatchSession>& sessions,
                                    std::span<const int64_t> counts) {
    std::vector<Sequence> batch;
    for (size_t i = 0; i < sessions.size(); ++i) {
      batch.push_back(sessions[i].next(counts[i]));
      // Of long groups only the last row goes through the last layer.
      if (counts[0] > 1) batch.back().hidden_rows = 1;
    }
    return batch;
  }
  // On the CPU to the last bit.
  void expect_same(const Tensor& actual, const Tensor& expected) const {
    ASSERT_EQ(actual.shape(), expected.shape());
    if (on_gpu()) return expect_close(actual, expected);
    EXPECT_EQ(std::memcmp(actual.data<float>(), expected.data<float>(),
                          static_cast<size_t>(expected.bytes())),
              0);
  }

  void run(Random& random, std::span<const int64_t> counts) {
    std::vector<Script> scripts(counts.size());
    for (Script& script : scripts) extend(random, script, 200);
    const std::vector<int64_t> ones(counts.size(), 1);

    std::vector<BatchSession> well = sessions(scripts);
    const std::vector<Forwarded> all = runner_->forward(next(well, counts));
    const std::vector<Forwarded> later = runner_->forward(next(well, ones));
    std::vector<BatchSession> fewer = sessions(scripts);
    std::vector<Sequence> batch = next(fewer, counts);
    batch.erase(batch.begin() + spoilt);
    std::vector<Forwarded> without = runner_->forward(batch);
    without.insert(without.begin() + spoilt, Forwarded());

    for (const Fault& fault : faults()) {
      SCOPED_TRACE(fault.name);
      std::vector<BatchSession> ill = sessions(scripts);
      const Memory& memory = *ill[spoilt].memory;
      const MemoryMark before = memory.mark();
      const int64_t bytes = memory.bytes().total();
      batch = next(ill, counts);
      fault.arm(batch[spoilt], *faulty_);
      const std::vector<Forwarded> results = runner_->forward(batch);

      ASSERT_TRUE(results[spoilt].failure);
      EXPECT_EQ(kind_of(results[spoilt].failure), fault.kind);
      EXPECT_FALSE(results[spoilt].hidden.defined());
      EXPECT_TRUE(results[spoilt].states.empty());
      EXPECT_EQ(memory.mark().tokens, before.tokens);
      EXPECT_EQ(memory.mark().rows, before.rows);
      EXPECT_EQ(memory.bytes().total(), bytes);
      for (size_t i = 0; i < results.size(); ++i) {
        if (i == spoilt) continue;
        SCOPED_TRACE("sequence " + std::to_string(i));
        ASSERT_FALSE(results[i].failure);
        expect_same(results[i].hidden, fault.early ? without[i].hidden : all[i].hidden);
      }

      // Tried again it goes through, and all go on as if nothing had happened.
      faulty_->fail(Stage::none, 0, {});
      Sequence again = ill[spoilt].next(counts[spoilt]);
      again.hidden_rows = all[spoilt].hidden.size(0);
      expect_close(runner_->forward(again).hidden, all[spoilt].hidden);
      const std::vector<Forwarded> after = runner_->forward(next(ill, ones));
      for (size_t i = 0; i < after.size(); ++i) {
        ASSERT_FALSE(after[i].failure);
        expect_close(after[i].hidden, later[i].hidden);
      }
    }
  }

  FlatMemory foreign_{{1, 1, 8, DType::f32}};
  FaultyMemory* faulty_ = nullptr;  // of the newest sessions
};

TEST_P(BatchFailureTest, OfGroupsHarmsNoOther) {
  KINORA_FRESH_RANDOM(random);
  run(random, std::vector<int64_t>{130, 20, 1, 7});
}

TEST_P(BatchFailureTest, OfDecodingStepsHarmsNoOther) {
  KINORA_FRESH_RANDOM(random);
  run(random, std::vector<int64_t>{1, 1, 1, 5});
}

TEST_P(BatchFailureTest, AnUnknownTokenHarmsNoOther) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t count : {1, 130}) {
    for (const int32_t id : {-1, static_cast<int32_t>(config_.vocabulary)}) {
      std::vector<BatchSession> pair, twins;
      for (int i = 0; i < 2; ++i) {
        pair.push_back(session(random, 150));
        twins.push_back(twin(pair.back()));
      }
      std::vector<Sequence> batch = {pair[0].next(count), pair[1].next(count)};
      batch[spoilt].ids.back() = id;
      const std::vector<Forwarded> results = runner_->forward(batch);
      ASSERT_TRUE(results[spoilt].failure);
      EXPECT_EQ(kind_of(results[spoilt].failure), ErrorKind::bad_input);
      EXPECT_EQ(pair[spoilt].memory->token_count(), 0);
      ASSERT_FALSE(results[0].failure);
      expect_close(results[0].hidden, alone_->forward(twins[0].next(count)).hidden);
    }
  }
}

TEST_P(BatchFailureTest, AllMayFail) {
  KINORA_FRESH_RANDOM(random);
  std::vector<Script> scripts(3);
  for (Script& script : scripts) extend(random, script, 200);
  for (const int64_t count : {1, 100}) {
    std::vector<BatchSession> ill = sessions(scripts);
    std::vector<Sequence> batch = next(ill, std::vector<int64_t>(3, count));
    batch[0].cancel.cancel();
    batch[spoilt].cancel = batch[0].cancel;
    batch[2].hidden_rows = -1;
    for (const Forwarded& result : runner_->forward(batch)) EXPECT_TRUE(result.failure);
    for (size_t i = 0; i < ill.size(); ++i) {
      EXPECT_EQ(ill[i].memory->token_count(), static_cast<int64_t>(10 * i));
    }
    // The last one left fails on the way.
    ill = sessions(scripts);
    faulty_->fail(Stage::append, 1, disk_is_full);
    batch = next(ill, std::vector<int64_t>(3, count));
    batch.erase(batch.begin());
    batch[1].cancel.cancel();
    for (const Forwarded& result : runner_->forward(batch)) EXPECT_TRUE(result.failure);
    EXPECT_EQ(ill[spoilt].memory->token_count(), 10);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, BatchFailureTest, testing::batch_places(), testing::batch_label);

}  // namespace
}  // namespace kinora
