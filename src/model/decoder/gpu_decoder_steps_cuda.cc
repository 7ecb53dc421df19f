#include "model/decoder/gpu_decoder_steps.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "model/decoder/decode_step.h"
#include "model/weights/linear.h"
#include "ops/matmul.h"
#include "ops/norm_matmul.h"
#include "ops/rms_norm.h"

namespace kinora {
namespace {

// Steps over this many rows or fewer are one kind, then over twice as many, and so on.
constexpr int64_t first_bucket = 4096;

// Tools that watch single launches see no graphs with KINORA_LAUNCHES=plain.
bool replays_graphs() {
  const char* launches = std::getenv("KINORA_LAUNCHES");
  return launches == nullptr || std::string_view(launches) != "plain";
}

}  // namespace

GpuDecoder::Steps::Steps(const Context&, const DecoderConfig& config, const Weights& weights,
                         DType type, std::span<const double> frequencies)
    : config_(config),
      weights_(weights),
      type_(type),
      frequencies_(frequencies.begin(), frequencies.end()) {}

void GpuDecoder::Steps::make_buffers(const Context& context) {
  if (ready_) return;
  const int64_t query_width = config_.heads * config_.head_size;
  const int64_t width = query_width + 2 * config_.kv_heads * config_.head_size;
  const auto make = [&](DType type, int64_t columns) {
    return Tensor(type, {most_tokens, columns}, context.device);
  };
  const auto layers = static_cast<int64_t>(weights_.layers.size());
  state_ =
      Tensor(DType::u8, {layers * static_cast<int64_t>(sizeof(LayerRows)) + most_tokens * 3 * 4},
             context.device);
  cos_ = make(DType::f32, config_.head_size / 2);
  sin_ = make(DType::f32, config_.head_size / 2);
  hidden_ = make(DType::f32, config_.hidden);
  last_ = make(DType::f32, config_.hidden);
  normed_ = make(type_, config_.hidden);
  qkv_ = make(type_, width);
  queries_ = make(type_, query_width);
  mixed_ = make(type_, query_width);
  gated_ = make(type_, config_.intermediate);

  const size_t count = frequencies_.size();
  std::vector<int32_t> axes(count, 0);
  if (config_.rope.sections) {
    const auto& sections = *config_.rope.sections;
    for (size_t i = 0; i < count; ++i) {
      const auto column = static_cast<int64_t>(i);
      axes[i] = column < sections[0] ? 0 : column < sections[0] + sections[1] ? 1 : 2;
    }
  }
  std::vector<std::byte> columns(count * (sizeof(double) + sizeof(int32_t)));
  std::memcpy(columns.data(), frequencies_.data(), count * sizeof(double));
  std::memcpy(columns.data() + count * sizeof(double), axes.data(), count * sizeof(int32_t));
  columns_ = Tensor(DType::u8, {static_cast<int64_t>(columns.size())}, context.device);
  copy_bytes(columns_.view().raw(), context.device, columns.data(), Device::cpu(), columns.size());
  ready_ = true;
}

Tensor GpuDecoder::Steps::run(const Context& context, const TokenGroup& group, RowStore& store,
                              int64_t hidden_rows) {
  const std::lock_guard lock(mutex_);
  make_buffers(context);
  const auto tokens = static_cast<int64_t>(group.tokens.size());
  upload(context, group, store);
  int64_t most_rows = 0;
  for (int layer = 0; layer < store.layout().layers; ++layer) {
    most_rows = std::max(most_rows, store.row_count(layer));
  }
  const auto bucket =
      static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(most_rows, first_bucket))));
  const int splits = decode_splits(context, static_cast<int>(config_.kv_heads), bucket);
  replay(context, {tokens, splits, store.layout().dtype});

  Tensor last(DType::f32, {hidden_rows, config_.hidden}, context.device);
  if (hidden_rows > 0) {
    copy_async(context, last.view().raw(),
               last_.view().rows(tokens - hidden_rows, hidden_rows).raw(),
               static_cast<size_t>(last.bytes()));
  }
  return last;
}

// One small copy: the driver takes it over at once, so host memory need not wait for the device.
void GpuDecoder::Steps::upload(const Context& context, const TokenGroup& group, RowStore& store) {
  store.begin_group(group.tokens);
  const size_t layers = weights_.layers.size();
  std::vector<std::byte> state(layers * sizeof(LayerRows) + group.tokens.size() * 3 * 4);
  for (size_t layer = 0; layer < layers; ++layer) {
    store.append(static_cast<int>(layer));
    const RowsView rows = store.rows(static_cast<int>(layer));
    const LayerRows where{rows.keys.raw(), rows.values.raw(), rows.count()};
    std::memcpy(state.data() + layer * sizeof(LayerRows), &where, sizeof(where));
  }
  for (size_t i = 0; i < group.tokens.size(); ++i) {
    std::memcpy(state.data() + layers * sizeof(LayerRows) + i * 12, &group.tokens[i].position, 12);
  }
  copy_async(context, state_.view().raw(), state.data(), state.size());
  const Tensor embeddings = group.embeddings.to(context.device);
  copy_async(context, hidden_.view().raw(), embeddings.view().raw(),
             static_cast<size_t>(embeddings.bytes()));
}

// The first step of a kind runs plainly, which lets everything it needs come into being; the second
// is captured; from then on it is replayed.
void GpuDecoder::Steps::replay(const Context& context, const Kind& kind) {
  Captured& captured = captured_[kind];
  Tensor& scratch = scratch_[kind];
  if (captured.used++ == 0) {
    const size_t bytes =
        decode_scratch_bytes(kind.tokens, config_.heads, config_.head_size, kind.splits);
    scratch = Tensor(DType::u8, {static_cast<int64_t>(bytes)}, context.device);
    clear_async(context, scratch.view().raw(), bytes);
    return layers(context, kind);
  }
  static const bool replays = replays_graphs();
  if (!replays) return layers(context, kind);
  if (captured.graph.empty()) {
    captured.graph =
        GpuGraph::record(context, [&](const Context& recorder) { layers(recorder, kind); });
  }
  captured.graph.launch(context);
}

void GpuDecoder::Steps::layers(const Context& context, const Kind& kind) {
  const auto count = static_cast<int64_t>(weights_.layers.size());
  const std::byte* state = state_.view().raw();
  const auto* positions =
      reinterpret_cast<const int32_t*>(state + count * static_cast<int64_t>(sizeof(LayerRows)));
  const std::byte* columns = columns_.view().raw();
  cuda::step_rope_table(
      context, positions, reinterpret_cast<const double*>(columns),
      reinterpret_cast<const int32_t*>(columns + frequencies_.size() * sizeof(double)),
      cos_.view().rows(0, kind.tokens), sin_.view().rows(0, kind.tokens));

  const auto rows = [&](Tensor& tensor) { return tensor.view().rows(0, kind.tokens); };
  for (int64_t layer = 0; layer < count; ++layer) {
    const Layer& weights = weights_.layers[static_cast<size_t>(layer)];
    attend(context, kind, layer);
    apply_linear(context, rows(mixed_), weights.output, rows(hidden_), true);
    norm_gated_matmul(context,
                      {rows(hidden_), weights.post_norm, config_.norm_epsilon, rows(normed_)},
                      weights.gate_up, {}, rows(gated_));
    matmul(context, rows(gated_), weights.down, rows(hidden_), {.bias = {}, .accumulate = true});
  }
  rms_norm(context, rows(hidden_), weights_.norm, config_.norm_epsilon, rows(last_));
}

void GpuDecoder::Steps::attend(const Context& context, const Kind& kind, int64_t layer) {
  const Layer& weights = weights_.layers[static_cast<size_t>(layer)];
  const auto rows = [&](Tensor& tensor) { return tensor.view().rows(0, kind.tokens); };
  const int64_t size = config_.head_size;
  norm_matmul(context, {rows(hidden_), weights.input_norm, config_.norm_epsilon, rows(normed_)},
              weights.qkv.weight,
              weights.qkv.bias.defined() ? weights.qkv.bias.view() : ConstTensorView(), rows(qkv_));
  if (config_.qk_norm) {
    const auto heads = [&](int64_t first, int64_t heads_count) {
      const TensorView columns = rows(qkv_).columns(first * size, heads_count * size);
      return TensorView(columns.raw(), type_, Shape{kind.tokens, heads_count, size},
                        TensorView::Strides{columns.stride(0), size, 1}, columns.device());
    };
    const TensorView queries = heads(0, config_.heads);
    const TensorView keys = heads(config_.heads, config_.kv_heads);
    rms_norm(context, queries, weights.query_norm, config_.norm_epsilon, queries);
    rms_norm(context, keys, weights.key_norm, config_.norm_epsilon, keys);
  }
  const Shape shape{kind.tokens, config_.heads, size};
  const TensorView queries = rows(queries_).reshaped(shape);
  const auto* layer_rows = reinterpret_cast<const LayerRows*>(state_.view().raw()) + layer;
  DecodeAttention work;
  work.queries = queries;
  work.layer = layer_rows;
  work.row_type = kind.row_type;
  work.kv_heads = static_cast<int>(config_.kv_heads);
  work.splits = kind.splits;
  work.scratch = scratch_[kind].view().raw();
  work.scale = 1.0f / std::sqrt(static_cast<float>(size));
  work.out = rows(mixed_).reshaped(shape);
  if (decode_turns(context, work)) {
    work.unturned = {rows(qkv_), rows(cos_), rows(sin_)};
  } else {
    cuda::step_rope_append(context, rows(cos_), rows(sin_), rows(qkv_), queries, layer_rows,
                           config_.kv_heads, kind.row_type);
  }
  decode_attention(context, work);
}

}  // namespace kinora
