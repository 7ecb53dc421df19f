#include "model/decoder/transformer_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "base/error.h"
#include "model/weights/linear.h"
#include "ops/activation.h"
#include "ops/elementwise.h"
#include "ops/gather.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

namespace kinora {
namespace {

// Rows of the feed-forward layer that are in flight at once: enough to keep the matrix product
// busy, and its two wide intermediates stay small however long the group is.
constexpr int64_t feed_forward_rows = 512;

// [rows, heads × head size] seen as [rows, heads, head size].
TensorView as_heads(TensorView rows, int64_t heads) {
  return rows.reshaped(Shape{rows.size(0), heads, rows.size(1) / heads});
}

TensorView as_rows(TensorView heads) {
  return heads.reshaped(Shape{heads.size(0), heads.size(1) * heads.size(2)});
}

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

}  // namespace

std::vector<double> rotary_frequencies(const RopeConfig& rope, int64_t head_size) {
  std::vector<double> frequencies = rope_inverse_frequencies(head_size, rope.theta);
  if (!rope.llama3) return frequencies;
  // In f32 step by step, as the reference computes them: slow frequencies are divided by the
  // factor, fast ones kept, those between blended.
  const auto factor = static_cast<float>(rope.llama3->factor);
  const auto low = static_cast<float>(rope.llama3->low_frequency_factor);
  const auto high = static_cast<float>(rope.llama3->high_frequency_factor);
  const auto context = static_cast<float>(rope.llama3->original_max_position);
  for (double& frequency : frequencies) {
    const auto plain = static_cast<float>(frequency);
    const float wavelength = 2 * std::numbers::pi_v<float> / plain;
    if (wavelength > context / low) {
      frequency = plain / factor;
    } else if (wavelength >= context / high) {
      const float smooth = (context / wavelength - low) / (high - low);
      frequency = (1 - smooth) * plain / factor + smooth * plain;
    }
  }
  return frequencies;
}

struct TransformerDecoder::Run {
  const Context& context;
  RowStore& store;
  Attention& attention;
  const PrefillOptions& options;
  RopeTable rope;
  Tensor hidden;  // [tokens, hidden]: the residual stream
  // [tokens, max(hidden, heads × head size)] flat: the normed input of a layer, then what its
  // attention gives.
  Tensor wide;
  Tensor queries;      // [tokens, heads × head size]
  Tensor keys;         // [tokens, kv heads × head size]; only when the store is not f32
  Tensor values;       // the same
  Tensor strip_input;  // [strip, hidden]
  Tensor strip_gate;   // [strip, intermediate]
  Tensor strip_up;     // the same

  int64_t tokens() const { return hidden.size(0); }
  TensorView wide_as(int64_t width) {
    return TensorView(wide.view().raw(), DType::f32, Shape{tokens(), width}, wide.device());
  }
};

TransformerDecoder::TransformerDecoder(const DecoderConfig& config, DecoderWeights weights,
                                       const DecoderOptions& options)
    : config_(config),
      weights_(std::move(weights)),
      options_(options),
      frequencies_(rotary_frequencies(config.rope, config.head_size)) {}

void check_tokens(std::span<const int32_t> ids, int64_t vocabulary) {
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocabulary) continue;
    throw Error(ErrorKind::bad_input,
                fmt::format("token {} is not in the model's vocabulary of {}; do tokenizer.json "
                            "and the weights belong together?",
                            id, vocabulary));
  }
}

Tensor TransformerDecoder::embed(const Context& context, std::span<const int32_t> ids) const {
  check_tokens(ids, config_.vocabulary);
  Tensor result(DType::f32, Shape{static_cast<int64_t>(ids.size()), config_.hidden},
                context.device);
  if (!ids.empty()) gather_rows(context, weights_.embeddings, ids, result);
  return result;
}

Tensor TransformerDecoder::logits(const Context& context, ConstTensorView hidden) const {
  Tensor result(DType::f32, Shape{hidden.size(0), config_.vocabulary}, context.device);
  project(context, hidden, {weights_.head, {}}, result);
  return result;
}

void TransformerDecoder::project_parts(const Context& context, ConstTensorView x,
                                       std::initializer_list<MatmulPart> parts) const {
  matmul_parts(context, x, {parts.begin(), parts.size()}, options_.native_bf16);
}

void TransformerDecoder::project(const Context& context, ConstTensorView x,
                                 const LinearWeights& linear, TensorView out,
                                 bool accumulate) const {
  apply_linear(context, x, linear, out, accumulate, options_.native_bf16);
}

void TransformerDecoder::check(const TokenGroup& group, const RowStore& store,
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

Tensor TransformerDecoder::prefill(const Context& context, const TokenGroup& group, RowStore& store,
                                   Attention& attention, const PrefillOptions& options) const {
  check(group, store, options);
  const auto tokens = static_cast<int64_t>(group.tokens.size());
  const int64_t query_width = config_.heads * config_.head_size;
  const int64_t key_width = config_.kv_heads * config_.head_size;
  const int64_t strip = std::min(tokens, feed_forward_rows);
  const auto scratch = [&](int64_t rows, int64_t width) {
    return Tensor(DType::f32, Shape{rows, width}, context.device);
  };
  const RowStore::Mark before = store.mark();
  try {
    Run run{context,
            store,
            attention,
            options,
            table_for(context, config_.rope, frequencies_, group.tokens),
            group.embeddings.clone(),
            scratch(tokens, std::max(config_.hidden, query_width)),
            scratch(tokens, query_width),
            {},
            {},
            scratch(strip, config_.hidden),
            scratch(strip, config_.intermediate),
            scratch(strip, config_.intermediate)};
    if (store.layout().dtype != DType::f32) {
      run.keys = scratch(tokens, key_width);
      run.values = scratch(tokens, key_width);
    }
    store.begin_group(group.tokens);
    run_layers(run);

    Tensor last(DType::f32, Shape{options.hidden_rows, config_.hidden}, context.device);
    if (options.hidden_rows > 0) {
      rms_norm(context, run.hidden.view().rows(tokens - options.hidden_rows, options.hidden_rows),
               weights_.norm, config_.norm_epsilon, last);
    }
    return last;
  } catch (...) {
    store.rewind(before);
    throw;
  }
}

void TransformerDecoder::run_layers(Run& run) const {
  const int layers = static_cast<int>(config_.layers);
  for (int layer = 0; layer < layers; ++layer) {
    run.options.cancel.check();
    attend(run, layer);
    if (run.options.after_attention) run.options.after_attention(layer, run.store);
    // Nobody reads the last layer's other rows, unless somebody looks on.
    const bool all_rows = layer + 1 < layers || run.options.after_layer;
    const int64_t first_row = all_rows ? 0 : run.tokens() - run.options.hidden_rows;
    const int64_t count = run.tokens() - first_row;
    if (count > 0) {
      project(
          run.context,
          ConstTensorView(run.wide_as(config_.heads * config_.head_size)).rows(first_row, count),
          weights_.layers[static_cast<size_t>(layer)].output,
          run.hidden.view().rows(first_row, count), true);
      feed_forward(run, layer, first_row);
    }
    if (run.options.after_layer) run.options.after_layer(layer, run.hidden);
  }
}

// Leaves the attention's output in `wide`, [tokens, heads × head size].
void TransformerDecoder::attend(Run& run, int layer) const {
  const Context& context = run.context;
  const DecoderLayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const TensorView normed = run.wide_as(config_.hidden);
  rms_norm(context, run.hidden, weights.input_norm, config_.norm_epsilon, normed);

  const RowStore::NewRows rows = run.store.append(layer);
  const bool direct = rows.keys.dtype() == DType::f32;
  const TensorView keys = direct ? as_rows(rows.keys) : run.keys.view();
  const TensorView values = direct ? as_rows(rows.values) : run.values.view();
  project_parts(context, normed,
                {part_of(weights.query, run.queries), part_of(weights.key, keys),
                 part_of(weights.value, values)});

  const TensorView query_heads = as_heads(run.queries, config_.heads);
  const TensorView key_heads = as_heads(keys, config_.kv_heads);
  if (config_.qk_norm) {
    rms_norm(context, query_heads, weights.query_norm, config_.norm_epsilon, query_heads);
    rms_norm(context, key_heads, weights.key_norm, config_.norm_epsilon, key_heads);
  }
  apply_rope(context, run.rope, query_heads);
  apply_rope(context, run.rope, key_heads);
  if (!direct) {
    convert(context, key_heads, rows.keys);
    convert(context, as_heads(values, config_.kv_heads), rows.values);
  }

  const QueryView queries{query_heads, run.store.group_ordinals(), run.store.group_modalities()};
  const float scale = 1.0f / std::sqrt(static_cast<float>(config_.head_size));
  run.attention.attend(context, layer, queries, run.store.rows(layer), scale,
                       as_heads(run.wide_as(config_.heads * config_.head_size), config_.heads));
}

void TransformerDecoder::feed_forward(Run& run, int layer, int64_t first_row) const {
  const Context& context = run.context;
  const DecoderLayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  for (int64_t begin = first_row; begin < run.tokens(); begin += feed_forward_rows) {
    run.options.cancel.check();
    const int64_t count = std::min(feed_forward_rows, run.tokens() - begin);
    const TensorView rows = run.hidden.view().rows(begin, count);
    const TensorView input = run.strip_input.view().rows(0, count);
    const TensorView gate = run.strip_gate.view().rows(0, count);
    const TensorView up = run.strip_up.view().rows(0, count);
    rms_norm(context, rows, weights.post_norm, config_.norm_epsilon, input);
    project_parts(context, input, {{weights.gate, {}, gate}, {weights.up, {}, up}});
    silu_mul(context, gate, up, gate);
    project(context, gate, {weights.down, {}}, rows, true);
  }
}

}  // namespace kinora
