// When a group of frames is pruned: each layer's attention reads all of the group and what the same
// layer kept of earlier ones, by that layer's own keys. The reference keeps every row and works out
// anew, for every layer and group, which of them are to be read.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "model/decoder/transformer_decoder.h"
#include "model/decoder/wrapped_memory.h"
#include "model/reference_case.h"

namespace kinora {
namespace {

using testing::CaseName;
using testing::ReferenceCase;
using testing::row_error;

class RecomputingMemory final : public testing::WrappedMemory {
 public:
  RecomputingMemory(const RowLayout& layout, double ratio)
      : WrappedMemory(std::make_unique<FlatMemory>(layout)), ratio_(ratio) {}

  bool known_ahead() const override { return false; }
  std::span<const Position> begin(const Context& context, const MemoryGroup& group) override {
    groups_.push_back(std::ssize(group.tokens));
    return WrappedMemory::begin(context, group);
  }
  void read(const Context& context, int layer, const QueryView& queries,
            std::vector<RowSet>& out) override {
    WrappedMemory::read(context, layer, queries, out);
    RowSet& all = out.back();
    list_.clear();
    ordinals_.clear();
    modalities_.clear();
    int64_t first = 0;
    for (size_t group = 0; group < groups_.size(); ++group) {
      for (const int64_t row : kept(all, first, groups_[group], group + 1 == groups_.size())) {
        list_.push_back(static_cast<int32_t>(row));
        ordinals_.push_back(all.ordinals[static_cast<size_t>(row)]);
        modalities_.push_back(all.modalities[static_cast<size_t>(row)]);
      }
      first += groups_[group];
    }
    all.list = ConstTensorView::of(list_.data(), {std::ssize(list_)});
    all.ordinals = ordinals_;
    all.modalities = modalities_;
    all.times = {};
  }

 private:
  // Text, and the visual rows with the smallest keys; all of the newest group.
  std::vector<int64_t> kept(const RowSet& all, int64_t first, int64_t count, bool newest) const {
    std::vector<int64_t> rows(static_cast<size_t>(count));
    std::iota(rows.begin(), rows.end(), first);
    if (newest) return rows;
    std::vector<std::pair<double, int64_t>> visual;
    std::vector<int64_t> stay;
    for (const int64_t row : rows) {
      if (all.modalities[static_cast<size_t>(row)] == Modality::text) {
        stay.push_back(row);
        continue;
      }
      double squares = 0;
      for (int64_t i = 0; i < all.keys.size(1) * all.keys.size(2); ++i) {
        squares += std::pow(static_cast<double>(all.keys.row<float>(row)[i]), 2);
      }
      visual.push_back({squares, row});
    }
    std::sort(visual.begin(), visual.end());
    const auto many =
        static_cast<size_t>(std::max(1.0, std::round(ratio_ * static_cast<double>(visual.size()))));
    for (size_t i = 0; i < std::min(many, visual.size()); ++i) stay.push_back(visual[i].second);
    std::sort(stay.begin(), stay.end());
    return stay;
  }

  double ratio_;
  std::vector<int64_t> groups_;
  std::vector<int32_t> list_, ordinals_;
  std::vector<Modality> modalities_;
};

class PrunedPrefillTest : public ::testing::TestWithParam<CaseName> {
 protected:
  // The final hidden rows of the prompt, read in groups of `size`.
  Tensor in_groups(Memory& memory, int64_t size) {
    const int64_t count = embeddings_.size(0);
    Tensor all(DType::f32, embeddings_.shape());
    for (int64_t begin = 0; begin < count; begin += size) {
      const int64_t rows = std::min(size, count - begin);
      Sequence part;
      part.embeddings = Tensor(DType::f32, Shape{rows, embeddings_.size(1)});
      std::memcpy(part.embeddings.data<float>(), embeddings_.view().row<float>(begin),
                  static_cast<size_t>(part.embeddings.bytes()));
      part.deep = testing::deep_rows_of(deep_, begin, rows);
      part.tokens.assign(tokens_.begin() + begin, tokens_.begin() + begin + rows);
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
  const ReferenceCase reference_{GetParam()};
  const ModelConfig config_ = testing::read_config(testing::model_directory(GetParam().model));
  const TransformerDecoder decoder_{
      context_, config_.decoder,
      testing::bind_decoder(context_, config_.decoder, testing::model_directory(GetParam().model))};
  const std::unique_ptr<DecoderRunner> runner_ = decoder_.runner(context_);
  DenseAttention attention_;
  const Tensor embeddings_ = reference_.tensor("hidden.embeddings");
  const std::vector<TokenInfo> tokens_ = reference_.tokens(config_);
  const DeepRows deep_ = reference_.deep(config_);
};

TEST_P(PrunedPrefillTest, EveryLayerReadsWhatItKeptItself) {
  const RowLayout layout = testing::row_layout(config_.decoder);
  for (const int64_t size : {int64_t{13}, int64_t{40}}) {
    FlatMemory memory(layout, Device::cpu(), parse_retention("key-norm:0.5"));
    RecomputingMemory recomputing(layout, 0.5);
    const Tensor pruned = in_groups(memory, size);
    EXPECT_LE(row_error(pruned, in_groups(recomputing, size)), 1e-5) << "groups of " << size;
    // Pruning is visible at all: with everything kept the rows after a pruned group are others.
    FlatMemory whole(layout);
    const Tensor unpruned = in_groups(whole, size);
    const bool pruned_before = std::any_of(tokens_.begin(), tokens_.end(), [&](const auto& token) {
      const int64_t place = &token - tokens_.data();
      return token.modality != Modality::text && (place / size + 1) * size < std::ssize(tokens_);
    });
    if (pruned_before) {
      EXPECT_GT(row_error(pruned, unpruned), 1e-3);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, PrunedPrefillTest,
                         ::testing::ValuesIn(testing::find_cases("qwen2_5_vl")),
                         testing::case_label);
INSTANTIATE_TEST_SUITE_P(Deep, PrunedPrefillTest,
                         ::testing::ValuesIn(testing::find_cases("qwen3_vl")), testing::case_label);

}  // namespace
}  // namespace kinora
