#include <algorithm>
#include <bit>
#include <compare>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "attention/cuda/decode/decode_cuda.h"
#include "attention/cuda/device_rows.h"
#include "base/gpu.h"
#include "generate/device_tree/device_tree.h"
#include "generate/device_tree/tree_kernels.h"
#include "model/decoder/decode_step.h"
#include "model/decoder/rotary.h"
#include "model/decoder/steps.h"
#include "model/decoder/transformer_decoder.h"
#include "model/weights/linear.h"
#include "ops/elementwise.h"
#include "ops/rms_norm.h"

namespace kinora {
namespace {

constexpr int64_t most_tokens = most_decode_tokens;
constexpr int64_t most_width = 32;
constexpr int64_t most_candidates = most_width + most_tokens * most_width;
// So few rows are read sooner than the parts of several blocks are joined.
constexpr int64_t most_undivided = 512;
constexpr int64_t most_text = TreeStart::most;
constexpr int64_t most_levels = most_tokens;
constexpr int64_t most_positions = most_text + most_tokens + 16;  // a level's tokens are padded

// What the host tells the device of a tree before it grows.
struct Told {
  DeviceSequence levels[1 + most_levels];  // what the text reads, then what every level reads
  Position positions[most_positions];      // of the text, then of the tree
  uint64_t masks[most_text];
  int32_t ids[most_text];
  int32_t parents[most_text];  // which of the given states comes before a token
};

// Two kinds of graphs serve any number of text tokens.
int64_t padded_text(int64_t count) { return count <= most_text / 2 ? most_text / 2 : most_text; }

// What the device tells the host when it has grown.
struct Found {
  int32_t guesses[most_candidates];
  float likely[most_candidates];
  int32_t chosen[most_tokens];
};

class CapturedTrees final : public DeviceTrees {
 public:
  explicit CapturedTrees(const DeviceTreeParts& parts);

  bool takes(const TreeShape& shape) const override;
  GrownTree grow(const TreeShape& shape, int64_t deepest, const TreeStart& start) override;

 private:
  // What a graph has captured.
  struct Kind {
    int64_t text = 1;  // tokens, padded
    int64_t depth = 1;
    int64_t width = 1;
    int splits = 1;
    auto operator<=>(const Kind&) const = default;
  };
  struct Captured {
    GpuGraph graph;
    Tensor scratch;                            // of the attention
    Tensor logits;                             // [width, the speaker's vocabulary] f32
    std::optional<RankedThere> first, ranked;  // after the newest token, and after a level
  };

  const DecoderConfig& config() const { return parts_.layers.config(); }
  void make_buffers();
  void tell_text(const TreeStart& start, Told& told);
  DeviceSequence append(Memory& memory, std::span<const Position> positions);
  Kind tell_levels(const TreeShape& shape, const TreeStart& start, Told& told);
  bool replay(const Kind& kind);
  void make_room(const Kind& kind, Captured& captured);
  void levels(const Context& context, const Kind& kind, Captured& captured);
  // The text, or a level, on its way through the layer.
  struct Pass {
    int64_t tokens = 1;
    cuda::TreeInput input;
    const DeviceSequence* sequence = nullptr;
    const uint64_t* masks = nullptr;
    int64_t first_position = 0;  // in Told

    int64_t padded() const { return captured_tokens(tokens); }
  };
  Pass text_pass(const Kind& kind);
  Pass level_pass(const Kind& kind, int64_t level);
  void run(const Context& context, const Kind& kind, const Captured& captured, const Pass& pass);
  void join(const Context& context, const Pass& pass);
  void attend(const Context& context, const Kind& kind, const Captured& captured, const Pass& pass);
  DecodeAttention work_of(const Kind& kind, const Captured& captured, const Pass& pass);
  // What may follow the last `rows` of `tokens` tokens.
  void speak(const Context& context, Captured& captured, int64_t tokens, int64_t rows);
  DraftTree read(const Kind& kind, int64_t deepest) const;

  const Told* told_there() const {
    return reinterpret_cast<const Told*>(ConstTensorView(told_.view()).raw());
  }
  Found* found_there() { return reinterpret_cast<Found*>(found_.view().raw()); }

  DeviceTreeParts parts_;
  Context context_;
  bool ready_ = false;
  Tensor names_;  // i32: the target's tokens by the draft's; undefined: the same
  LayerSpace space_;
  Tensor told_, found_;   // on the device, and …
  PinnedBuffer telling_;  // … where they are copied from …
  PinnedBuffer heard_;    // … and to
  Tensor columns_;        // frequencies and axes of the rotation
  Tensor cos_, sin_;      // [most_positions, head size / 2]
  Tensor joined_;         // [most_tokens, 2 × hidden]: what FC joins; or, where rows stand beside,
                          // f32 [most_tokens, hidden]: states before their norm
  Tensor given_;          // f32 [most_text, hidden]: states that come with the text
  Tensor spoken_;         // [most_width, hidden]: what the head reads
  Tensor tables_;         // the rest of cuda::TreeTables
  cuda::TreeTables tree_;
  std::map<Kind, Captured> captured_;
};

CapturedTrees::CapturedTrees(const DeviceTreeParts& parts)
    : parts_(parts), context_(parts.context) {}

bool CapturedTrees::takes(const TreeShape& shape) const {
  // In f32, more than a few rows would widen weights first, in memory that a graph cannot ask for.
  return shape.depth >= 1 && shape.width >= 1 && shape.width <= most_width &&
         shape.depth * shape.width <= most_tokens && parts_.layers.activations() == DType::bf16 &&
         parts_.speaker.activations() == DType::bf16 && parts_.layers.fit_steps() &&
         parts_.speaker.fit_steps() &&
         RankedThere::takes(parts_.speaker.config().vocabulary, shape.width);
}

void CapturedTrees::make_buffers() {
  if (ready_) return;
  const Device device = context_.device;
  const int64_t hidden = config().hidden, half = config().head_size / 2;
  const auto bytes = [&](size_t count) {
    return Tensor::zeros(DType::u8, {static_cast<int64_t>(count)}, device);
  };
  parts_.layers.grow(context_, most_tokens, space_, true);
  told_ = bytes(sizeof(Told));
  found_ = bytes(sizeof(Found));
  telling_ = PinnedBuffer(sizeof(Told));
  heard_ = PinnedBuffer(sizeof(Found));
  cos_ = Tensor(DType::f32, {most_positions, half}, device);
  sin_ = Tensor(DType::f32, {most_positions, half}, device);
  joined_ = parts_.draft.feed.fused
                ? Tensor::zeros(DType::f32, {most_tokens, hidden}, device)
                : Tensor::zeros(parts_.layers.activations(), {most_tokens, 2 * hidden}, device);
  given_ = Tensor(DType::f32, {most_text, hidden}, device);
  spoken_ = Tensor(parts_.layers.activations(), {most_width, hidden}, device);

  std::vector<std::byte> columns(static_cast<size_t>(half) * (sizeof(double) + sizeof(int32_t)));
  const std::vector<int32_t> axes = rotary_axes(config().rope, config().head_size);
  std::memcpy(columns.data(), parts_.frequencies.data(), parts_.frequencies.size_bytes());
  std::memcpy(columns.data() + parts_.frequencies.size_bytes(), axes.data(),
              axes.size() * sizeof(int32_t));
  columns_ = bytes(columns.size());
  copy_bytes(columns_.view().raw(), device, columns.data(), Device::cpu(), columns.size());
  if (const std::vector<int32_t>& names = parts_.draft.tokens; !names.empty()) {
    names_ = bytes(names.size() * sizeof(int32_t));
    copy_bytes(names_.view().raw(), device, names.data(), Device::cpu(),
               names.size() * sizeof(int32_t));
  }

  constexpr size_t tokens = most_tokens;
  tables_ = bytes(tokens * (sizeof(uint64_t) + 2 * sizeof(int32_t) + sizeof(float)));
  tree_.masks = reinterpret_cast<uint64_t*>(tables_.view().raw());
  tree_.ids = reinterpret_cast<int32_t*>(tree_.masks + tokens);
  tree_.parents = tree_.ids + tokens;
  tree_.confidence = reinterpret_cast<float*>(tree_.parents + tokens);
  tree_.guesses = found_there()->guesses;
  tree_.likely = found_there()->likely;
  tree_.chosen = found_there()->chosen;
  ready_ = true;
}

GrownTree CapturedTrees::grow(const TreeShape& shape, int64_t deepest, const TreeStart& start) {
  make_buffers();
  const MemoryMark before = start.memory.mark();
  MemoryMark with_text;
  Kind kind;
  bool replayed = false;
  try {
    auto& told = *new (telling_.data()) Told();
    tell_text(start, told);
    with_text = start.memory.mark();
    kind = tell_levels(shape, start, told);
    start.states(given_.view().rows(0, std::ssize(start.ids)));
    replayed = replay(kind);
    synchronize(context_);
  } catch (...) {
    start.memory.rewind(before);
    throw;
  }
  start.memory.rewind(with_text);
  return {read(kind, deepest), replayed};
}

// The text stands at the end of the rows that a graph computes for it.
void CapturedTrees::tell_text(const TreeStart& start, Told& told) {
  check_tokens(start.ids, parts_.embeddings.size(0));
  const int64_t text = std::ssize(start.ids), first = padded_text(text) - text;
  for (int64_t i = 0; i < text; ++i) {
    const auto at = static_cast<size_t>(first + i);
    told.ids[at] = start.ids[static_cast<size_t>(i)];
    told.positions[at] = start.positions[static_cast<size_t>(i)];
    told.masks[at] = (uint64_t{2} << i) - 1;
    told.parents[at] = static_cast<int32_t>(i);
  }
  told.levels[0] = append(start.memory, start.positions);
  told.levels[0].first_token = static_cast<int32_t>(first);
}

// Text of these positions gets rows; what it reads.
DeviceSequence CapturedTrees::append(Memory& memory, std::span<const Position> positions) {
  std::vector<TokenInfo> tokens(positions.size());
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i].position = positions[i];
  memory.begin(context_, {tokens});
  memory.append(0);
  std::vector<RowSet> sets;
  memory.read(context_, 0, memory.queries(), sets);
  return device_sequence(sets, 0, static_cast<int32_t>(tokens.size()));
}

// Makes room for the rows of all levels, and says what each level reads: the text, and those rows
// of the levels above that masks name.
CapturedTrees::Kind CapturedTrees::tell_levels(const TreeShape& shape, const TreeStart& start,
                                               Told& told) {
  const int64_t tokens = shape.depth * shape.width;
  const std::span positions =
      std::span(told.positions).subspan(most_text, static_cast<size_t>(tokens));
  for (int64_t i = 0; i < tokens; ++i) {
    Position& position = positions[static_cast<size_t>(i)];
    position = start.positions.back();
    for (int32_t& axis : position) axis += static_cast<int32_t>(1 + i / shape.width);
  }
  const DeviceSequence all = append(start.memory, positions);
  int64_t rows = 0;
  for (const DeviceRowSet& set : all.sets) rows += set.count;
  for (int64_t level = 0; level < shape.depth; ++level) {
    DeviceSequence& sequence = told.levels[1 + level] = all;
    sequence.tokens = static_cast<int32_t>(shape.width);
    sequence.earlier = static_cast<int32_t>(level * shape.width);
    sequence.sets[sequence.own].count -= tokens - sequence.tokens - sequence.earlier;
  }
  Kind kind{padded_text(std::ssize(start.ids)), shape.depth, shape.width, 1};
  if (rows > most_undivided) {
    const auto bucket = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
    kind.splits = decode_splits(context_, static_cast<int>(config().kv_heads), bucket);
  }
  return kind;
}

// The first tree of a kind grows by plain launches, which allocate whatever they need, and is then
// captured; from then on it is replayed, as this says.
bool CapturedTrees::replay(const Kind& kind) {
  Captured& captured = captured_[kind];
  if (!captured.graph.empty()) {
    captured.graph.launch(context_);
    return true;
  }
  const bool ready = captured.ranked.has_value();
  if (!ready) make_room(kind, captured);
  levels(context_, kind, captured);
  if (replays_graphs()) {
    captured.graph = GpuGraph::record(
        context_, [&](const Context& recorder) { levels(recorder, kind, captured); });
  }
  return ready;
}

void CapturedTrees::make_room(const Kind& kind, Captured& captured) {
  const int64_t vocabulary = parts_.speaker.config().vocabulary;
  size_t bytes = decode_scratch_bytes(context_, work_of(kind, captured, text_pass(kind)));
  for (int64_t level = 0; level < kind.depth; ++level) {
    const DecodeAttention work = work_of(kind, captured, level_pass(kind, level));
    bytes = std::max(bytes, decode_scratch_bytes(context_, work));
  }
  captured.scratch = Tensor::zeros(DType::u8, {static_cast<int64_t>(bytes)}, context_.device);
  captured.logits = Tensor(DType::f32, {kind.width, vocabulary}, context_.device);
  captured.first.emplace(context_, 1, vocabulary, kind.width);
  captured.ranked.emplace(context_, kind.width, vocabulary, kind.width);
}

void CapturedTrees::levels(const Context& context, const Kind& kind, Captured& captured) {
  const int32_t* names =
      names_.defined() ? reinterpret_cast<const int32_t*>(names_.view().raw()) : nullptr;
  copy_async(context, told_.view().raw(), telling_.data(), sizeof(Told));
  const std::byte* columns = ConstTensorView(columns_.view()).raw();
  cuda::step_rope_table(context, reinterpret_cast<const int32_t*>(told_there()->positions),
                        reinterpret_cast<const double*>(columns),
                        reinterpret_cast<const int32_t*>(columns + parts_.frequencies.size_bytes()),
                        cos_.view(), sin_.view());

  run(context, kind, captured, text_pass(kind));
  speak(context, captured, kind.text, 1);
  captured.first->rank(context, captured.logits.view().rows(0, 1));
  cuda::grow_tree(context, *captured.first, names, 0, false, tree_);
  for (int64_t level = 0; level < kind.depth; ++level) {
    run(context, kind, captured, level_pass(kind, level));
    speak(context, captured, kind.width, kind.width);
    captured.ranked->rank(context, captured.logits);
    cuda::grow_tree(context, *captured.ranked, names, level + 1, level + 1 == kind.depth, tree_);
  }
  copy_async(context, heard_.data(), found_.view().raw(), sizeof(Found));
}

CapturedTrees::Pass CapturedTrees::text_pass(const Kind& kind) {
  const Told& told = *told_there();
  return {kind.text,
          {parts_.embeddings, given_, nullptr, told.ids, told.parents},
          told.levels,
          told.masks,
          0};
}

// The layer's output of the level above, or of the text, is read where it lies, and then
// overwritten.
CapturedTrees::Pass CapturedTrees::level_pass(const Kind& kind, int64_t level) {
  const int64_t first = level * kind.width;
  return {kind.width,
          {parts_.embeddings, space_.hidden, space_.hidden.view().row<float>(kind.text - 1),
           tree_.ids + first, tree_.parents + first},
          told_there()->levels + 1 + level,
          tree_.masks + first,
          most_text + first};
}

// Through the layer; its output is in the space's hidden rows.
void CapturedTrees::run(const Context& context, const Kind& kind, const Captured& captured,
                        const Pass& pass) {
  const DecoderLayers& layers = parts_.layers;
  const int64_t padded = pass.padded();
  join(context, pass);
  layers.project(context, 0, padded, space_);
  attend(context, kind, captured, pass);
  const TensorView mixed =
      layers.mixed(space_, padded).reshaped({padded, config().heads * config().head_size});
  layers.finish(context, 0, mixed, space_.hidden.view().rows(0, padded), space_);
}

void CapturedTrees::join(const Context& context, const Pass& pass) {
  const int64_t hidden = config().hidden;
  const TensorView both = joined_.view().rows(0, pass.tokens);
  const TensorView into = space_.hidden.view().rows(0, pass.tokens);
  if (parts_.draft.feed.fused) {
    cuda::join_rows(context, pass.input, space_.beside.view().rows(0, pass.tokens), both);
    parts_.draft.state_norm.defined()
        ? rms_norm(context, both, parts_.draft.state_norm, config().norm_epsilon, into)
        : convert(context, both, into);
    return;
  }
  cuda::join_rows(context, pass.input, both.columns(0, hidden), both.columns(hidden, hidden));
  apply_linear(context, joined_.view().rows(0, pass.padded()), parts_.draft.fc,
               space_.hidden.view().rows(0, pass.padded()));
}

DecodeAttention CapturedTrees::work_of(const Kind& kind, const Captured& captured,
                                       const Pass& pass) {
  DecodeAttention work;
  work.queries = parts_.layers.queries(space_, pass.padded());
  work.sequences = pass.sequence;
  work.most_tokens_per_sequence = static_cast<int>(std::min(
      pass.padded(), static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(pass.tokens)))));
  work.row_type = parts_.layers.activations();
  work.kv_heads = static_cast<int>(config().kv_heads);
  work.splits = kind.splits;
  work.scratch = captured.scratch.defined()
                     ? const_cast<std::byte*>(ConstTensorView(captured.scratch.view()).raw())
                     : nullptr;
  work.scale = parts_.layers.scale();
  work.masks = pass.masks;
  work.out = parts_.layers.mixed(space_, pass.padded());
  return work;
}

void CapturedTrees::attend(const Context& context, const Kind& kind, const Captured& captured,
                           const Pass& pass) {
  DecodeAttention work = work_of(kind, captured, pass);
  const int64_t padded = pass.padded();
  const TensorView cos = cos_.view().rows(pass.first_position, padded);
  const TensorView sin = sin_.view().rows(pass.first_position, padded);
  const TensorView qkv = parts_.layers.qkv(space_, padded);
  const HeadNorms norms = cuda::head_norms(parts_.layers, 0);
  if (decode_turns(context, work)) {
    work.unturned = {qkv, cos, sin, false, norms};
  } else {
    cuda::step_rope_append(context, cos, sin, qkv, parts_.layers.queries(space_, padded),
                           work.sequences, 1, work.kv_heads, work.row_type, norms);
  }
  decode_attention(context, work);
}

void CapturedTrees::speak(const Context& context, Captured& captured, int64_t tokens,
                          int64_t rows) {
  const TensorView spoken = spoken_.view().rows(0, rows);
  parts_.layers.norm(context, space_.hidden.view().rows(tokens - rows, rows), spoken);
  parts_.speaker.head(context, spoken, captured.logits.view().rows(0, rows));
}

// The tree as the host would have grown it. Candidates that are none are left out.
DraftTree CapturedTrees::read(const Kind& kind, int64_t deepest) const {
  const auto& found = *reinterpret_cast<const Found*>(heard_.data());
  const int64_t width = kind.width;
  DraftTree tree;
  std::vector<int32_t> node(static_cast<size_t>(width + kind.depth * width * width), -1);
  std::vector<Guess> guesses;
  const auto add = [&](int32_t parent, int64_t first) {
    guesses.clear();
    for (int64_t i = first; i < first + width; ++i) {
      if (found.guesses[i] < 0) continue;
      node[static_cast<size_t>(i)] =
          static_cast<int32_t>(std::ssize(tree.nodes()) + std::ssize(guesses));
      guesses.push_back({found.guesses[i], found.likely[i]});
    }
    tree.add(parent, guesses);
  };
  add(-1, 0);
  for (int64_t token = 0; token < std::min(kind.depth, deepest - 1) * width; ++token) {
    const int32_t parent = node[static_cast<size_t>(found.chosen[token])];
    if (parent >= 0) add(parent, width * (1 + token));
  }
  return tree;
}

}  // namespace

std::unique_ptr<DeviceTrees> make_device_trees(const DeviceTreeParts& parts) {
  return std::make_unique<CapturedTrees>(parts);
}

}  // namespace kinora
