#include "model/decoder/transformer_decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
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
        config_(read_config(real_files(), testing::model_directory(GetParam().model))),
        files_(TensorFiles::open(real_files(), testing::model_directory(GetParam().model))),
        decoder_(config_.decoder, bind_weights(context_, config_, files_, true).decoder) {
    group_.embeddings = reference_.tensor("hidden.embeddings");
    group_.tokens = reference_.tokens(config_);
  }

  RowLayout layout(DType dtype = DType::f32) const {
    return {static_cast<int>(config_.decoder.layers), static_cast<int>(config_.decoder.kv_heads),
            static_cast<int>(config_.decoder.head_size), dtype};
  }
  int64_t count() const { return group_.embeddings.size(0); }
  int32_t next_position() const { return static_cast<int32_t>(count() + reference_.rope_delta()); }

  // The prompt in groups of `size`; the final hidden rows of all of them.
  Tensor in_groups(RowStore& store, int64_t size) {
    Tensor all(DType::f32, group_.embeddings.shape());
    for (int64_t begin = 0; begin < count(); begin += size) {
      const int64_t rows = std::min(size, count() - begin);
      TokenGroup part;
      part.embeddings = Tensor(DType::f32, Shape{rows, group_.embeddings.size(1)});
      std::memcpy(part.embeddings.data<float>(), group_.embeddings.view().row<float>(begin),
                  static_cast<size_t>(part.embeddings.bytes()));
      part.tokens.assign(group_.tokens.begin() + begin, group_.tokens.begin() + begin + rows);
      PrefillOptions options;
      options.hidden_rows = rows;
      const Tensor hidden = decoder_.prefill(context_, part, store, attention_, options);
      std::memcpy(all.view().row<float>(begin), hidden.data<float>(),
                  static_cast<size_t>(hidden.bytes()));
    }
    return all;
  }

  ThreadPool pool_{2};
  Context context_{pool_};
  ReferenceCase reference_;
  ModelConfig config_;
  TensorFiles files_;
  TransformerDecoder decoder_;
  DenseAttention attention_;
  TokenGroup group_;
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
  RowStore store(layout());
  PrefillOptions options;
  options.hidden_rows = count();
  int layers = 0;
  options.after_layer = [&](int layer, ConstTensorView hidden) {
    EXPECT_EQ(layer, layers++);
    const Tensor expected = reference_.tensor("hidden.layer." + std::to_string(layer));
    EXPECT_LE(row_error(hidden, expected), tolerance) << "layer " << layer;
  };
  const Tensor final_rows = decoder_.prefill(context_, group_, store, attention_, options);
  EXPECT_EQ(layers, config_.decoder.layers);
  EXPECT_LE(row_error(final_rows, reference_.tensor("hidden.final")), tolerance);
  const Tensor expected = reference_.tensor("logits");
  const Tensor logits = decoder_.logits(
      context_, final_rows.view().rows(count() - expected.size(0), expected.size(0)));
  EXPECT_LE(row_error(logits, expected), tolerance);
}

TEST_P(DecoderReferenceTest, GroupsOfAnySizeGiveTheSame) {
  const Tensor expected = reference_.tensor("hidden.final");
  for (const int64_t size : {int64_t{1}, int64_t{7}, int64_t{64}, count() - 1}) {
    RowStore store(layout());
    EXPECT_LE(row_error(in_groups(store, size), expected), tolerance) << "groups of " << size;
    EXPECT_EQ(store.token_count(), count());
  }
}

TEST_P(DecoderReferenceTest, GreedyTokensAreIdentical) {
  RowStore store(layout());
  Tensor hidden = decoder_.prefill(context_, group_, store, attention_, {});
  EXPECT_EQ(hidden.shape(), (Shape{1, config_.decoder.hidden}));
  const std::vector<int32_t> expected = reference_.greedy();
  EXPECT_EQ(testing::greedy_tokens(context_, decoder_, store, attention_, hidden, next_position(),
                                   expected.size()),
            expected);
}

TEST_P(DecoderReferenceTest, RowsInHalfThePrecisionStayClose) {
  const Tensor expected = reference_.tensor("hidden.final");
  RowStore store(layout(DType::bf16));
  const double error = row_error(in_groups(store, 33), expected);
  EXPECT_LE(error, 0.05);
  EXPECT_GT(error, 1e-5);  // or the store was not in bf16 at all
  EXPECT_EQ(store.bytes(), layout(DType::bf16).bytes_per_token() * count());
}

TEST_P(DecoderReferenceTest, AFailureLeavesTheStoreAsItWas) {
  RowStore store(layout());
  in_groups(store, count());
  const RowStore::Mark before = store.mark();
  PrefillOptions options;
  options.after_attention = [](int layer, RowStore&) {
    if (layer == 1) throw Error(ErrorKind::resource, "as a full disk would");
  };
  EXPECT_THROW(decoder_.prefill(context_, group_, store, attention_, options), Error);
  EXPECT_EQ(store.mark().tokens, before.tokens);
  EXPECT_EQ(store.mark().rows, before.rows);

  options.after_attention = nullptr;
  options.cancel.cancel();
  try {
    decoder_.prefill(context_, group_, store, attention_, options);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::cancelled);
  }
  EXPECT_EQ(store.mark().rows, before.rows);

  // What comes next is as if nothing had happened.
  store.rewind(RowStore(layout()).mark());
  EXPECT_LE(row_error(in_groups(store, count()), reference_.tensor("hidden.final")), tolerance);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, DecoderReferenceTest, ::testing::ValuesIn(testing::find_cases()),
                         testing::case_label);

TEST(TransformerDecoderTest, RefusesWhatDoesNotFit) {
  const std::string directory = testing::model_directory("qwen2_5_vl_tied_new");
  ThreadPool pool(2);
  const Context context(pool);
  const ModelConfig config = read_config(real_files(), directory);
  const TensorFiles files = TensorFiles::open(real_files(), directory);
  const TransformerDecoder decoder(config.decoder,
                                   bind_weights(context, config, files, false).decoder);
  const std::vector<int32_t> beyond = {0, static_cast<int32_t>(config.decoder.vocabulary)};
  EXPECT_THROW(decoder.embed(context, beyond), Error);
  const std::vector<int32_t> negative = {-1};
  EXPECT_THROW(decoder.embed(context, negative), Error);
  EXPECT_EQ(decoder.embed(context, {}).size(0), 0);

  DenseAttention attention;
  RowStore store({static_cast<int>(config.decoder.layers),
                  static_cast<int>(config.decoder.kv_heads),
                  static_cast<int>(config.decoder.head_size), DType::f32});
  TokenGroup group;
  EXPECT_THROW(decoder.prefill(context, group, store, attention, {}), Error);
  const std::vector<int32_t> ids = {1, 2, 3};
  group.embeddings = decoder.embed(context, ids);
  group.tokens.resize(2);
  EXPECT_THROW(decoder.prefill(context, group, store, attention, {}), Error);
  group.tokens.resize(3);
  PrefillOptions options;
  options.hidden_rows = 4;
  EXPECT_THROW(decoder.prefill(context, group, store, attention, options), Error);
  options.hidden_rows = 0;
  EXPECT_EQ(decoder.prefill(context, group, store, attention, options).size(0), 0);
  RowStore other({1, 1, 8, DType::f32});
  EXPECT_THROW(decoder.prefill(context, group, other, attention, {}), Error);
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
