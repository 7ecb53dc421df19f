// Test support: a model whose logits follow from the whole path of tokens and positions before
// them, exactly and at no cost. What a path leads to is kept in memory as a row's value, so that a
// row that is lost, moved wrongly or read by the wrong token changes everything after it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "model/model.h"
#include "model/sequential_positions.h"
#include "ops/gather.h"

namespace kinora::testing {

class PathDecoder final : public Decoder {
 public:
  explicit PathDecoder(int64_t vocabulary) : vocabulary_(vocabulary) {}

  // Of an empty path: 0. 44 bits.
  static uint64_t next_state(uint64_t before, int32_t id, int32_t position) {
    const uint64_t token = (static_cast<uint64_t>(id) + 1) << 44;
    return Random(before ^ token ^ static_cast<uint64_t>(position) << 20).next() >> 20;
  }
  std::vector<float> logits_after(uint64_t state) const {
    Random random(state);
    std::vector<float> logits(static_cast<size_t>(vocabulary_));
    for (float& logit : logits) logit = static_cast<float>(random.normal());
    return logits;
  }

  int64_t hidden_size() const override { return 2; }
  int64_t vocabulary() const override { return vocabulary_; }
  int layer_count() const override { return 2; }
  Tensor embed(const Context&, std::span<const int32_t>) const override {
    throw Error(ErrorKind::internal, "this decoder takes ids");
  }
  std::unique_ptr<DecoderRunner> runner(const Context& context) const override;
  Tensor norm(const Context&, ConstTensorView) const override {
    throw Error(ErrorKind::internal, "this decoder has no norm");
  }
  Tensor logits(const Context&, ConstTensorView hidden) const override {
    Tensor out(DType::f32, {hidden.size(0), vocabulary_});
    for (int64_t row = 0; row < hidden.size(0); ++row) {
      const std::vector<float> values = logits_after(unpack(hidden.row<float>(row)));
      std::copy(values.begin(), values.end(), out.view().row<float>(row));
    }
    return out;
  }

  // A state as two floats, exactly.
  static void pack(uint64_t state, float* out) {
    out[0] = static_cast<float>(state & 0x3fffff);
    out[1] = static_cast<float>(state >> 22);
  }
  static uint64_t unpack(const float* in) {
    return static_cast<uint64_t>(in[0]) | static_cast<uint64_t>(in[1]) << 22;
  }

  // Called before a batch and before each sequence of it; what they throw is the failure of all, or
  // of the one.
  std::function<void(std::span<const Sequence>)> on_batch;
  std::function<void(const Sequence&)> on_sequence;

 private:
  int64_t vocabulary_;
};

class PathRunner final : public DecoderRunner {
 public:
  PathRunner(const Context& context, const PathDecoder& decoder)
      : context_(context), decoder_(decoder) {}

  using DecoderRunner::forward;
  std::vector<Forwarded> forward(std::span<const Sequence> batch) override {
    if (decoder_.on_batch) decoder_.on_batch(batch);
    std::vector<Forwarded> results(batch.size());
    for (size_t i = 0; i < batch.size(); ++i) {
      const MemoryMark before = batch[i].memory->mark();
      try {
        results[i] = run(batch[i]);
      } catch (...) {
        batch[i].memory->rewind(before);
        results[i].failure = std::current_exception();
      }
    }
    return results;
  }

 private:
  uint64_t newest_state(Memory& memory) const {
    if (memory.token_count() == 0) return 0;
    std::vector<RowSet> sets;
    memory.read(context_, 0, {}, sets);
    const ConstTensorView values = sets.back().values;
    return PathDecoder::unpack(values.row<float>(values.size(0) - 1));
  }

  Forwarded run(const Sequence& sequence) const {
    sequence.cancel.check();
    if (decoder_.on_sequence) decoder_.on_sequence(sequence);
    const uint64_t before = newest_state(*sequence.memory);
    sequence.memory->begin(context_, {sequence.tokens, sequence.parents, sequence.probes});
    std::vector<NewRows> rows;
    for (int layer = 0; layer < decoder_.layer_count(); ++layer) {
      rows.push_back(sequence.memory->append(layer));
    }
    const int64_t count = sequence.count();
    std::vector<uint64_t> states;
    Tensor all(DType::f32, {count, decoder_.hidden_size()});
    for (int64_t i = 0; i < count; ++i) {
      const auto place = static_cast<size_t>(i);
      const int64_t parent = sequence.parents.empty() ? i - 1 : sequence.parents[place];
      const uint64_t from = parent < 0 ? before : states[static_cast<size_t>(parent)];
      const int32_t position = sequence.tokens[place].position[0];
      states.push_back(PathDecoder::next_state(from, sequence.ids.at(place), position));
      PathDecoder::pack(states.back(), all.view().row<float>(i));
      for (const NewRows& layer : rows) {
        PathDecoder::pack(states.back(), layer.values.row<float>(i));
        layer.keys.row<float>(i)[0] = static_cast<float>(sequence.ids[place]);
        layer.keys.row<float>(i)[1] = static_cast<float>(position);
      }
    }
    Forwarded result;
    result.hidden = Tensor(DType::f32, {sequence.hidden_rows, decoder_.hidden_size()});
    const ConstTensorView wanted =
        all.view().rows(count - sequence.hidden_rows, sequence.hidden_rows);
    copy_bytes(result.hidden.view().raw(), Device::cpu(), wanted.raw(), Device::cpu(),
               static_cast<size_t>(wanted.bytes()));
    if (!sequence.state_rows.empty()) {
      Tensor some(DType::f32, {std::ssize(sequence.state_rows), decoder_.hidden_size()});
      gather_rows(context_, all, sequence.state_rows, some);
      all = std::move(some);
    }
    result.states.assign(sequence.states.size(), all);
    return result;
  }

  Context context_;
  const PathDecoder& decoder_;
};

inline std::unique_ptr<DecoderRunner> PathDecoder::runner(const Context& context) const {
  return std::make_unique<PathRunner>(context, *this);
}

// Text only, with the words of a fixture.
class PathModel final : public Model {
 public:
  explicit PathModel(int64_t vocabulary)
      : decoder_(vocabulary),
        tokenizer_(Tokenizer::load(real_files(), KINORA_FIXTURES "/models/qwen2_tied")) {
    info_.vocabulary = vocabulary;
    info_.max_position = int64_t{1} << 30;
    info_.rows = {decoder_.layer_count(), 1, 2, DType::f32};
  }

  PathDecoder& path() { return decoder_; }

  const ModelInfo& info() const override { return info_; }
  const Tokenizer& tokenizer() const override { return tokenizer_; }
  const Decoder& decoder() const override { return decoder_; }
  std::vector<PromptRun> render(const Conversation&) const override { return {}; }
  VisualPlan plan_visual(const VisualSource&, const VisualLimits&) const override { return {}; }
  Tensor encode(const Context&, const VisualPlan&, const FrameGroup&, bool) const override {
    return {};
  }
  std::unique_ptr<PositionCounter> positions() const override { return sequential_positions(); }
  std::vector<int64_t> choose_frames(int64_t, double, const FrameWish&) const override {
    return {};
  }
  double default_fps() const override { return 0; }
  int64_t default_max_frames() const override { return 0; }

 private:
  ModelInfo info_;
  PathDecoder decoder_;
  Tokenizer tokenizer_;
};

}  // namespace kinora::testing
