#include "model/decoder/steps.h"

#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>

#include "attention/cuda/decode/decode_cuda.h"
#include "base/buffer.h"
#include "base/error.h"
#include "base/gpu.h"
#include "model/decoder/decode_step.h"
#include "model/decoder/rotary.h"
#include "model/decoder/step_rows.h"
#include "ops/gather.h"

namespace kinora {
namespace {

constexpr int64_t most_tokens = most_decode_tokens;
// Steps over this many rows or fewer are one kind, then over twice as many, and so on.
constexpr int64_t first_bucket = 4096;

// Host memory that a copy to the device reads; filled again only when the copy is done.
class Staging {
 public:
  explicit Staging(Device device) : copied_(device) {}
  std::byte* begin(size_t bytes) {
    if (sent_) copied_.wait();
    if (buffer_.size() < bytes) buffer_ = PinnedBuffer(bytes + bytes / 2);
    return buffer_.data();
  }
  void send(const Context& context, void* target, size_t bytes) {
    copy_async(context, target, buffer_.data(), bytes);
    copied_.record(context);
    sent_ = true;
  }

 private:
  PinnedBuffer buffer_;
  GpuEvent copied_;
  bool sent_ = false;
};

class CapturedSteps final : public DecoderSteps {
 public:
  CapturedSteps(const DecoderLayers& layers, std::span<const double> frequencies)
      : layers_(layers), frequencies_(frequencies.begin(), frequencies.end()) {}

  bool run(const Context& context, std::span<const Step> steps) override;
  int64_t launched() const override { return launched_; }

 private:
  // What a graph has captured.
  struct Kind {
    int64_t tokens = 1;         // padded
    int64_t sequences = 1;      // padded
    int64_t longest = 1;        // tokens of one sequence, a power of two
    int64_t groups = 0;         // of sequences that share rows, padded
    int64_t longest_group = 1;  // tokens of one group, a power of two
    int splits = 1;
    DType row_type = DType::bf16;
    std::vector<int> states;  // layers whose output is kept
    std::vector<int> mass;    // layers of which somebody wants the mass of rows
    auto operator<=>(const Kind&) const = default;
  };
  struct Captured {
    bool ready = false;
    GpuGraph graph;
    Tensor scratch;  // of the attention
    std::vector<Tensor> states;
    // What the mass of rows is made of once all layers are through, one of each a layer.
    std::vector<Tensor> queries;  // turned, [tokens, heads, head size]
    std::vector<Tensor> softmax;  // [2, tokens, heads] f32
  };
  // What the device reads of a step, in one piece of memory: every layer's sequences first.
  struct Table {
    size_t rest = 0;       // the same without what groups share; the whole where there is no group
    size_t groups = 0;     // every layer's groups
    size_t masks = 0;      // u64 [tokens]
    size_t positions = 0;  // i32 [tokens, 3]
    size_t bytes = 0;

    Table(int64_t layers, const Kind& kind) {
      const auto tables = [&](int64_t entries) {
        return static_cast<size_t>(layers * entries) * sizeof(DeviceSequence);
      };
      const size_t whole = tables(kind.sequences);
      rest = kind.groups > 0 ? whole : 0;
      groups = rest + whole;
      masks = groups + tables(kind.groups);
      positions = masks + static_cast<size_t>(kind.tokens) * sizeof(uint64_t);
      bytes = positions + static_cast<size_t>(kind.tokens) * sizeof(Position);
    }
  };

  bool fits(const Context& context, std::span<const Step> steps) const;
  Kind kind_of(const Context& context, StepRows& rows);
  void make_buffers(const Context& context);
  void upload(const Context& context, const StepRows& rows, const Kind& kind);
  void embed(const Context& context, std::span<const Step> steps);
  void make_room(const Context& context, const Kind& kind, Captured& captured);
  bool replay(const Context& context, const Kind& kind, Captured& captured);
  void layers(const Context& context, const Kind& kind, Captured& captured);
  DecodeAttention work_of(const Kind& kind, Captured& captured, int layer);
  // Gives back what the mass of rows needs, where the layer's is wanted.
  std::optional<DecodeAttention> attend(const Context& context, const Kind& kind,
                                        Captured& captured, int layer);
  void give_back(const Context& context, std::span<const Step> steps,
                 std::span<const int64_t> first_tokens, const Kind& kind, const Captured& captured);

  const std::byte* table(size_t offset) const {
    return ConstTensorView(table_.view()).raw() + offset;
  }

  const DecoderLayers& layers_;
  std::vector<double> frequencies_;
  bool ready_ = false;
  LayerSpace space_;
  Tensor table_;
  Tensor columns_;    // frequencies and axes of the rotation
  Tensor cos_, sin_;  // [most_tokens, head size / 2]
  Tensor last_;       // [most_tokens, hidden] f32, after the final norm
  std::array<std::unique_ptr<Staging>, 2> staging_;
  size_t turn_ = 0;
  std::map<Kind, Captured> captured_;
  int64_t launched_ = 0;
};

void CapturedSteps::make_buffers(const Context& context) {
  if (ready_) return;
  const DecoderConfig& config = layers_.config();
  layers_.grow(context, most_tokens, space_, true);
  Kind most;
  most.tokens = most.sequences = most_tokens;
  most.groups = most_tokens / 2;
  const Table largest(layers_.count(), most);
  table_ = Tensor::zeros(DType::u8, {static_cast<int64_t>(largest.bytes)}, context.device);
  cos_ = Tensor(DType::f32, {most_tokens, config.head_size / 2}, context.device);
  sin_ = Tensor(DType::f32, {most_tokens, config.head_size / 2}, context.device);
  last_ = Tensor(DType::f32, {most_tokens, config.hidden}, context.device);
  for (auto& staging : staging_) staging = std::make_unique<Staging>(context.device);

  const size_t count = frequencies_.size();
  const std::vector<int32_t> axes = rotary_axes(config.rope, config.head_size);
  std::vector<std::byte> columns(count * (sizeof(double) + sizeof(int32_t)));
  std::memcpy(columns.data(), frequencies_.data(), count * sizeof(double));
  std::memcpy(columns.data() + count * sizeof(double), axes.data(), count * sizeof(int32_t));
  columns_ = Tensor(DType::u8, {static_cast<int64_t>(columns.size())}, context.device);
  copy_bytes(columns_.view().raw(), context.device, columns.data(), Device::cpu(), columns.size());
  ready_ = true;
}

bool CapturedSteps::fits(const Context& context, std::span<const Step> steps) const {
  if (!layers_.fit_steps()) return false;
  int64_t tokens = 0;
  const DType row_type = steps[0].sequence->memory->layout().dtype;
  for (const Step& step : steps) {
    const Sequence& sequence = *step.sequence;
    tokens += sequence.count();
    const Memory& memory = *sequence.memory;
    if (sequence.observer != nullptr || !sequence.deep.tokens.empty() ||
        !sequence.state_rows.empty() || !sequence.attention->reads_all() || !memory.known_ahead() ||
        memory.device() != context.device || memory.key_form() != KeyForm::rotated ||
        memory.layout().dtype != row_type || !memory.layout().state_bytes.empty()) {
      return false;
    }
  }
  // More rows than this in f32 would widen the weights first, in memory that a graph cannot ask
  // for.
  constexpr int64_t most_exact_tokens = 8;
  return tokens <= (layers_.activations() == DType::f32 ? most_exact_tokens : most_tokens);
}

CapturedSteps::Kind CapturedSteps::kind_of(const Context& context, StepRows& rows) {
  Kind kind;
  const auto power_of_two = [](int64_t count) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)));
  };
  for (const Step& step : rows.steps()) {
    const Sequence& sequence = *step.sequence;
    for (const int state : sequence.states) kind.states.push_back(state);
    if (sequence.mass == nullptr) continue;
    for (const LayerHeads& asked : sequence.mass->layers()) kind.mass.push_back(asked.layer);
  }
  for (std::vector<int>* layers : {&kind.states, &kind.mass}) {
    std::sort(layers->begin(), layers->end());
    layers->erase(std::unique(layers->begin(), layers->end()), layers->end());
  }
  kind.tokens = captured_tokens(rows.tokens());
  kind.sequences = captured_tokens(static_cast<int64_t>(rows.steps().size()));
  kind.longest = std::min(kind.tokens, power_of_two(rows.most_tokens()));
  const int64_t bucket = power_of_two(std::max(rows.all_rows(), first_bucket));
  kind.splits = decode_splits(context, static_cast<int>(layers_.config().kv_heads), bucket);
  const RowLayout& layout = rows.steps()[0].sequence->memory->layout();
  kind.row_type = layout.dtype;
  Captured none;
  if (decode_shares(context, work_of(kind, none, 0))) {
    rows.share(layout.row_bytes());
  }
  if (rows.groups() > 0) {
    kind.groups = power_of_two(rows.groups());
    kind.longest_group = std::min(kind.tokens, power_of_two(rows.most_group_tokens()));
  }
  return kind;
}

bool CapturedSteps::run(const Context& context, std::span<const Step> steps) {
  if (!fits(context, steps)) return false;
  make_buffers(context);
  StepRows rows(context, steps, layers_.count());
  const Kind kind = kind_of(context, rows);
  upload(context, rows, kind);
  embed(context, rows.steps());
  Captured& captured = captured_[kind];
  const bool usual = replay(context, kind, captured);
  for (const Step& step : steps) step.result->usual = usual;
  give_back(context, steps, rows.first_tokens(), kind, captured);
  return true;
}

void CapturedSteps::upload(const Context& context, const StepRows& rows, const Kind& kind) {
  const Table place(layers_.count(), kind);
  Staging& staging = *staging_[turn_++ % staging_.size()];
  std::byte* to = staging.begin(place.bytes);
  if (kind.groups == 0 || !kind.mass.empty()) rows.write_whole(to, kind.sequences);
  if (kind.groups > 0) {
    rows.write_rest(to + place.rest, kind.sequences);
    rows.write_groups(to + place.groups, kind.groups);
  }
  std::memset(to + place.masks, 0, place.bytes - place.masks);
  size_t token = 0;
  for (const Step& step : rows.steps()) {
    const auto count = static_cast<size_t>(step.sequence->count());
    const std::vector<uint64_t> masks = token_masks(step.sequence->count(), step.sequence->parents);
    std::memcpy(to + place.masks + token * sizeof(uint64_t), masks.data(),
                count * sizeof(uint64_t));
    std::memcpy(to + place.positions + token * sizeof(Position), step.positions.data(),
                count * sizeof(Position));
    token += count;
  }
  staging.send(context, table_.view().raw(), place.bytes);
}

// Sequences that bring ids and stand side by side are looked up together.
void CapturedSteps::embed(const Context& context, std::span<const Step> steps) {
  int64_t first = 0;
  std::vector<int32_t> ids;
  const auto look_up = [&] {
    if (ids.empty()) return;
    const auto count = static_cast<int64_t>(ids.size());
    gather_rows(context, layers_.weights().embeddings, ids,
                space_.hidden.view().rows(first - count, count));
    ids.clear();
  };
  for (const Step& step : steps) {
    const Sequence& sequence = *step.sequence;
    if (sequence.embeddings.defined()) {
      look_up();
      const TensorView rows = space_.hidden.view().rows(first, sequence.count());
      const Tensor given = sequence.embeddings.to(context.device);
      copy_async(context, rows.raw(), given.view().raw(), static_cast<size_t>(given.bytes()));
    } else {
      ids.insert(ids.end(), sequence.ids.begin(), sequence.ids.end());
    }
    if (sequence.beside.defined()) {
      const TensorView rows = space_.beside.view().rows(first, sequence.count());
      const Tensor beside = sequence.beside.to(context.device);
      copy_async(context, rows.raw(), beside.view().raw(), static_cast<size_t>(beside.bytes()));
    }
    first += sequence.count();
  }
  look_up();
}

// Memory that runs out in the middle leaves a kind that begins anew.
void CapturedSteps::make_room(const Context& context, const Kind& kind, Captured& captured) {
  const DecoderConfig& config = layers_.config();
  Captured made;
  const size_t bytes = decode_scratch_bytes(context, work_of(kind, made, 0));
  made.scratch = Tensor(DType::u8, {static_cast<int64_t>(bytes)}, context.device);
  clear_async(context, made.scratch.view().raw(), bytes);
  for (size_t i = 0; i < kind.states.size(); ++i) {
    made.states.push_back(Tensor(DType::f32, {kind.tokens, config.hidden}, context.device));
  }
  for (size_t i = 0; i < kind.mass.size(); ++i) {
    made.queries.push_back(Tensor(layers_.activations(),
                                  {kind.tokens, config.heads, config.head_size}, context.device));
    made.softmax.push_back(Tensor(DType::f32, {2, kind.tokens, config.heads}, context.device));
  }
  made.ready = true;
  captured = std::move(made);
}

// The first step of a kind runs plainly, which allocates whatever it needs; the second is captured;
// from then on it is replayed, as this says.
bool CapturedSteps::replay(const Context& context, const Kind& kind, Captured& captured) {
  const bool ready = captured.ready;
  if (!ready) make_room(context, kind, captured);
  if (!ready || !replays_graphs()) {
    layers(context, kind, captured);
    return ready;
  }
  const bool replayed = !captured.graph.empty();
  if (!replayed) {
    captured.graph = GpuGraph::record(
        context, [&](const Context& recorder) { layers(recorder, kind, captured); });
  }
  captured.graph.launch(context);
  ++launched_;
  return replayed;
}

void CapturedSteps::layers(const Context& context, const Kind& kind, Captured& captured) {
  const DecoderConfig& config = layers_.config();
  const Table place(layers_.count(), kind);
  const std::byte* columns = ConstTensorView(columns_.view()).raw();
  cuda::step_rope_table(
      context, reinterpret_cast<const int32_t*>(table(place.positions)),
      reinterpret_cast<const double*>(columns),
      reinterpret_cast<const int32_t*>(columns + frequencies_.size() * sizeof(double)),
      cos_.view().rows(0, kind.tokens), sin_.view().rows(0, kind.tokens));
  const TensorView hidden = space_.hidden.view().rows(0, kind.tokens);
  std::vector<DecodeAttention> with_mass;
  for (int layer = 0; layer < layers_.count(); ++layer) {
    layers_.project(context, layer, kind.tokens, space_);
    if (const auto work = attend(context, kind, captured, layer)) with_mass.push_back(*work);
    const TensorView mixed =
        layers_.mixed(space_, kind.tokens).reshaped({kind.tokens, config.heads * config.head_size});
    layers_.finish(context, layer, mixed, hidden, space_);
    const auto wanted = std::find(kind.states.begin(), kind.states.end(), layer);
    if (wanted != kind.states.end()) {
      Tensor& state = captured.states[static_cast<size_t>(wanted - kind.states.begin())];
      copy_async(context, state.view().raw(), hidden.raw(), static_cast<size_t>(hidden.bytes()));
    }
  }
  layers_.norm(context, hidden, last_.view().rows(0, kind.tokens));
  add_decode_mass(context, with_mass);
}

DecodeAttention CapturedSteps::work_of(const Kind& kind, Captured& captured, int layer) {
  const Table place(layers_.count(), kind);
  const auto sequences = [&](size_t offset) {
    return reinterpret_cast<const DeviceSequence*>(table(offset));
  };
  DecodeAttention work;
  work.queries = layers_.queries(space_, kind.tokens);
  work.sequences = sequences(place.rest) + layer * kind.sequences;
  if (kind.groups > 0) {
    work.shared = {sequences(place.groups) + layer * kind.groups, static_cast<int>(kind.groups),
                   static_cast<int>(kind.longest_group)};
  }
  work.sequence_count = static_cast<int>(kind.sequences);
  work.most_tokens_per_sequence = static_cast<int>(kind.longest);
  work.row_type = kind.row_type;
  work.kv_heads = static_cast<int>(layers_.config().kv_heads);
  work.splits = kind.splits;
  work.scratch = captured.scratch.defined() ? captured.scratch.view().raw() : nullptr;
  work.scale = layers_.scale();
  work.masks = reinterpret_cast<const uint64_t*>(table(place.masks));
  work.out = layers_.mixed(space_, kind.tokens);
  return work;
}

std::optional<DecodeAttention> CapturedSteps::attend(const Context& context, const Kind& kind,
                                                     Captured& captured, int layer) {
  const TensorView cos = cos_.view().rows(0, kind.tokens), sin = sin_.view().rows(0, kind.tokens);
  const TensorView qkv = layers_.qkv(space_, kind.tokens);
  DecodeAttention work = work_of(kind, captured, layer);
  TensorView queries = layers_.queries(space_, kind.tokens);
  const auto wanted = std::lower_bound(kind.mass.begin(), kind.mass.end(), layer);
  const bool mass = wanted != kind.mass.end() && *wanted == layer;
  if (mass) {
    const auto i = static_cast<size_t>(wanted - kind.mass.begin());
    queries = captured.queries[i].view();
    work.queries = queries;
    work.state_max = captured.softmax[i].data<float>();
    work.state_sum = work.state_max + kind.tokens * layers_.config().heads;
  }
  const HeadNorms norms = cuda::head_norms(layers_, layer);
  if (decode_turns(context, work)) {
    work.unturned = {qkv, cos, sin, mass, norms};
  } else {
    cuda::step_rope_append(context, cos, sin, qkv, queries, work.sequences, work.sequence_count,
                           work.kv_heads, kind.row_type, norms);
  }
  decode_attention(context, work);
  if (!mass) return std::nullopt;
  work.shared = {};
  work.sequences = reinterpret_cast<const DeviceSequence*>(table(0)) + layer * kind.sequences;
  return work;
}

// The wanted rows of all sequences lie one after another, in the order in which these were given:
// one copy, and who makes logits of them needs no other.
void CapturedSteps::give_back(const Context& context, std::span<const Step> steps,
                              std::span<const int64_t> first_tokens, const Kind& kind,
                              const Captured& captured) {
  const int64_t width = layers_.config().hidden;
  const auto row_bytes = static_cast<size_t>(width) * sizeof(float);
  const auto rows_of = [&](const Tensor& from, std::span<const int32_t> places) {
    const auto count = static_cast<int64_t>(places.size());
    std::shared_ptr<Buffer> buffer = Buffer::allocate(context.device, places.size() * row_bytes);
    const TensorView to(buffer->data(), DType::f32, {count, width}, context.device);
    if (count > 0) gather_rows(context, from.view(), places, to);
    return buffer;
  };
  const auto part = [&](const std::shared_ptr<Buffer>& rows, int64_t first, int64_t count) {
    return Tensor(rows, static_cast<size_t>(first) * row_bytes, DType::f32, {count, width});
  };
  std::vector<int32_t> wanted, all;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Sequence& sequence = *steps[i].sequence;
    if (steps[i].result->failure) continue;
    for (int64_t k = 0; k < sequence.count(); ++k) {
      all.push_back(static_cast<int32_t>(first_tokens[i] + k));
      if (k >= sequence.count() - sequence.hidden_rows) wanted.push_back(all.back());
    }
  }
  const std::shared_ptr<Buffer> hidden = rows_of(last_, wanted);
  std::vector<std::shared_ptr<Buffer>> states;
  for (const Tensor& state : captured.states) states.push_back(rows_of(state, all));
  int64_t row = 0, token = 0;
  for (const Step& step : steps) {
    if (step.result->failure) continue;
    const int64_t count = step.sequence->count();
    step.result->hidden = part(hidden, row, step.sequence->hidden_rows);
    for (const int state : step.sequence->states) {
      const auto at = std::lower_bound(kind.states.begin(), kind.states.end(), state);
      step.result->states.push_back(
          part(states[static_cast<size_t>(at - kind.states.begin())], token, count));
    }
    row += step.sequence->hidden_rows;
    token += count;
  }
}

}  // namespace

bool replays_graphs() {
  static const bool replays = [] {
    const char* launches = std::getenv("KINORA_LAUNCHES");
    return launches == nullptr || std::string_view(launches) != "plain";
  }();
  return replays;
}

std::unique_ptr<DecoderSteps> make_decoder_steps(const DecoderLayers& layers,
                                                 std::span<const double> frequencies) {
  return std::make_unique<CapturedSteps>(layers, frequencies);
}

}  // namespace kinora
