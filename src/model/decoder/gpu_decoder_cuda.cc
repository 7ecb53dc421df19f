#include "model/decoder/gpu_decoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "attention/policies/dense.h"
#include "base/error.h"
#include "model/decoder/gpu_decoder_steps.h"
#include "model/decoder/transformer_decoder.h"
#include "model/weights/gpu_weights.h"
#include "model/weights/linear.h"
#include "ops/elementwise.h"
#include "ops/gather.h"
#include "ops/matmul.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

namespace kinora {
namespace {

// Rows of the feed-forward layer in flight at once: enough to fill the device, and the wide
// intermediates stay below a gigabyte however long the group is.
constexpr int64_t feed_forward_rows = 8192;

RopeTable table_for(const Context& context, const RopeConfig& rope,
                    std::span<const double> frequencies, std::span<const TokenInfo> tokens) {
  if (rope.sections) {
    std::vector<std::array<int64_t, 3>> positions(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      for (size_t k = 0; k < 3; ++k) positions[i][k] = tokens[i].position[k];
    }
    return mrope_table(context, frequencies, positions, *rope.sections);
  }
  std::vector<int64_t> positions(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) positions[i] = tokens[i].position[0];
  return rope_table(context, frequencies, positions);
}

// Says at once when the library for products is missing, not after the weights have gone up.
void try_a_product(const Context& context) {
  constexpr int64_t size = 32;
  const Tensor a = Tensor::zeros(DType::f32, {size, size}, context.device);
  const Tensor weight = Tensor::zeros(DType::f32, {size, size}, context.device);
  Tensor out(DType::f32, {size, size}, context.device);
  matmul(context, a, weight, out);
}

GpuDecoder::Weights moved(const Context& context, const DecoderWeights& weights,
                          DType activations) {
  try_a_product(context);
  GpuDecoder::Weights there;
  there.embeddings = stacked(context, {&weights.embeddings}, activations);
  for (const DecoderLayerWeights& layer : weights.layers) {
    GpuDecoder::Layer moved;
    const auto there_if = [&](const Tensor& tensor) {
      return tensor.defined() ? tensor.to(context.device) : Tensor();
    };
    moved.input_norm = layer.input_norm.to(context.device);
    moved.qkv.weight = stacked(
        context, {&layer.query.weight, &layer.key.weight, &layer.value.weight}, activations);
    moved.qkv.bias =
        joined(context, {&layer.query.bias, &layer.key.bias, &layer.value.bias}, activations);
    moved.output = on_gpu(context, layer.output, activations, DType::f32);
    moved.query_norm = there_if(layer.query_norm);
    moved.key_norm = there_if(layer.key_norm);
    moved.post_norm = layer.post_norm.to(context.device);
    moved.gate_up = stacked(context, {&layer.gate, &layer.up}, activations);
    moved.down = stacked(context, {&layer.down}, activations);
    there.layers.push_back(std::move(moved));
  }
  there.norm = weights.norm.to(context.device);
  const bool tied = weights.head.view().raw() == weights.embeddings.view().raw();
  there.head = tied ? there.embeddings : stacked(context, {&weights.head}, activations);
  return there;
}

}  // namespace

struct GpuDecoder::Run {
  const Context& context;
  RowStore& store;
  Attention& attention;
  const PrefillOptions& options;
  RopeTable rope;
  Tensor hidden;   // [tokens, hidden] f32: the residual stream
  Tensor normed;   // [tokens, hidden]: the normed input of a layer
  Tensor qkv;      // [tokens, (heads + 2 × kv heads) × head size]
  Tensor queries;  // [tokens, heads, head size]
  Tensor mixed;    // [tokens, heads, head size]: what attention gives
  Tensor gated;    // [strip, intermediate]

  int64_t tokens() const { return hidden.size(0); }
};

GpuDecoder::GpuDecoder(const Context& context, const DecoderConfig& config,
                       const DecoderWeights& weights, DType activations)
    : GpuDecoder(context, config, moved(context, weights, activations), activations) {}

GpuDecoder::GpuDecoder(const Context& context, const DecoderConfig& config, Weights weights,
                       DType activations)
    : config_(config),
      weights_(std::move(weights)),
      type_(activations),
      frequencies_(rotary_frequencies(config.rope, config.head_size)),
      steps_(std::make_unique<Steps>(context, config_, weights_, type_, frequencies_)) {}

GpuDecoder::~GpuDecoder() = default;

Tensor GpuDecoder::embed(const Context& context, std::span<const int32_t> ids) const {
  check_tokens(ids, config_.vocabulary);
  Tensor result(DType::f32, Shape{static_cast<int64_t>(ids.size()), config_.hidden},
                context.device);
  if (!ids.empty()) gather_rows(context, weights_.embeddings, ids, result);
  return result;
}

Tensor GpuDecoder::logits(const Context& context, ConstTensorView hidden) const {
  Tensor result(DType::f32, Shape{hidden.size(0), config_.vocabulary}, context.device);
  if (type_ == DType::f32) {
    matmul(context, hidden, weights_.head, result);
    return result;
  }
  Tensor narrow(type_, hidden.shape(), context.device);
  convert(context, hidden, narrow);
  matmul(context, narrow, weights_.head, result);
  return result;
}

void GpuDecoder::check(const TokenGroup& group, const RowStore& store,
                       const PrefillOptions& options) const {
  const auto tokens = static_cast<int64_t>(group.tokens.size());
  const RowLayout& rows = store.layout();
  if (tokens == 0 || !(group.embeddings.shape() == Shape{tokens, config_.hidden}) ||
      group.embeddings.dtype() != DType::f32) {
    throw Error(ErrorKind::internal, "a group has one f32 embedding for each of its tokens");
  }
  if (options.hidden_rows < 0 || options.hidden_rows > tokens) {
    throw Error(ErrorKind::internal, "more hidden rows are wanted than the group has tokens");
  }
  if (rows.layers != config_.layers || rows.kv_heads != config_.kv_heads ||
      rows.head_size != config_.head_size) {
    throw Error(ErrorKind::internal, "the row store was made for another model");
  }
}

bool GpuDecoder::is_step(const TokenGroup& group, const Attention& attention,
                         const PrefillOptions& options) const {
  // Products of few rows that take no memory want rows of bf16 to start at 16 bytes.
  const bool fits =
      type_ == DType::f32 ||
      (config_.hidden % gpu_row_multiple == 0 && config_.intermediate % gpu_row_multiple == 0 &&
       config_.heads * config_.head_size % gpu_row_multiple == 0);
  return fits && static_cast<int64_t>(group.tokens.size()) <= Steps::most_tokens &&
         !options.after_layer && !options.after_attention &&
         dynamic_cast<const DenseAttention*>(&attention) != nullptr;
}

Tensor GpuDecoder::prefill(const Context& context, const TokenGroup& group, RowStore& store,
                           Attention& attention, const PrefillOptions& options) const {
  check(group, store, options);
  options.cancel.check();
  const RowStore::Mark before = store.mark();
  try {
    if (is_step(group, attention, options)) {
      return steps_->run(context, group, store, options.hidden_rows);
    }
    return prefill_group(context, group, store, attention, options);
  } catch (...) {
    store.rewind(before);
    throw;
  }
}

Tensor GpuDecoder::prefill_group(const Context& context, const TokenGroup& group, RowStore& store,
                                 Attention& attention, const PrefillOptions& options) const {
  const auto tokens = static_cast<int64_t>(group.tokens.size());
  const int64_t heads = config_.heads, kv_heads = config_.kv_heads, size = config_.head_size;
  const auto make = [&](const Shape& shape) { return Tensor(type_, shape, context.device); };
  Run run{context,
          store,
          attention,
          options,
          table_for(context, config_.rope, frequencies_, group.tokens),
          group.embeddings.to(context.device).clone(),
          make({tokens, config_.hidden}),
          make({tokens, (heads + 2 * kv_heads) * size}),
          make({tokens, heads, size}),
          make({tokens, heads, size}),
          make({std::min(tokens, feed_forward_rows), config_.intermediate})};
  store.begin_group(group.tokens);
  const int layers = static_cast<int>(config_.layers);
  for (int layer = 0; layer < layers; ++layer) {
    options.cancel.check();
    attend(run, layer);
    if (options.after_attention) options.after_attention(layer, store);
    // Nobody reads the last layer's other rows, unless somebody looks on.
    const bool all_rows = layer + 1 < layers || options.after_layer;
    const int64_t first_row = all_rows ? 0 : tokens - options.hidden_rows;
    const int64_t count = tokens - first_row;
    if (count > 0) {
      const ConstTensorView mixed = run.mixed.view().reshaped({tokens, heads * size});
      apply_linear(context, mixed.rows(first_row, count),
                   weights_.layers[static_cast<size_t>(layer)].output,
                   run.hidden.view().rows(first_row, count), true);
      feed_forward(run, layer, first_row);
    }
    if (options.after_layer) options.after_layer(layer, run.hidden);
  }
  Tensor last(DType::f32, Shape{options.hidden_rows, config_.hidden}, context.device);
  if (options.hidden_rows > 0) {
    rms_norm(context, run.hidden.view().rows(tokens - options.hidden_rows, options.hidden_rows),
             weights_.norm, config_.norm_epsilon, last);
  }
  return last;
}

// Leaves the attention's output in `mixed`.
void GpuDecoder::attend(Run& run, int layer) const {
  const Context& context = run.context;
  const Layer& weights = weights_.layers[static_cast<size_t>(layer)];
  rms_norm(context, run.hidden, weights.input_norm, config_.norm_epsilon, run.normed);
  apply_linear(context, run.normed, weights.qkv, run.qkv);
  norm_heads(context, weights, run.qkv);
  const RowStore::NewRows rows = run.store.append(layer);
  rope_split(context, run.rope, run.qkv, run.queries, rows.keys, rows.values);
  const QueryView queries{run.queries, run.store.group_ordinals(), run.store.group_modalities()};
  const float scale = 1.0f / std::sqrt(static_cast<float>(config_.head_size));
  run.attention.attend(context, layer, queries, run.store.rows(layer), scale, run.mixed);
}

// Qwen3 norms every head of queries and keys before they turn.
void GpuDecoder::norm_heads(const Context& context, const Layer& layer, TensorView qkv) const {
  if (!config_.qk_norm) return;
  const int64_t size = config_.head_size;
  const auto heads = [&](int64_t first, int64_t count) {
    const TensorView columns = qkv.columns(first * size, count * size);
    return TensorView(columns.raw(), qkv.dtype(), Shape{qkv.size(0), count, size},
                      TensorView::Strides{qkv.stride(0), size, 1}, qkv.device());
  };
  const TensorView queries = heads(0, config_.heads), keys = heads(config_.heads, config_.kv_heads);
  rms_norm(context, queries, layer.query_norm, config_.norm_epsilon, queries);
  rms_norm(context, keys, layer.key_norm, config_.norm_epsilon, keys);
}

void GpuDecoder::feed_forward(Run& run, int layer, int64_t first_row) const {
  const Context& context = run.context;
  const Layer& weights = weights_.layers[static_cast<size_t>(layer)];
  for (int64_t begin = first_row; begin < run.tokens(); begin += feed_forward_rows) {
    run.options.cancel.check();
    const int64_t count = std::min(feed_forward_rows, run.tokens() - begin);
    const TensorView rows = run.hidden.view().rows(begin, count);
    const TensorView input = run.normed.view().rows(begin, count);
    const TensorView gated = run.gated.view().rows(0, count);
    rms_norm(context, rows, weights.post_norm, config_.norm_epsilon, input);
    gated_matmul(context, input, weights.gate_up, gated);
    matmul(context, gated, weights.down, rows, {.bias = {}, .accumulate = true});
  }
}

std::unique_ptr<Decoder> make_gpu_decoder(const Context& context, const DecoderConfig& config,
                                          const DecoderWeights& weights, DType activations) {
  return std::make_unique<GpuDecoder>(context, config, weights, activations);
}

}  // namespace kinora
