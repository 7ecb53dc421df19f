// Test support: memories that behave like another one, except where a test overrides them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "memory/memory.h"
#include "model/decoder/rotary.h"
#include "ops/rope.h"

namespace kinora::testing {

class WrappedMemory : public Memory {
 public:
  explicit WrappedMemory(std::unique_ptr<Memory> inner) : inner_(std::move(inner)) {}

  const RowLayout& layout() const override { return inner_->layout(); }
  Device device() const override { return inner_->device(); }
  KeyForm key_form() const override { return inner_->key_form(); }
  bool needs_question() const override { return inner_->needs_question(); }
  bool known_ahead() const override { return inner_->known_ahead(); }

  std::span<const Position> begin(const Context& context, const MemoryGroup& group) override {
    return inner_->begin(context, group);
  }
  NewRows append(int layer) override { return inner_->append(layer); }
  QueryView queries() const override { return inner_->queries(); }
  void read(const Context& context, int layer, const QueryView& queries,
            std::vector<RowSet>& out) override {
    inner_->read(context, layer, queries, out);
  }
  void after(const Context& context, int layer, const QueryView& queries) override {
    inner_->after(context, layer, queries);
  }
  void accept(const Context& context, std::span<const int32_t> tokens) override {
    inner_->accept(context, tokens);
  }
  TensorView state(int layer, int32_t node) override { return inner_->state(layer, node); }

  MemoryMark mark() const override { return inner_->mark(); }
  void rewind(const MemoryMark& mark) override { inner_->rewind(mark); }
  std::unique_ptr<Memory> fork(const MemoryMark& mark) override { return inner_->fork(mark); }

  int64_t token_count() const override { return inner_->token_count(); }
  const TokenInfo& token(int64_t ordinal) const override { return inner_->token(ordinal); }
  int64_t row_count(int layer) const override { return inner_->row_count(layer); }
  MemoryBytes bytes() const override { return inner_->bytes(); }

 private:
  std::unique_ptr<Memory> inner_;
};

// Lets something happen at one stage of one layer: a failure, or a cancel.
class FaultyMemory final : public WrappedMemory {
 public:
  enum class Stage { none, begin, append, read, after };

  using WrappedMemory::WrappedMemory;

  // `fault` runs in front of the stage's own work; layers do not matter to `begin`.
  void fail(Stage stage, int layer, std::function<void()> fault) {
    stage_ = stage;
    layer_ = layer;
    fault_ = std::move(fault);
  }

  // If there is something to do after a layer, layers are run one by one.
  bool known_ahead() const override {
    return stage_ != Stage::after && WrappedMemory::known_ahead();
  }
  std::span<const Position> begin(const Context& context, const MemoryGroup& group) override {
    happen(Stage::begin, layer_);
    return WrappedMemory::begin(context, group);
  }
  NewRows append(int layer) override {
    happen(Stage::append, layer);
    return WrappedMemory::append(layer);
  }
  void read(const Context& context, int layer, const QueryView& queries,
            std::vector<RowSet>& out) override {
    happen(Stage::read, layer);
    WrappedMemory::read(context, layer, queries, out);
  }
  void after(const Context& context, int layer, const QueryView& queries) override {
    happen(Stage::after, layer);
    WrappedMemory::after(context, layer, queries);
  }

 private:
  void happen(Stage stage, int layer) const {
    if (stage == stage_ && layer == layer_) fault_();
  }

  Stage stage_ = Stage::none;
  int layer_ = 0;
  std::function<void()> fault_;
};

// Keeps keys as the projection gives them and turns them whenever they are read.
class UnrotatedMemory final : public WrappedMemory {
 public:
  UnrotatedMemory(std::unique_ptr<Memory> inner, const RopeConfig& rope)
      : WrappedMemory(std::move(inner)),
        rope_(rope),
        frequencies_(rotary_frequencies(rope, layout().head_size)),
        turned_(static_cast<size_t>(layout().layers)) {}

  KeyForm key_form() const override { return KeyForm::unrotated; }

  void read(const Context& context, int layer, const QueryView& queries,
            std::vector<RowSet>& out) override {
    const size_t first = out.size();
    WrappedMemory::read(context, layer, queries, out);
    std::vector<Tensor>& turned = turned_[static_cast<size_t>(layer)];
    turned.clear();
    for (size_t i = first; i < out.size(); ++i) {
      std::vector<Position> positions;
      for (const int32_t ordinal : out[i].ordinals) positions.push_back(token(ordinal).position);
      Tensor keys(DType::f32, {out[i].count(), out[i].keys.size(1), head_size_of(out[i].keys)},
                  context.device);
      widen_rows(context, out[i].keys, keys);
      apply_rope(context, rotary_table(context, rope_, frequencies_, positions), keys);
      turned.push_back(keys);
      out[i].keys = turned.back().view();
    }
  }

 private:
  RopeConfig rope_;
  std::vector<double> frequencies_;
  std::vector<std::vector<Tensor>> turned_;  // by layer; f32, so the rows must be f32 too
};

}  // namespace kinora::testing
