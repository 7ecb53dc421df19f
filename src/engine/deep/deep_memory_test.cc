// Qwen3-VL with memories that read only some of the rows. The reference keeps every row in one flat
// memory and leaves out, row by row, what the memory under test did not read; a session with that
// memory must answer the same.
#include <gtest/gtest.h>
#include <kinora/session.h>

#include <algorithm>
#include <string>
#include <vector>

#include "attention/policies/dense.h"
#include "engine/engine_state.h"
#include "engine/ingest/unit_stream.h"
#include "engine/prompt.h"
#include "memory/flat_memory.h"
#include "memory/policies.h"
#include "model/decoder/input_rows.h"
#include "model/decoder/wrapped_memory.h"
#include "support/compare.h"
#include "support/film.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

using Ordinals = std::vector<int32_t>;
using Readings = std::vector<std::vector<Ordinals>>;  // by group, by layer

// Writes down what a memory lets its reader see.
class RecordingMemory final : public testing::WrappedMemory {
 public:
  using WrappedMemory::WrappedMemory;

  std::span<const Position> begin(const Context& context, const MemoryGroup& group) override {
    readings.emplace_back(static_cast<size_t>(layout().layers));
    return WrappedMemory::begin(context, group);
  }
  void read(const Context& context, int layer, const QueryView& queries,
            std::vector<RowSet>& out) override {
    const size_t before = out.size();
    WrappedMemory::read(context, layer, queries, out);
    Ordinals& seen = readings.back()[static_cast<size_t>(layer)];
    for (size_t i = before; i < out.size(); ++i) {
      EXPECT_EQ(out[i].weights.raw(), nullptr);  // no row stands for others
      seen.insert(seen.end(), out[i].ordinals.begin(), out[i].ordinals.end());
    }
    std::sort(seen.begin(), seen.end());
  }

  Readings readings;
};

// Keeps all rows where they were and lets each group see those that are listed.
class ListedMemory final : public testing::WrappedMemory {
 public:
  ListedMemory(const RowLayout& layout, Readings readings)
      : WrappedMemory(std::make_unique<FlatMemory>(layout)), readings_(std::move(readings)) {}

  bool known_ahead() const override { return false; }
  std::span<const Position> begin(const Context& context, const MemoryGroup& group) override {
    ++group_;
    return WrappedMemory::begin(context, group);
  }
  void read(const Context& context, int layer, const QueryView& queries,
            std::vector<RowSet>& out) override {
    WrappedMemory::read(context, layer, queries, out);
    RowSet& all = out.back();
    list_ = readings_.at(group_ - 1).at(static_cast<size_t>(layer));
    modalities_.clear();
    for (const int32_t row : list_) {
      EXPECT_EQ(all.ordinals[static_cast<size_t>(row)], row);  // nothing was pruned
      modalities_.push_back(all.modalities[static_cast<size_t>(row)]);
    }
    all.list = ConstTensorView::of(list_.data(), {std::ssize(list_)});
    all.ordinals = list_;
    all.modalities = modalities_;
    all.times = {};
  }

 private:
  const Readings readings_;
  size_t group_ = 0;
  std::vector<int32_t> list_;
  std::vector<Modality> modalities_;
};

constexpr int64_t answer_tokens = 8;
const std::string question = "What is it?";

struct ReadByHand {
  std::vector<int32_t> ids;
  std::vector<float> hidden;     // of the last token of every group
  std::vector<Modality> tokens;  // of the prompt
  int64_t question_group = 0;
};

// The video in groups of three units, then the question, then the answer token by token.
ReadByHand read_by_hand(const EngineState& engine, const std::string& film, Memory& memory) {
  const Model& model = *engine.model;
  const Context& context = engine.context;
  VisualRequest request;
  request.source = film;
  request.frames = FrameChoice::all();
  VisualInput input = open_visual(model, request, {});
  input.plan_among(model, 0);
  UnitStream stream(input, {}, int64_t{1} << 20);
  const auto units = stream.next();
  const Tensor seen = model.encode(context, input.plan, units->frames, true);
  std::vector<VisualSegment> segments;
  Turn turn{"user", lay_out(input, {}, 0, segments)};
  turn.parts.push_back({Modality::text, question});
  Conversation conversation;
  conversation.turns.push_back(std::move(turn));

  ReadByHand result;
  DenseAttention attention;
  const auto runner = model.decoder().runner(context);
  const auto positions = model.positions();
  Sequence group;
  std::vector<Tensor> pieces;
  Tensor last;
  const auto run = [&] {
    if (!pieces.empty()) set_input_rows(context, pieces, model.decoder().hidden_size(), group);
    group.memory = &memory;
    group.attention = &attention;
    last = runner->forward(group).hidden;
    const float* row = last.view().row<float>(last.size(0) - 1);
    result.hidden.insert(result.hidden.end(), row, row + last.size(1));
    group = {};
    pieces.clear();
  };
  const int64_t unit = input.plan.tokens_per_unit;
  for (const PromptRun& part : model.render(conversation)) {
    if (part.visual < 0) {
      positions->text(std::ssize(part.ids), group.tokens);
      pieces.push_back(model.decoder().embed(context, part.ids));
      result.tokens.resize(result.tokens.size() + part.ids.size(), Modality::text);
      continue;
    }
    const double time = units->times[static_cast<size_t>(part.visual)];
    positions->visual(input.plan, part.visual, 1, {&time, 1}, false, group.tokens);
    Tensor rows(DType::f32, {unit, seen.size(1)});
    std::copy_n(seen.view().row<float>(part.visual * unit), rows.elements(), rows.data<float>());
    pieces.push_back(std::move(rows));
    result.tokens.resize(result.tokens.size() + static_cast<size_t>(unit), Modality::video);
    if (part.visual % 3 != 2 && part.visual + 1 < input.plan.units) continue;
    run();
    ++result.question_group;
  }
  run();
  while (std::ssize(result.ids) < answer_tokens) {
    const Tensor logits = model.decoder().logits(context, last);
    const float* begin = logits.data<float>();
    result.ids.push_back(
        static_cast<int32_t>(std::max_element(begin, begin + logits.size(1)) - begin));
    group.ids = {result.ids.back()};
    positions->text(1, group.tokens);
    run();
  }
  return result;
}

class DeepMemory : public ::testing::TestWithParam<const char*> {};

TEST_P(DeepMemory, WhatIsNotReadIsLeftOutAndNothingElse) {
  KINORA_FRESH_RANDOM(random);
  const std::string policy = GetParam();
  const testing::TempDir directory;
  const std::string film = testing::write_film(directory.file("film"), random, 10, 60, 80);
  const Engine engine(
      {.model = std::string(KINORA_FIXTURES) + "/models/qwen3_vl_tied", .device = "cpu"});
  const EngineState& state = *EngineAccess::state(engine);
  RowLayout layout = state.model->info().rows;
  layout.dtype = DType::f32;

  RecordingMemory chosen(make_memory(policy, {layout, Device::cpu(), {}}));
  const ReadByHand answer = read_by_hand(state, film, chosen);
  ListedMemory listed(layout, chosen.readings);
  const ReadByHand expected = read_by_hand(state, film, listed);
  EXPECT_LE((testing::relative_error<float, float>(answer.hidden, expected.hidden)), 1e-5);
  EXPECT_EQ(answer.ids, expected.ids);

  // Rows were left out: it matters, and no more of them are read than the policy allows.
  FlatMemory all(layout);
  const ReadByHand everything = read_by_hand(state, film, all);
  EXPECT_GT((testing::relative_error<float, float>(answer.hidden, everything.hidden)), 1e-4);
  constexpr int64_t rows = 8;
  for (const Ordinals& read : chosen.readings[static_cast<size_t>(answer.question_group)]) {
    Ordinals visual, wanted;
    int64_t text = 0;
    for (const int32_t row : read) {
      const bool is_text = answer.tokens[static_cast<size_t>(row)] == Modality::text;
      if (is_text) ++text;
      if (!is_text) visual.push_back(row);
    }
    EXPECT_EQ(text, std::count(answer.tokens.begin(), answer.tokens.end(), Modality::text));
    EXPECT_LE(std::ssize(visual), rows);
    EXPECT_GT(std::ssize(visual), 0);
    if (!policy.starts_with("sliding")) continue;
    for (auto row = std::ssize(answer.tokens); row-- > 0 && std::ssize(wanted) < rows;) {
      if (answer.tokens[static_cast<size_t>(row)] == Modality::text) continue;
      wanted.insert(wanted.begin(), static_cast<int32_t>(row));
    }
    EXPECT_EQ(visual, wanted);
  }

  SessionOptions options;
  options.row_type = "f32";
  options.memory = policy;
  options.frames_per_group = 6;
  options.max_group_tokens = 1 << 20;
  options.dense_below = 0;
  AnswerOptions greedy;
  greedy.temperature = 0;
  greedy.repetition_penalty = 1;
  greedy.max_tokens = answer_tokens;
  greedy.ignore_stop_tokens = true;
  InputOptions every;
  every.frames = FrameChoice::all();
  // New frames that see only some of the earlier ones see others where groups end elsewhere.
  if (policy.starts_with("sliding") || policy.find("window") != std::string::npos) return;
  Session session(engine, options);
  session.add(film, every);
  EXPECT_EQ(session.ask(question, greedy).ids, answer.ids);
}

INSTANTIATE_TEST_SUITE_P(
    Policies, DeepMemory,
    ::testing::Values("sliding:rows=8,sinks=0,positions=original",
                      "uniform:rows=8,positions=original",
                      "frame-retrieval:rows=8,positions=original",
                      "mosaic:rows=8,cluster=2,representatives=0,positions=original",
                      "mosaic:rows=8,cluster=2,representatives=0,positions=original,window=8"),
    [](const auto& test) {
      std::string name;
      for (const char* c = test.param; *c != '\0'; ++c) {
        name += std::isalnum(static_cast<unsigned char>(*c)) != 0 ? *c : '_';
      }
      return name;
    });

}  // namespace
}  // namespace kinora
