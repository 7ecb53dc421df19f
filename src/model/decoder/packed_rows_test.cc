// A decoder over rows of 8 bits computes what it computes over the same rows widened to f32, bit
// for bit: prompts in any groups, batches, token trees. Single tokens are added up in another order
// over f32 rows (attention/step_attention.h), so there a decoder is compared with itself. On a GPU
// attention rounds to bf16, and results are as near as that allows.
#include <gtest/gtest.h>

#include <cstring>

#include "memory/flat_memory.h"
#include "model/decoder/batch_case.h"
#include "model/decoder/wrapped_memory.h"
#include "model/weights/random_weights.h"
#include "support/random_data.h"

namespace kinora {
namespace {

// Keeps rows in 8 bits and gives them to its readers in f32.
class WidenedMemory final : public testing::WrappedMemory {
 public:
  explicit WidenedMemory(std::unique_ptr<Memory> inner)
      : WrappedMemory(std::move(inner)), wide_(static_cast<size_t>(layout().layers)) {}

  // Captured steps on a GPU take rows to be of the layout's type.
  bool known_ahead() const override { return device().is_cpu() && WrappedMemory::known_ahead(); }

  void read(const Context& context, int layer, const QueryView& queries,
            std::vector<RowSet>& out) override {
    const size_t first = out.size();
    WrappedMemory::read(context, layer, queries, out);
    std::vector<Tensor>& wide = wide_[static_cast<size_t>(layer)];
    wide.clear();
    for (size_t i = first; i < out.size(); ++i) {
      for (ConstTensorView* rows : {&out[i].keys, &out[i].values}) {
        Tensor room;
        *rows = plain_rows(context, *rows, room);
        wide.push_back(std::move(room));
      }
    }
  }

 private:
  std::vector<std::vector<Tensor>> wide_;  // by layer, until it is read again
};

class PackedRowsDecoder : public testing::BatchCase {
 protected:
  std::unique_ptr<Memory> packed(DType type) const {
    return std::make_unique<FlatMemory>(testing::row_layout(config_, type));
  }
  static void expect_same(const Tensor& hidden, const Tensor& expected) {
    ASSERT_EQ(hidden.shape(), expected.shape());
    EXPECT_EQ(std::memcmp(hidden.view().raw(), expected.view().raw(),
                          static_cast<size_t>(hidden.bytes())),
              0);
  }
};

TEST_P(PackedRowsDecoder, ComputesWhatWidenedRowsGive) {
  KINORA_FRESH_RANDOM(random);
  for (const DType type : {DType::i8, DType::u8}) {
    SCOPED_TRACE(row_type_name(type));
    testing::BatchSession sessions[2], twins[2];
    for (int i = 0; i < 2; ++i) {
      for (int token = 0; token < 200; ++token) sessions[i].script.add(random_id(random));
      twins[i].script = sessions[i].script;
      sessions[i].memory = packed(type);
      twins[i].memory = std::make_unique<WidenedMemory>(packed(type));
    }
    for (const int64_t count : {2, 63, 2, 5, 65, 3}) {
      const Sequence batch[] = {sessions[0].next(count), sessions[1].next(count)};
      const Sequence others[] = {twins[0].next(count), twins[1].next(count)};
      const auto results = runner_->forward(batch), expected = alone_->forward(others);
      for (size_t i = 0; i < 2; ++i) expect_same(results[i].hidden, expected[i].hidden);
    }
    // A tree of four nodes with two roots, of which the second path is taken.
    for (testing::BatchSession* session : {&sessions[0], &twins[0]}) {
      Sequence tree = session->next(4);
      tree.parents = {-1, 0, -1, 2};
      runner_->forward(tree);
      session->memory->accept(context_, std::vector<int32_t>{2, 3});
    }
    expect_same(runner_->forward(sessions[0].next(2)).hidden,
                alone_->forward(twins[0].next(2)).hidden);
    // The twins hold the same bytes as the sessions. Forks do not widen, and go on alike.
    for (int i = 0; i < 2; ++i) {
      for (testing::BatchSession* session : {&sessions[i], &twins[i]}) {
        session->memory = session->memory->fork(session->memory->mark());
      }
    }
    for (int step = 0; step < 5; ++step) {
      const Sequence batch[] = {sessions[0].next(1), sessions[1].next(1)};
      const Sequence others[] = {twins[0].next(1), twins[1].next(1)};
      const auto results = runner_->forward(batch), expected = alone_->forward(others);
      for (size_t i = 0; i < 2; ++i) expect_same(results[i].hidden, expected[i].hidden);
    }
  }
}

// Heads that the decode kernel for 8 bits takes, and others.
class PackedRowsGpuDecoder : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    std::string why;
    if (cuda_devices(&why).empty()) GTEST_SKIP() << why;
    config_.hidden = 192;
    config_.layers = 2;
    config_.heads = 14;
    config_.kv_heads = 2;
    config_.head_size = GetParam();
    config_.intermediate = 328;
    config_.vocabulary = 300;
    config_.max_position = 4096;
    config_.qkv_bias = true;
    config_.tied = false;
    decoder_ = std::make_unique<TransformerDecoder>(context_, config_,
                                                    random_decoder(context_, config_, DType::bf16),
                                                    DecoderOptions{.activations = DType::bf16});
  }

  const ThreadPool pool_{2};
  const Context context_{pool_, Device::cuda()};
  DecoderConfig config_;
  std::unique_ptr<TransformerDecoder> decoder_;
};

// Steps go through captured graphs, whose kernels append and read 8 bits; the twins' through plans
// over f32 rows.
TEST_P(PackedRowsGpuDecoder, ComputesWhatWidenedRowsGive) {
  KINORA_FRESH_RANDOM(random);
  // Attention rounds queries, probabilities and, in groups, rows to bf16, 2^-9 of each, in two
  // layers; a code that flips changes a number by 1/127 of its neighbours' largest.
  constexpr double tolerance = 3e-2;
  for (const DType type : {DType::i8, DType::u8}) {
    SCOPED_TRACE(row_type_name(type));
    const RowLayout layout = testing::row_layout(config_, type);
    testing::BatchSession sessions[2], twins[2];
    for (int i = 0; i < 2; ++i) {
      for (int token = 0; token < 400; ++token) {
        sessions[i].script.add(static_cast<int32_t>(random.below(config_.vocabulary)));
      }
      twins[i].script = sessions[i].script;
      sessions[i].memory = std::make_unique<FlatMemory>(layout, context_.device);
      twins[i].memory =
          std::make_unique<WidenedMemory>(std::make_unique<FlatMemory>(layout, context_.device));
    }
    const auto runner = decoder_->runner(context_), alone = decoder_->runner(context_);
    for (const int64_t count : {129, 1, 1, 1, 1, 16, 2, 2, 8, 33, 4, 1, 65, 1, 1, 31}) {
      const Sequence batch[] = {sessions[0].next(count), sessions[1].next(count)};
      const Sequence others[] = {twins[0].next(count), twins[1].next(count)};
      const auto results = runner->forward(batch), expected = alone->forward(others);
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_LE(testing::row_error(results[i].hidden.to(Device::cpu()),
                                     expected[i].hidden.to(Device::cpu())),
                  tolerance)
            << count << " tokens";
      }
      EXPECT_EQ(sessions[0].memory->bytes().total(),
                sessions[0].memory->token_count() * layout.bytes_per_token());
    }
    // A tree of four nodes with two roots, of which the second path is taken.
    for (testing::BatchSession* session : {&sessions[0], &twins[0]}) {
      Sequence tree = session->next(4);
      tree.parents = {-1, 0, -1, 2};
      runner->forward(tree);
      session->memory->accept(context_, std::vector<int32_t>{2, 3});
    }
    EXPECT_LE(testing::row_error(runner->forward(sessions[0].next(1)).hidden.to(Device::cpu()),
                                 alone->forward(twins[0].next(1)).hidden.to(Device::cpu())),
              tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(HeadSizes, PackedRowsGpuDecoder, ::testing::Values(64, 80, 128));

INSTANTIATE_TEST_SUITE_P(Models, PackedRowsDecoder,
                         ::testing::Values(testing::BatchPlace{"qwen2_5_vl_tied_new"},
                                           testing::BatchPlace{"qwen3_vl_tied"}));

}  // namespace
}  // namespace kinora
