#include "model/decoder/transformer_decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "model/decoder/rotary.h"
#include "model/decoder/wrapped_memory.h"
#include "model/reference_case.h"

namespace kinora {
namespace {

using testing::CaseName;
using testing::ReferenceCase;
using testing::row_error;

constexpr double tolerance = 1e-4;

// The decoder alone: it is fed the reference's embeddings and positions.
class DecoderReferenceTest : public ::testing::TestWithParam<CaseName> {
 protected:
  DecoderReferenceTest()
      : reference_(GetParam()),
        config_(testing::read_config(testing::model_directory(GetParam().model))),
        decoder_(context_, config_.decoder,
                 testing::bind_decoder(context_, config_.decoder,
                                       testing::model_directory(GetParam().model))),
        runner_(decoder_.runner(context_)) {
    group_.embeddings = reference_.tensor("hidden.embeddings");
    group_.tokens = reference_.tokens(config_);
    group_.deep = reference_.deep(config_);
  }

  RowLayout layout(DType dtype = DType::f32) const {
    return testing::row_layout(config_.decoder, dtype);
  }
  int64_t count() const { return group_.embeddings.size(0); }
  int32_t next_position() const { return static_cast<int32_t>(count() + reference_.rope_delta()); }

  // The whole prompt for a memory.
  Sequence whole(Memory& memory) {
    Sequence sequence = group_;
    sequence.memory = &memory;
    sequence.attention = &attention_;
    return sequence;
  }
  // The prompt in groups of `size`; the final hidden rows of all of them.
  Tensor in_groups(Memory& memory, int64_t size) {
    Tensor all(DType::f32, group_.embeddings.shape());
    for (int64_t begin = 0; begin < count(); begin += size) {
      const int64_t rows = std::min(size, count() - begin);
      Sequence part;
      part.embeddings = Tensor(DType::f32, Shape{rows, group_.embeddings.size(1)});
      std::memcpy(part.embeddings.data<float>(), group_.embeddings.view().row<float>(begin),
                  static_cast<size_t>(part.embeddings.bytes()));
      part.deep = testing::deep_rows_of(group_.deep, begin, rows);
      part.tokens.assign(group_.tokens.begin() + begin, group_.tokens.begin() + begin + rows);
      part.memory = &memory;
      part.attention = &attention_;
      part.hidden_rows = rows;
      const Tensor hidden = runner_->forward(part).hidden;
      std::memcpy(all.view().row<float>(begin), hidden.data<float>(),
                  static_cast<size_t>(hidden.bytes()));
    }
    return all;
  }

  ThreadPool pool_{2};
  Context context_{pool_};
  ReferenceCase reference_;
  ModelConfig config_;
  TransformerDecoder decoder_;
  std::unique_ptr<DecoderRunner> runner_;
  DenseAttention attention_;
  Sequence group_;
};

TEST_P(DecoderReferenceTest, EmbedsText) {
  const std::vector<int32_t> ids = reference_.ids();
  const Tensor embedded = decoder_.embed(context_, ids);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == config_.image_token || ids[i] == config_.video_token) continue;
    EXPECT_EQ(std::memcmp(embedded.view().row<float>(static_cast<int64_t>(i)),
                          group_.embeddings.view().row<float>(static_cast<int64_t>(i)),
                          static_cast<size_t>(config_.decoder.hidden) * sizeof(float)),
              0)
        << "token " << i;
  }
}

TEST_P(DecoderReferenceTest, EveryLayerAgrees) {
  FlatMemory memory(layout());
  Sequence sequence = whole(memory);
  sequence.hidden_rows = count();
  sequence.states.resize(static_cast<size_t>(decoder_.layer_count()));
  std::iota(sequence.states.begin(), sequence.states.end(), 0);
  const Forwarded result = runner_->forward(sequence);
  ASSERT_EQ(static_cast<int64_t>(result.states.size()), config_.decoder.layers);
  for (size_t layer = 0; layer < result.states.size(); ++layer) {
    const Tensor expected = reference_.tensor("hidden.layer." + std::to_string(layer));
    EXPECT_LE(row_error(result.states[layer], expected), tolerance) << "layer " << layer;
  }
  const Tensor& final_rows = result.hidden;
  EXPECT_LE(row_error(final_rows, reference_.tensor("hidden.final")), tolerance);
  const Tensor normed = decoder_.norm(context_, result.states.back());
  EXPECT_LE(row_error(normed, reference_.tensor("hidden.final")), tolerance);
  const Tensor expected = reference_.tensor("logits");
  const Tensor logits = decoder_.logits(
      context_, final_rows.view().rows(count() - expected.size(0), expected.size(0)));
  EXPECT_LE(row_error(logits, expected), tolerance);
}

TEST_P(DecoderReferenceTest, GroupsOfAnySizeGiveTheSame) {
  const Tensor expected = reference_.tensor("hidden.final");
  for (const int64_t size : {int64_t{1}, int64_t{7}, int64_t{64}, count() - 1}) {
    FlatMemory memory(layout());
    EXPECT_LE(row_error(in_groups(memory, size), expected), tolerance) << "groups of " << size;
    EXPECT_EQ(memory.token_count(), count());
  }
}

TEST_P(DecoderReferenceTest, GreedyTokensAreIdentical) {
  FlatMemory memory(layout());
  const Tensor hidden = runner_->forward(whole(memory)).hidden;
  EXPECT_EQ(hidden.shape(), (Shape{1, config_.decoder.hidden}));
  const std::vector<int32_t> expected = reference_.greedy();
  EXPECT_EQ(testing::greedy_tokens(context_, decoder_, *runner_, memory, attention_, hidden,
                                   next_position(), expected.size()),
            expected);
}

TEST_P(DecoderReferenceTest, RowsInHalfThePrecisionStayClose) {
  const Tensor expected = reference_.tensor("hidden.final");
  FlatMemory memory(layout(DType::bf16));
  const double error = row_error(in_groups(memory, 33), expected);
  EXPECT_LE(error, 0.05);
  EXPECT_GT(error, 1e-5);  // or the memory was not in bf16 at all
  EXPECT_EQ(memory.bytes().total(), layout(DType::bf16).bytes_per_token() * count());
}

TEST_P(DecoderReferenceTest, AFailureLeavesTheMemoryAsItWas) {
  testing::FaultyMemory memory(std::make_unique<FlatMemory>(layout()));
  in_groups(memory, count());
  const MemoryMark before = memory.mark();
  memory.fail(testing::FaultyMemory::Stage::after, 1,
              [] { throw Error(ErrorKind::resource, "as a full disk would"); });
  Sequence sequence = whole(memory);
  EXPECT_THROW(runner_->forward(sequence), Error);
  EXPECT_EQ(memory.mark().tokens, before.tokens);
  EXPECT_EQ(memory.mark().rows, before.rows);

  memory.fail(testing::FaultyMemory::Stage::none, 0, {});
  sequence.cancel.cancel();
  try {
    runner_->forward(sequence);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::cancelled);
  }
  EXPECT_EQ(memory.mark().tokens, before.tokens);
  EXPECT_EQ(memory.mark().rows, before.rows);

  // What comes next is as if nothing had happened.
  memory.rewind(FlatMemory(layout()).mark());
  EXPECT_LE(row_error(in_groups(memory, count()), reference_.tensor("hidden.final")), tolerance);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, DecoderReferenceTest, ::testing::ValuesIn(testing::find_cases()),
                         testing::case_label);

TEST(TransformerDecoderTest, RefusesWhatDoesNotFit) {
  const std::string directory = testing::model_directory("qwen2_5_vl_tied_new");
  ThreadPool pool(2);
  const Context context(pool);
  const ModelConfig config = testing::read_config(directory);
  const TransformerDecoder decoder(context, config.decoder,
                                   testing::bind_decoder(context, config.decoder, directory));
  const std::unique_ptr<DecoderRunner> runner = decoder.runner(context);
  const std::vector<int32_t> beyond = {0, static_cast<int32_t>(config.decoder.vocabulary)};
  EXPECT_THROW(decoder.embed(context, beyond), Error);
  const std::vector<int32_t> negative = {-1};
  EXPECT_THROW(decoder.embed(context, negative), Error);
  EXPECT_EQ(decoder.embed(context, {}).size(0), 0);

  DenseAttention attention;
  FlatMemory memory(testing::row_layout(config.decoder));
  Sequence group;
  group.memory = &memory;
  group.attention = &attention;
  EXPECT_THROW(runner->forward(group), Error);
  const std::vector<int32_t> ids = {1, 2, 3};
  group.embeddings = decoder.embed(context, ids);
  group.tokens.resize(2);
  EXPECT_THROW(runner->forward(group), Error);
  group.tokens.resize(3);
  group.hidden_rows = 4;
  EXPECT_THROW(runner->forward(group), Error);
  group.hidden_rows = 0;
  EXPECT_EQ(runner->forward(group).hidden.size(0), 0);
  EXPECT_EQ(memory.token_count(), 3);

  group.hidden_rows = 1;
  FlatMemory other({1, 1, 8, DType::f32});
  group.memory = &other;
  EXPECT_THROW(runner->forward(group), Error);
  group.memory = nullptr;
  EXPECT_THROW(runner->forward(group), Error);
  group.memory = &memory;
  group.attention = nullptr;
  EXPECT_THROW(runner->forward(group), Error);
  group.attention = &attention;
  for (const std::vector<int>& states :
       {std::vector<int>{-1}, {0, 0}, {1, 0}, {decoder.layer_count()}}) {
    group.states = states;
    EXPECT_THROW(runner->forward(group), Error);
  }
  group.states.clear();
  const int64_t hidden = config.decoder.hidden;
  const auto refuse_deep = [&](std::vector<int32_t> tokens, Tensor values) {
    group.deep = {std::move(tokens), std::move(values)};
    EXPECT_THROW(runner->forward(group), Error);
  };
  refuse_deep({0}, Tensor());
  refuse_deep({0}, Tensor(DType::f32, {2, hidden}));
  refuse_deep({0}, Tensor(DType::f32, {1, hidden - 1}));
  refuse_deep({0}, Tensor(DType::f32, {1, decoder.layer_count() * hidden}));
  refuse_deep({3}, Tensor(DType::f32, {1, hidden}));
  refuse_deep({1, 1}, Tensor(DType::f32, {2, hidden}));
  group.deep = {};
  group.beside = Tensor::zeros(DType::f32, {3, hidden});  // only drafts read such rows
  EXPECT_THROW(runner->forward(group), Error);
  group.beside = Tensor();
  group.embeddings = Tensor();
  group.ids = {1, 2};
  EXPECT_THROW(runner->forward(group), Error);
  group.ids = {1, 2, static_cast<int32_t>(config.decoder.vocabulary)};
  EXPECT_THROW(runner->forward(group), Error);
  EXPECT_EQ(memory.token_count(), 3);
}

// Numbers from transformers' _compute_llama3_parameters (theta 500000, head size 16, factor 8,
// low 1, high 4, 8192 positions).
TEST(RotaryFrequenciesTest, Llama3) {
  RopeConfig rope;
  rope.theta = 500000;
  rope.llama3 = RopeConfig::Llama3{8, 1, 4, 8192};
  const std::vector<double> frequencies = rotary_frequencies(rope, 16);
  const std::vector<double> expected = {1,
                                        0.193922758,
                                        0.0376060307,
                                        0.00729266508,
                                        0.000524846022,
                                        3.42810235e-05,
                                        6.64786967e-06,
                                        1.28917316e-06};
  ASSERT_EQ(frequencies.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(frequencies[i] / expected[i], 1, 2e-7) << i;
  }
}

}  // namespace
}  // namespace kinora
