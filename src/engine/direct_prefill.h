// The slow, obvious reference of what an observer is shown: a prompt of one film and a text, read
// by hand through the model's parts, all frames encoded at once, with every call of attention
// copied. For tests of the tools that observe a session.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "attention/planner.h"
#include "attention/policies/dense.h"
#include "engine/ingest/unit_stream.h"
#include "memory/flat_memory.h"
#include "model/model.h"

namespace kinora::testing {

// One layer's attention of one group, copied.
struct RecordedCall {
  int layer = 0;
  float scale = 1;
  Tensor queries, keys, values;
  std::vector<int32_t> query_ordinals, row_ordinals;
  std::vector<Modality> query_modalities, row_modalities;

  QueryView query_view() const { return {queries, query_ordinals, query_modalities}; }
  RowSet rows() const { return {keys, values, row_ordinals, row_modalities}; }
};

class RecordingAttention final : public Attention {
 public:
  std::string_view name() const override { return "recording"; }
  void attend(const Context& context, int layer, const QueryView& queries, const RowSet& rows,
              float scale, TensorView out) override {
    const auto copy = [](ConstTensorView view) {
      Tensor to(view.dtype(), view.shape());
      copy_bytes(to.view().raw(), Device::cpu(), view.raw(), Device::cpu(),
                 static_cast<size_t>(to.bytes()));
      return to;
    };
    calls.push_back({layer,
                     scale,
                     copy(queries.queries),
                     copy(rows.keys),
                     copy(rows.values),
                     {queries.ordinals.begin(), queries.ordinals.end()},
                     {rows.ordinals.begin(), rows.ordinals.end()},
                     {queries.modalities.begin(), queries.modalities.end()},
                     {rows.modalities.begin(), rows.modalities.end()}});
    dense_.attend(context, layer, queries, rows, scale, out);
  }
  std::vector<RecordedCall> calls;

 private:
  DenseAttention dense_;
};

// Reads the prompt in groups of these many tokens, with rows in f32.
inline std::vector<RecordedCall> read_directly(const Context& context, const Model& model,
                                               const std::string& film, const std::string& question,
                                               const std::vector<int64_t>& groups,
                                               const Retention& retention = {}) {
  VisualRequest request;
  request.source = film;
  request.frames = FrameChoice::all();
  VisualInput input = open_visual(model, request, {});
  input.plan_among(model, 0);
  Conversation conversation;
  conversation.turns.push_back({"user", {{Modality::video, ""}, {Modality::text, question}}});
  const auto positions = model.positions();
  std::vector<TokenInfo> tokens;
  std::vector<Tensor> pieces;
  for (const PromptRun& run : model.render(conversation)) {
    if (run.visual < 0) {
      positions->text(static_cast<int64_t>(run.ids.size()), tokens);
      pieces.push_back(model.decoder().embed(context, run.ids));
      continue;
    }
    UnitStream stream(input, {}, int64_t{1} << 20);
    const auto units = stream.next();
    pieces.push_back(model.encode(context, input.plan, units->frames, true));
    positions->visual(input.plan, 0, units->count, units->times, true, tokens);
  }
  const int64_t hidden = model.decoder().hidden_size();
  std::vector<float> embeddings;
  for (const Tensor& piece : pieces) {
    embeddings.insert(embeddings.end(), piece.data<float>(),
                      piece.data<float>() + piece.elements());
  }
  RowLayout layout = model.info().rows;
  layout.dtype = DType::f32;
  FlatMemory memory(layout, Device::cpu(), retention);
  RecordingAttention attention;
  const auto runner = model.decoder().runner(context);
  int64_t first = 0;
  for (const int64_t count : groups) {
    Sequence group;
    group.embeddings = Tensor(DType::f32, {count, hidden});
    std::copy_n(embeddings.begin() + first * hidden, count * hidden,
                group.embeddings.data<float>());
    group.tokens.assign(tokens.begin() + first, tokens.begin() + first + count);
    group.memory = &memory;
    group.attention = &attention;
    runner->forward(group);
    first += count;
  }
  return std::move(attention.calls);
}

// By definition, in double: how much of a head's attention a policy's plans hold, summed over the
// queries of a call, and how many pairs they compute.
struct Held {
  double recall = 0;
  int64_t pairs = 0;
  int64_t visible = 0;
};

inline Held held_by(const Context& context, Attention& policy, const RecordedCall& call, int head) {
  const QueryView queries = call.query_view();
  const RowSet rows = call.rows();
  Planner& planner = *policy.planner();
  const bool dense = planner.falls_back(call.layer, queries, rows);
  std::vector<LabelledPlan> plans;
  if (!dense) plans = planner.plans(context, call.layer, queries, rows, call.scale);
  std::vector<int> reads(static_cast<size_t>(queries.count() * rows.count()), dense);
  for (const LabelledPlan& part : plans) {
    const auto mask = expand(part.plan, queries, rows, head);
    for (size_t i = 0; i < reads.size(); ++i) reads[i] += mask[i];
  }
  const int64_t heads = queries.queries.size(1), size = queries.queries.size(2);
  const int64_t kv_heads = rows.keys.size(1), kv_head = head / (heads / kv_heads);
  Held held;
  for (int64_t q = 0; q < queries.count(); ++q) {
    double all = 0, some = 0;
    for (int64_t r = 0; r < rows.count(); ++r) {
      if (call.row_ordinals[static_cast<size_t>(r)] > call.query_ordinals[static_cast<size_t>(q)]) {
        continue;
      }
      double dot = 0;
      for (int64_t c = 0; c < size; ++c) {
        dot += static_cast<double>(call.queries.data<float>()[(q * heads + head) * size + c]) *
               static_cast<double>(call.keys.data<float>()[(r * kv_heads + kv_head) * size + c]);
      }
      const double weight = std::exp(static_cast<double>(call.scale) * dot);
      all += weight;
      ++held.visible;
      if (reads[static_cast<size_t>(q * rows.count() + r)] == 0) continue;
      some += weight;
      ++held.pairs;
    }
    held.recall += some / all;
  }
  return held;
}

}  // namespace kinora::testing
