// Test support: sessions with random text that go through a small model in batches, each with a
// twin that reads the same text alone. On the CPU, and in exact mode on a GPU if there is one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "model/reference_case.h"
#include "support/sanitized.h"

namespace kinora::testing {

// What a session is going to read.
struct Script {
  std::vector<int32_t> ids;
  std::vector<TokenInfo> tokens;

  // Text goes on at the position after the last.
  void add(int32_t id) {
    const int32_t at = tokens.empty() ? 0 : tokens.back().position[0] + 1;
    ids.push_back(id);
    tokens.push_back({});
    tokens.back().position = {at, at, at};
  }
};

// Drafted tokens, any of which may follow the text or one another.
struct TokenTree {
  std::vector<int32_t> ids;
  std::vector<int32_t> parents;

  // Several roots, branches of any depth.
  static TokenTree any(Random& random, int64_t nodes, int64_t vocabulary) {
    TokenTree tree;
    for (int64_t i = 0; i < nodes; ++i) {
      tree.ids.push_back(static_cast<int32_t>(random.below(vocabulary)));
      tree.parents.push_back(static_cast<int32_t>(std::max<int64_t>(-1, i - 1 - random.below(5))));
    }
    return tree;
  }
  int32_t nodes() const { return static_cast<int32_t>(ids.size()); }
  // From a root to the node.
  std::vector<int32_t> path(int32_t node) const {
    std::vector<int32_t> result;
    for (; node >= 0; node = parents[static_cast<size_t>(node)]) result.push_back(node);
    std::reverse(result.begin(), result.end());
    return result;
  }
};

struct BatchSession {
  Script script;
  std::unique_ptr<Memory> memory;
  DenseAttention attention;

  // The next `count` tokens of the script after what the memory holds; all hidden rows are wanted.
  Sequence next(int64_t count) {
    const auto begin = static_cast<size_t>(memory->token_count());
    const auto end = begin + static_cast<size_t>(count);
    Sequence sequence;
    for (size_t i = begin; i < end; ++i) {
      sequence.ids.push_back(script.ids.at(i));
      sequence.tokens.push_back(script.tokens.at(i));
    }
    sequence.memory = memory.get();
    sequence.attention = &attention;
    sequence.hidden_rows = count;
    return sequence;
  }
  // The text with a path of the tree behind it.
  Script followed(const TokenTree& tree, std::span<const int32_t> path) const {
    Script text = script;
    for (const int32_t node : path) text.add(tree.ids[static_cast<size_t>(node)]);
    return text;
  }
  // The tree behind all of the text, which has been read.
  Sequence verify(const TokenTree& tree) {
    Sequence sequence;
    sequence.ids = tree.ids;
    sequence.parents = tree.parents;
    for (int32_t node = 0; node < tree.nodes(); ++node) {
      sequence.tokens.push_back(followed(tree, tree.path(node)).tokens.back());
    }
    sequence.memory = memory.get();
    sequence.attention = &attention;
    sequence.hidden_rows = tree.nodes();
    return sequence;
  }
};

struct BatchPlace {
  std::string model;
  bool gpu = false;
};
inline void PrintTo(const BatchPlace& place, std::ostream* out) {
  *out << place.model << (place.gpu ? " on a GPU" : " on the CPU");
}

class BatchCase : public ::testing::TestWithParam<BatchPlace> {
 protected:
  void SetUp() override {
    std::string why;
    if (GetParam().gpu && cuda_devices(&why).empty()) GTEST_SKIP() << why;
    const std::string directory = model_directory(GetParam().model);
    config_ = read_config(directory).decoder;
    if (GetParam().gpu) context_.device = Device::cuda();
    decoder_ = std::make_unique<TransformerDecoder>(
        context_, config_, bind_decoder(Context(pool_), config_, directory));
    runner_ = decoder_->runner(context_);
    alone_ = decoder_->runner(context_);
  }

  bool on_gpu() const { return GetParam().gpu; }
  double tolerance() const { return on_gpu() ? 1e-4 : 1e-5; }

  std::unique_ptr<Memory> flat() const {
    return std::make_unique<FlatMemory>(row_layout(config_), context_.device);
  }
  int32_t random_id(Random& random) const {
    return static_cast<int32_t>(random.below(config_.vocabulary));
  }
  // Text, with runs of frames in it whose three positions differ.
  void extend(Random& random, Script& script, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      script.add(random_id(random));
      if (i % 20 < 12) continue;
      TokenInfo& token = script.tokens.back();
      token.modality = Modality::video;
      token.time = static_cast<double>(i / 20);
      token.position[1] += static_cast<int32_t>(random.below(4));
      token.position[2] += static_cast<int32_t>(random.below(4));
    }
  }
  BatchSession session(Random& random, int64_t length) const {
    BatchSession made;
    extend(random, made.script, length);
    made.memory = flat();
    return made;
  }
  BatchSession twin(const BatchSession& session) const {
    BatchSession made;
    made.script = session.script;
    made.memory = flat();
    return made;
  }
  void read_alone(BatchSession& session, int64_t count) const {
    if (count > 0) alone_->forward(session.next(count));
  }

  std::vector<int32_t> preferred(const Tensor& hidden) const {
    return argmax_rows(context_, decoder_->logits(context_, hidden));
  }
  // The same rows within the tolerance, and the same tokens preferred after each: rounding may
  // decide only between tokens that are equally good.
  void expect_close(const Tensor& actual, const Tensor& expected) const {
    ASSERT_EQ(actual.shape(), expected.shape());
    if (actual.size(0) == 0) return;
    EXPECT_LE(row_error(actual.to(Device::cpu()), expected.to(Device::cpu())), tolerance());
    const Tensor logits = decoder_->logits(context_, expected);
    const Tensor values = logits.to(Device::cpu());
    const std::vector<int32_t> ours = preferred(actual), theirs = argmax_rows(context_, logits);
    for (size_t i = 0; i < ours.size(); ++i) {
      const float* row = values.view().row<float>(static_cast<int64_t>(i));
      const float best = row[theirs[i]];
      EXPECT_NEAR(row[ours[i]], best, tolerance() * std::abs(best)) << "row " << i;
    }
  }
  // For rows that are not the model's last.
  void expect_close_state(const Tensor& actual, const Tensor& expected) const {
    ASSERT_EQ(actual.shape(), expected.shape());
    EXPECT_LE(row_error(actual.to(Device::cpu()), expected.to(Device::cpu())), tolerance());
  }
  // One forward of the next tokens of every session, then the same of the twins one by one.
  void expect_as_alone(std::span<BatchSession> sessions, std::span<BatchSession> twins,
                       std::span<const int64_t> counts) const {
    std::vector<Sequence> batch;
    for (size_t i = 0; i < sessions.size(); ++i) {
      batch.push_back(sessions[i].next(counts[i]));
      if (i % 3 != 1) continue;  // some bring embeddings
      batch.back().embeddings = decoder_->embed(context_, batch.back().ids);
      batch.back().ids.clear();
    }
    const std::vector<Forwarded> results = runner_->forward(batch);
    ASSERT_EQ(results.size(), sessions.size());
    for (size_t i = 0; i < sessions.size(); ++i) {
      SCOPED_TRACE("sequence " + std::to_string(i) + " of " + std::to_string(sessions.size()) +
                   " with " + std::to_string(counts[i]) + " tokens");
      ASSERT_FALSE(results[i].failure);
      expect_close(results[i].hidden, alone_->forward(twins[i].next(counts[i])).hidden);
      EXPECT_EQ(sessions[i].memory->token_count(), twins[i].memory->token_count());
    }
  }

  ThreadPool pool_{2};
  Context context_{pool_};
  DecoderConfig config_;
  std::unique_ptr<TransformerDecoder> decoder_;
  std::unique_ptr<DecoderRunner> runner_;
  std::unique_ptr<DecoderRunner> alone_;  // shares no space and no graph with the other
};

// M-RoPE and biases, normed heads, scaled frequencies.
inline auto batch_places() {
  std::vector<BatchPlace> places;
  for (const char* model : {"qwen2_5_vl_untied_old", "qwen3", "llama3"}) {
    for (const bool gpu : {false, true}) places.push_back({model, gpu});
  }
  return ::testing::ValuesIn(places);
}
inline std::string batch_label(const ::testing::TestParamInfo<BatchPlace>& info) {
  return info.param.model + (info.param.gpu ? "__gpu" : "__cpu");
}

}  // namespace kinora::testing
