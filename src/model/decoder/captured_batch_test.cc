// Decoding steps of 9 to 64 tokens in bf16, which a GPU runs as captured graphs: many sessions,
// large trees, states on the way. How far they may be from exact numbers is measured: no farther
// than twice what each sequence loses alone.
#include <gtest/gtest.h>

#include <algorithm>

#include "model/decoder/batch_case.h"
#include "model/decoder/batch_runner.h"
#include "model/decoder/steps.h"
#include "model/weights/random_weights.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::BatchSession;
using testing::Script;
using testing::TokenTree;

// By the size of a head: kernels differ.
class CapturedBatch : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    std::string why;
    if (cuda_devices(&why).empty()) GTEST_SKIP() << why;
    config_.hidden = 256;
    config_.layers = 3;
    config_.heads = 8;
    config_.kv_heads = 2;
    config_.head_size = GetParam();
    config_.intermediate = 384;
    config_.vocabulary = 300;
    config_.max_position = 4096;
    config_.qkv_bias = true;
    const DecoderWeights weights = random_decoder(here_, config_, DType::bf16);
    exact_ = std::make_unique<TransformerDecoder>(here_, config_, weights);
    decoder_ = std::make_unique<TransformerDecoder>(there_, config_, weights,
                                                    DecoderOptions{.activations = DType::bf16});
    together_ = std::make_unique<BatchRunner>(there_, *decoder_, *decoder_->layers(),
                                              decoder_->frequencies());
    alone_ = decoder_->runner(there_);
    exactly_ = exact_->runner(here_);
  }

  // One text that is read three times: together with others, alone, and in f32 on the CPU.
  struct Reader {
    BatchSession together, alone, exact;

    void add(int32_t id) {
      for (BatchSession* session : {&together, &alone, &exact}) session->script.add(id);
    }
    struct Point {
      MemoryMark together, alone, exact;
      Script script;
    };
    Point here() const {
      return {together.memory->mark(), alone.memory->mark(), exact.memory->mark(), exact.script};
    }
    void go_back(const Point& point) {
      together.memory->rewind(point.together);
      alone.memory->rewind(point.alone);
      exact.memory->rewind(point.exact);
      for (BatchSession* session : {&together, &alone, &exact}) session->script = point.script;
    }
  };
  int32_t random_id(Random& random) const {
    return static_cast<int32_t>(random.below(config_.vocabulary));
  }
  void read(Reader& reader, int64_t count) const {
    alone_->forward(reader.together.next(count));
    alone_->forward(reader.alone.next(count));
    exactly_->forward(reader.exact.next(count));
  }
  Reader reader(Random& random, int64_t length) const {
    Reader made;
    for (int64_t i = 0; i < length; ++i) made.add(random_id(random));
    const RowLayout narrow = testing::row_layout(config_, DType::bf16);
    made.together.memory = std::make_unique<FlatMemory>(narrow, there_.device);
    made.alone.memory = std::make_unique<FlatMemory>(narrow, there_.device);
    made.exact.memory = std::make_unique<FlatMemory>(testing::row_layout(config_));
    read(made, length);
    return made;
  }
  // One that goes on from what another has read, with some text of its own.
  Reader fork(Random& random, Reader& from, int64_t length) const {
    Reader made;
    const auto share = [](const BatchSession& of, BatchSession& to) {
      to.script = of.script;
      to.memory = of.memory->fork(of.memory->mark());
    };
    share(from.together, made.together);
    share(from.alone, made.alone);
    share(from.exact, made.exact);
    for (int64_t i = 0; i < length; ++i) made.add(random_id(random));
    if (length > 0) read(made, length);
    return made;
  }

  // The largest error of any row, by how it was computed.
  struct Errors {
    double together = 0, alone = 0;

    void add(const Tensor& batched, const Tensor& by_itself, const Tensor& exact) {
      together = std::max(together, testing::row_error(batched.to(Device::cpu()), exact));
      alone = std::max(alone, testing::row_error(by_itself.to(Device::cpu()), exact));
    }
    void check() const {
      EXPECT_LE(together, 2 * alone);
      EXPECT_GT(alone, 1e-5);  // or it was not in bf16 at all
      EXPECT_LT(alone, 0.1);   // or the comparison means nothing
    }
  };
  static void add_result(Errors& errors, const Forwarded& batched, const Forwarded& alone,
                         const Forwarded& exact) {
    errors.add(batched.hidden, alone.hidden, exact.hidden);
    ASSERT_EQ(batched.states.size(), exact.states.size());
    for (size_t i = 0; i < exact.states.size(); ++i) {
      errors.add(batched.states[i], alone.states[i], exact.states[i]);
    }
  }

  // The first step of a kind runs plainly, the second is captured and launched, and so on.
  static constexpr int rounds = 3;
  int64_t launched() const { return together_->steps()->launched(); }
  void expect_launches(int64_t before) const {
    if (replays_graphs()) {
      EXPECT_GE(launched() - before, rounds - 1) << "no graph was captured";
    }
  }

  // One token more of each reader, again and again; then all of them are where they were.
  void step_all(Random& random, std::span<Reader> readers, const std::vector<int>& states) {
    std::vector<Reader::Point> before;
    for (const Reader& reader : readers) before.push_back(reader.here());
    const int64_t launches = launched();
    Errors errors;
    for (int round = 0; round < rounds; ++round) {
      std::vector<Sequence> batch;
      for (Reader& reader : readers) {
        reader.add(random_id(random));
        batch.push_back(reader.together.next(1));
        // Some want states and some do not.
        if (batch.size() % 3 != 0) batch.back().states = states;
      }
      const std::vector<Forwarded> results = together_->forward(batch);
      for (size_t i = 0; i < readers.size(); ++i) {
        SCOPED_TRACE("round " + std::to_string(round) + ", sequence " + std::to_string(i));
        ASSERT_FALSE(results[i].failure);
        Sequence alone = readers[i].alone.next(1), exact = readers[i].exact.next(1);
        alone.states = exact.states = batch[i].states;
        add_result(errors, results[i], alone_->forward(alone), exactly_->forward(exact));
      }
    }
    errors.check();
    expect_launches(launches);
    for (size_t i = 0; i < readers.size(); ++i) readers[i].go_back(before[i]);
  }

  // Every node against its path as a chain.
  void add_tree(Errors& errors, const Forwarded& batched, Reader& reader, const TokenTree& tree,
                const std::vector<int>& states) {
    const Reader::Point before = reader.here();
    const Tensor hidden = batched.hidden.to(Device::cpu());
    std::vector<Tensor> all;
    for (const Tensor& state : batched.states) all.push_back(state.to(Device::cpu()));
    ASSERT_EQ(hidden.size(0), tree.nodes());
    ASSERT_EQ(all.size(), states.size());
    for (int32_t node = 0; node < tree.nodes(); ++node) {
      const std::vector<int32_t> path = tree.path(node);
      const auto length = std::ssize(path);
      reader.alone.script = reader.exact.script = reader.exact.followed(tree, path);
      Sequence alone = reader.alone.next(length), exact = reader.exact.next(length);
      alone.states = exact.states = states;
      alone.hidden_rows = exact.hidden_rows = 1;
      const Forwarded chain = alone_->forward(alone), expected = exactly_->forward(exact);
      errors.add(row(hidden, node), chain.hidden, expected.hidden);
      for (size_t i = 0; i < states.size(); ++i) {
        errors.add(row(all[i], node), row(chain.states[i].to(Device::cpu()), length - 1),
                   row(expected.states[i], length - 1));
      }
      reader.alone.memory->rewind(before.alone);
      reader.exact.memory->rewind(before.exact);
      reader.alone.script = reader.exact.script = before.script;
    }
  }
  static Tensor row(const Tensor& all, int64_t at) {
    Tensor one(DType::f32, {1, all.size(1)});
    std::copy_n(all.view().row<float>(at), all.size(1), one.data<float>());
    return one;
  }

  const ThreadPool pool_{2};
  const Context here_{pool_};
  const Context there_{pool_, Device::cuda()};
  DecoderConfig config_;
  std::unique_ptr<TransformerDecoder> exact_, decoder_;
  std::unique_ptr<BatchRunner> together_;
  std::unique_ptr<DecoderRunner> alone_, exactly_;
};

TEST_P(CapturedBatch, StepsOf9To64Sessions) {
  KINORA_FRESH_RANDOM(random);
  const std::vector<size_t> numbers = testing::sanitized()
                                          ? std::vector<size_t>{9, 33}
                                          : std::vector<size_t>{9, 16, 17, 33, 48, 64};
  std::vector<Reader> readers;
  for (size_t i = 0; i < numbers.back(); ++i) {
    readers.push_back(reader(random, 1 + random.below(40)));
  }
  for (const std::vector<int>& states : {std::vector<int>{}, {1}, {0, 2}}) {
    for (const size_t number : numbers) {
      SCOPED_TRACE(std::to_string(number) + " sessions, states of " +
                   std::to_string(states.size()) + " layers");
      step_all(random, std::span(readers).last(number), states);
    }
  }
}

// Conversations about two videos: what they share is read once for all.
TEST_P(CapturedBatch, StepsOfConversationsThatShareRows) {
  KINORA_FRESH_RANDOM(random);
  Reader videos[] = {reader(random, 700), reader(random, 65)};
  std::vector<Reader> readers;
  for (int i = 0; i < 33; ++i) {
    readers.push_back(fork(random, videos[i % 5 == 0 ? 1 : 0], random.below(20)));
  }
  for (const size_t number : {size_t{17}, size_t{33}}) {
    SCOPED_TRACE(std::to_string(number) + " sessions");
    step_all(random, std::span(readers).first(number), {1});
  }
}

TEST_P(CapturedBatch, TreesOf30And64Nodes) {
  KINORA_FRESH_RANDOM(random);
  for (const std::vector<int>& states : {std::vector<int>{}, {1}}) {
    for (const int64_t nodes : {30, 64}) {
      SCOPED_TRACE(std::to_string(nodes) + " nodes, states of " + std::to_string(states.size()) +
                   " layers");
      Reader drafted = reader(random, 45);
      // What is left of 64 tokens goes to others, one each.
      std::vector<Reader> others;
      for (int64_t i = 0; i < (nodes == 30 ? 17 : 0); ++i) {
        others.push_back(reader(random, 1 + random.below(20)));
      }
      const int64_t launches = launched();
      Errors errors;
      for (int round = 0; round < rounds; ++round) {
        const TokenTree tree = TokenTree::any(random, nodes, config_.vocabulary);
        const MemoryMark before = drafted.together.memory->mark();
        std::vector<Sequence> batch{drafted.together.verify(tree)};
        batch[0].states = states;
        for (Reader& other : others) {
          other.add(random_id(random));
          batch.push_back(other.together.next(1));
        }
        const std::vector<Forwarded> results = together_->forward(batch);
        for (const Forwarded& result : results) ASSERT_FALSE(result.failure);
        add_tree(errors, results[0], drafted, tree, states);
        for (size_t i = 0; i < others.size(); ++i) {
          add_result(errors, results[1 + i], alone_->forward(others[i].alone.next(1)),
                     exactly_->forward(others[i].exact.next(1)));
        }
        drafted.together.memory->rewind(before);
      }
      errors.check();
      expect_launches(launches);
    }
  }
}

// The first two steps of a kind take longer: one asks for memory, one makes the graph.
TEST_P(CapturedBatch, OnlyStepsThatAreReplayedAreUsual) {
  KINORA_FRESH_RANDOM(random);
  Reader one = reader(random, 20);
  for (const bool expected : {false, !replays_graphs(), true, true}) {
    one.add(random_id(random));
    const std::vector<Sequence> batch{one.together.next(1)};
    const std::vector<Forwarded> results = together_->forward(batch);
    ASSERT_FALSE(results[0].failure);
    EXPECT_EQ(results[0].usual, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(HeadSizes, CapturedBatch, ::testing::Values(64, 128));

}  // namespace
}  // namespace kinora
