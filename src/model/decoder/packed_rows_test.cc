// A decoder over rows of 8 bits computes what it computes over the same rows widened to f32, bit
// for bit: prompts in any groups, batches, token trees. Single tokens are added up in another order
// over f32 rows (attention/step_attention.h), so there a decoder is compared with itself.
#include <gtest/gtest.h>

#include <cstring>

#include "memory/flat_memory.h"
#include "model/decoder/batch_case.h"
#include "model/decoder/wrapped_memory.h"
#include "support/random_data.h"

namespace kinora {
namespace {

// Keeps rows in 8 bits and gives them to its readers in f32.
class WidenedMemory final : public testing::WrappedMemory {
 public:
  explicit WidenedMemory(std::unique_ptr<Memory> inner)
      : WrappedMemory(std::move(inner)), wide_(static_cast<size_t>(layout().layers)) {}

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

INSTANTIATE_TEST_SUITE_P(Models, PackedRowsDecoder,
                         ::testing::Values(testing::BatchPlace{"qwen2_5_vl_tied_new"},
                                           testing::BatchPlace{"qwen3_vl_tied"}));

}  // namespace
}  // namespace kinora
