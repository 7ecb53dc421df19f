#include "model/decoder/layers.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "model/weights/gpu_weights.h"
#include "model/weights/linear.h"
#include "ops/activation.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/norm_matmul.h"
#include "ops/packed_strips.h"
#include "ops/rms_norm.h"

namespace kinora {
namespace {

// Rows of the feed-forward layer in flight at once: enough to keep the products busy, and the wide
// intermediates stay small however long a group is.
int64_t feed_forward_rows(const Context& context) { return context.device.is_cpu() ? 512 : 8192; }

// Says at once when the library for products is missing, not after the weights have gone up.
void try_a_product(const Context& context) {
  constexpr int64_t size = 32;
  const Tensor a = Tensor::zeros(DType::f32, {size, size}, context.device);
  const Tensor weight = Tensor::zeros(DType::f32, {size, size}, context.device);
  Tensor out(DType::f32, {size, size}, context.device);
  matmul(context, a, weight, out);
}

LayerWeights placed_on_cpu(const DecoderLayerWeights& layer) {
  return {layer.input_norm, layer.beside_norm,      {layer.query, layer.key, layer.value},
          layer.output,     layer.query_norm,       layer.key_norm,
          layer.post_norm,  {layer.gate, layer.up}, layer.down};
}

// Weights that were read packed as numbers.
Tensor widened(const LinearWeights& linear, DType activations) {
  if (linear.packed == nullptr) return linear.weight;
  Tensor wide(activations, {linear.packed->rows(), linear.packed->columns()});
  linear.packed->widen(0, linear.packed->rows(), wide);
  return wide;
}

// The weights of some layers under one another: packed where all of them are, in one way.
LinearWeights placed_together(const Context& context,
                              std::initializer_list<const LinearWeights*> linears,
                              DType activations, bool paired = false) {
  std::vector<const PackedMatrix*> packed;
  for (const LinearWeights* linear : linears) packed.push_back(linear->packed.get());
  LinearWeights placed;
  if (activations == DType::bf16 && PackedStrips::takes(packed)) {
    placed.strips = std::make_shared<const PackedStrips>(context, packed, paired);
    return placed;
  }
  std::vector<Tensor> wide;
  for (const LinearWeights* linear : linears) wide.push_back(widened(*linear, activations));
  std::vector<const Tensor*> matrices;
  for (const Tensor& matrix : wide) matrices.push_back(&matrix);
  placed.weight = stacked(context, matrices, activations);
  return placed;
}

LayerWeights placed_on_gpu(const Context& context, const DecoderLayerWeights& layer,
                           DType activations) {
  const auto there = [&](const Tensor& tensor) {
    return tensor.defined() ? tensor.to(context.device) : Tensor();
  };
  LayerWeights placed;
  placed.input_norm = there(layer.input_norm);
  placed.beside_norm = there(layer.beside_norm);
  placed.qkv.push_back(
      placed_together(context, {&layer.query, &layer.key, &layer.value}, activations));
  placed.qkv[0].bias =
      joined(context, {&layer.query.bias, &layer.key.bias, &layer.value.bias}, activations);
  placed.output = placed_together(context, {&layer.output}, activations);
  placed.output.bias = joined(context, {&layer.output.bias}, DType::f32);
  if (layer.query_norm.defined()) {
    placed.query_norm = joined(context, {&layer.query_norm}, DType::f32);
    placed.key_norm = joined(context, {&layer.key_norm}, DType::f32);
  }
  placed.post_norm = there(layer.post_norm);
  placed.gate_up.push_back(placed_together(context, {&layer.gate, &layer.up}, activations, true));
  placed.down = placed_together(context, {&layer.down}, activations);
  return placed;
}

ConstTensorView bias_of(const LinearWeights& linear) {
  return linear.bias.defined() ? linear.bias.view() : ConstTensorView();
}

}  // namespace

PlacedWeights place_weights(const Context& context, const DecoderWeights& weights,
                            DType activations) {
  PlacedWeights placed;
  if (context.device.is_cpu()) {
    placed.embeddings = weights.embeddings;
    for (const DecoderLayerWeights& layer : weights.layers) {
      placed.layers.push_back(placed_on_cpu(layer));
    }
    placed.norm = weights.norm;
    placed.head = weights.head;
    return placed;
  }
  try_a_product(context);
  const auto table = [&](const Tensor& tensor) {  // a draft has none, or uses its target's
    return tensor.defined() ? stacked(context, {&tensor}, activations) : Tensor();
  };
  placed.embeddings = table(weights.embeddings);
  for (const DecoderLayerWeights& layer : weights.layers) {
    placed.layers.push_back(placed_on_gpu(context, layer, activations));
  }
  if (weights.norm.defined()) placed.norm = weights.norm.to(context.device);
  const bool tied = weights.head.weight.view().raw() == weights.embeddings.view().raw();
  if (tied) {
    placed.head.weight = placed.embeddings;
  } else if (weights.head.weight.defined() || weights.head.packed != nullptr) {
    placed.head = placed_together(context, {&weights.head}, activations);
  }
  return placed;
}

DecoderLayers::DecoderLayers(const DecoderConfig& config, PlacedWeights weights, DType activations,
                             bool native_bf16, ProductObserver* observer)
    : config_(config),
      weights_(std::move(weights)),
      type_(activations),
      native_bf16_(native_bf16),
      observer_(observer) {}

void DecoderLayers::show(const LayerWeights& layer, Product product, ConstTensorView rows) const {
  if (observer_ == nullptr) return;
  observer_->look(static_cast<int>(&layer - weights_.layers.data()), product, rows);
}

float DecoderLayers::scale() const {
  return 1.0f / std::sqrt(static_cast<float>(config_.head_size));
}

bool DecoderLayers::fit_steps() const {
  return type_ == DType::f32 ||
         (config_.hidden % gpu_row_multiple == 0 && config_.intermediate % gpu_row_multiple == 0 &&
          config_.heads * config_.head_size % gpu_row_multiple == 0);
}

void DecoderLayers::grow(const Context& context, int64_t tokens, LayerSpace& space,
                         bool apart) const {
  const int64_t strip = std::min(tokens, feed_forward_rows(context));
  const int64_t heads_width = config_.heads * config_.head_size;
  const auto make = [&](Tensor& tensor, DType type, int64_t rows, int64_t columns) {
    if (tensor.defined() && tensor.size(0) >= rows) return;
    tensor = Tensor();  // the old one makes room for the new one
    tensor = Tensor(type, {rows, columns}, context.device);
  };
  make(space.hidden, DType::f32, tokens, config_.hidden);
  if (config_.beside) make(space.beside, DType::f32, tokens, config_.hidden);
  make(space.narrow, type_, tokens, std::max(input_width(), heads_width));
  make(space.wide, type_, tokens, qkv_width());
  make(space.gated, type_, strip, config_.intermediate);
  if (apart) make(space.output, type_, tokens, heads_width);
  const bool stacked_products = !weights_.layers.empty() && weights_.layers[0].gate_up.size() == 1;
  if (!stacked_products) make(space.up, type_, strip, config_.intermediate);
  if (stacked_products && apart) make(space.up, type_, strip, 2 * config_.intermediate);
}

// The beginning of a tensor's memory in another shape.
TensorView DecoderLayers::part(Tensor& tensor, const Shape& shape) const {
  return TensorView(tensor.view().raw(), type_, shape, tensor.device());
}

TensorView DecoderLayers::normed(LayerSpace& space, int64_t tokens) const {
  return part(space.narrow, {tokens, config_.hidden});
}
TensorView DecoderLayers::qkv(LayerSpace& space, int64_t tokens) const {
  return part(space.wide, {tokens, qkv_width()});
}
TensorView DecoderLayers::queries(LayerSpace& space, int64_t tokens) const {
  return part(space.narrow, {tokens, config_.heads, config_.head_size});
}
TensorView DecoderLayers::mixed(LayerSpace& space, int64_t tokens) const {
  Tensor& place = space.output.defined() ? space.output : space.wide;
  return part(place, {tokens, config_.heads, config_.head_size});
}

// What queries, keys and values are made of.
TensorView DecoderLayers::make_input(const Context& context, const LayerWeights& layer,
                                     int64_t tokens, LayerSpace& space) const {
  const auto norm = [&](const Tensor& rows, const Tensor& weight, TensorView out) {
    const ConstTensorView taken = rows.view().rows(0, tokens);
    weight.defined() ? rms_norm(context, taken, weight, config_.norm_epsilon, out)
                     : convert(context, taken, out);
  };
  const TensorView input = part(space.narrow, {tokens, input_width()});
  const int64_t width = config_.hidden;
  if (layer.beside_norm.defined()) norm(space.beside, layer.beside_norm, input.columns(0, width));
  norm(space.hidden, layer.input_norm, input.columns(input_width() - width, width));
  return input;
}

void DecoderLayers::project(const Context& context, int layer, int64_t tokens,
                            LayerSpace& space) const {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const TensorView out = qkv(space, tokens);
  const bool plain = weights.input_norm.defined() && !weights.beside_norm.defined();
  if (weights.qkv.size() == 1 && plain) {
    const NormedRows rows{space.hidden.view().rows(0, tokens), weights.input_norm,
                          config_.norm_epsilon, normed(space, tokens)};
    const LinearWeights& all = weights.qkv[0];
    all.strips != nullptr ? norm_matmul(context, rows, *all.strips, bias_of(all), out)
                          : norm_matmul(context, rows, all.weight, bias_of(all), out);
  } else if (weights.qkv.size() == 1) {
    apply_linear(context, make_input(context, weights, tokens, space), weights.qkv[0], out);
  } else {
    const TensorView input = make_input(context, weights, tokens, space);
    show(weights, Product::qkv, input);
    std::vector<MatmulPart> parts;
    int64_t column = 0;
    for (const LinearWeights& part : weights.qkv) {
      const int64_t width = outputs_of(part);
      parts.push_back(part_of(part, out.columns(column, width)));
      column += width;
    }
    matmul_parts(context, input, parts, native_bf16_);
  }
}

void DecoderLayers::norm_heads(const Context& context, int layer, TensorView qkv) const {
  if (!config_.qk_norm) return;
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const int64_t size = config_.head_size;
  const auto heads = [&](int64_t first, int64_t count) {
    const TensorView columns = qkv.columns(first * size, count * size);
    return TensorView(columns.raw(), qkv.dtype(), Shape{qkv.size(0), count, size},
                      TensorView::Strides{qkv.stride(0), size, 1}, qkv.device());
  };
  const TensorView queries = heads(0, config_.heads), keys = heads(config_.heads, config_.kv_heads);
  rms_norm(context, queries, weights.query_norm, config_.norm_epsilon, queries);
  rms_norm(context, keys, weights.key_norm, config_.norm_epsilon, keys);
}

void DecoderLayers::finish(const Context& context, int layer, ConstTensorView mixed,
                           TensorView hidden, LayerSpace& space) const {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  show(weights, Product::output, mixed);
  apply_linear(context, mixed, weights.output, hidden, true, native_bf16_);
  feed_forward(context, weights, hidden, space);
}

void DecoderLayers::feed_forward(const Context& context, const LayerWeights& weights,
                                 TensorView hidden, LayerSpace& space) const {
  const int64_t step = feed_forward_rows(context);
  for (int64_t begin = 0; begin < hidden.size(0); begin += step) {
    if (space.cancel != nullptr) space.cancel->check();
    const int64_t count = std::min(step, hidden.size(0) - begin);
    const TensorView rows = hidden.rows(begin, count);
    const TensorView input = normed(space, count);
    const TensorView gated = space.gated.view().rows(0, count);
    const NormedRows unnormed{rows, weights.post_norm, config_.norm_epsilon, input};
    if (weights.gate_up.size() == 1 && weights.gate_up[0].strips != nullptr) {
      norm_gated_matmul(context, unnormed, *weights.gate_up[0].strips, {}, gated);
    } else if (weights.gate_up.size() == 1 && space.up.defined() &&
               !gated_in_one_pass(context, input, weights.gate_up[0].weight, gated)) {
      // A captured graph cannot ask for memory, which this product would do by itself.
      const TensorView both = space.up.view().rows(0, count);
      rms_norm(context, rows, weights.post_norm, config_.norm_epsilon, input);
      matmul(context, input, weights.gate_up[0].weight, both);
      silu_mul(context, both.columns(0, config_.intermediate),
               both.columns(config_.intermediate, config_.intermediate), gated);
    } else if (weights.gate_up.size() == 1) {
      norm_gated_matmul(context, unnormed, weights.gate_up[0].weight, {}, gated);
    } else {
      const TensorView up = space.up.view().rows(0, count);
      rms_norm(context, rows, weights.post_norm, config_.norm_epsilon, input);
      show(weights, Product::gate_up, input);
      const MatmulPart parts[] = {part_of(weights.gate_up[0], gated),
                                  part_of(weights.gate_up[1], up)};
      matmul_parts(context, input, parts, native_bf16_);
      silu_mul(context, gated, up, gated);
    }
    show(weights, Product::down, gated);
    apply_linear(context, gated, weights.down, rows, true, native_bf16_);
  }
}

void DecoderLayers::norm(const Context& context, ConstTensorView hidden, TensorView out) const {
  weights_.norm.defined() ? rms_norm(context, hidden, weights_.norm, config_.norm_epsilon, out)
                          : convert(context, hidden, out);
}

Tensor DecoderLayers::logits(const Context& context, ConstTensorView hidden) const {
  Tensor result(DType::f32, Shape{hidden.size(0), config_.vocabulary}, context.device);
  if (type_ == DType::f32) {
    head(context, hidden, result);
    return result;
  }
  Tensor narrow(type_, hidden.shape(), context.device);
  convert(context, hidden, narrow);
  head(context, narrow, result);
  return result;
}

void DecoderLayers::head(const Context& context, ConstTensorView rows, TensorView logits) const {
  apply_linear(context, rows, weights_.head, logits, false, native_bf16_ && type_ == DType::f32);
}

}  // namespace kinora
