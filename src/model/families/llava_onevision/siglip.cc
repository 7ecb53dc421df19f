#include "model/families/llava_onevision/siglip.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "attention/window_attention.h"
#include "base/error.h"
#include "model/weights/linear.h"
#include "ops/activation.h"
#include "ops/elementwise.h"
#include "ops/layer_norm.h"

namespace kinora {
namespace {

constexpr int64_t feed_forward_rows = 1024;
constexpr int64_t gpu_feed_forward_rows = 32768;  // a GPU needs more work at once

int64_t strip_rows(const Context& context) {
  return context.device.is_cpu() ? feed_forward_rows : gpu_feed_forward_rows;
}

}  // namespace

struct SiglipTower::Scratch {
  std::vector<int32_t> offsets;  // tile t holds the rows [offsets[t], offsets[t + 1])
  Tensor normed;                 // [rows, hidden]
  Tensor query;                  // the same
  Tensor key;
  Tensor value;
  Tensor wide;  // [strip, intermediate]
};

SiglipTower::SiglipTower(const Context& context, const SiglipConfig& config, SiglipWeights weights,
                         int64_t layers, DType activations)
    : config_(config),
      weights_(std::move(weights)),
      layers_(layers),
      type_(activations),
      positions_(DType::f32, weights_.positions.shape(), context.device) {
  convert(context, weights_.positions, positions_);
}

Tensor SiglipTower::encode(const Context& context, ConstTensorView patches,
                           const Watcher& watcher) const {
  const int64_t tile_rows = positions_.size(0);
  const int64_t rows = patches.size(0);
  if (rows < 1 || rows % tile_rows != 0 || patches.size(1) != weights_.patch.weight.size(1)) {
    throw Error(ErrorKind::internal, "patches do not fit the vision tower");
  }
  const auto make = [&](int64_t count, int64_t width) {
    return Tensor(type_, Shape{count, width}, context.device);
  };
  Tensor hidden(DType::f32, Shape{rows, config_.hidden}, context.device);
  Scratch scratch{
      {},
      make(rows, config_.hidden),
      make(rows, config_.hidden),
      make(rows, config_.hidden),
      make(rows, config_.hidden),
      make(std::min(rows, strip_rows(context)), weights_.layers[0].down.weight.size(1))};
  for (int64_t offset = 0; offset <= rows; offset += tile_rows) {
    scratch.offsets.push_back(static_cast<int32_t>(offset));
  }

  apply_linear(context, patches, weights_.patch, hidden);
  for (int64_t begin = 0; begin < rows; begin += tile_rows) {
    const TensorView tile = hidden.view().rows(begin, tile_rows);
    add(context, tile, positions_, tile);
  }
  for (int64_t layer = 0; layer < layers_; ++layer) {
    const SiglipLayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
    attend(context, weights, hidden, scratch);
    feed_forward(context, weights, hidden, scratch);
    if (watcher) watcher(static_cast<int>(layer), hidden);
  }
  return hidden;
}

void SiglipTower::attend(const Context& context, const SiglipLayerWeights& weights, Tensor& hidden,
                         Scratch& scratch) const {
  const int64_t head_size = config_.hidden / config_.heads;
  const Shape shape{hidden.size(0), config_.heads, head_size};
  layer_norm(context, hidden, weights.attention_norm.weight, weights.attention_norm.bias,
             config_.norm_epsilon, scratch.normed);
  apply_linear(context, scratch.normed, weights.query, scratch.query);
  apply_linear(context, scratch.normed, weights.key, scratch.key);
  apply_linear(context, scratch.normed, weights.value, scratch.value);
  attend_windows(context, scratch.query.view().reshaped(shape), scratch.key.view().reshaped(shape),
                 scratch.value.view().reshaped(shape), scratch.offsets,
                 1.0f / std::sqrt(static_cast<float>(head_size)),
                 scratch.normed.view().reshaped(shape));
  apply_linear(context, scratch.normed, weights.output, hidden, true);
}

void SiglipTower::feed_forward(const Context& context, const SiglipLayerWeights& weights,
                               Tensor& hidden, Scratch& scratch) const {
  const int64_t rows = hidden.size(0);
  layer_norm(context, hidden, weights.mlp_norm.weight, weights.mlp_norm.bias, config_.norm_epsilon,
             scratch.normed);
  const int64_t strip = strip_rows(context);
  for (int64_t begin = 0; begin < rows; begin += strip) {
    const int64_t count = std::min(strip, rows - begin);
    const TensorView wide = scratch.wide.view().rows(0, count);
    apply_linear(context, scratch.normed.view().rows(begin, count), weights.up, wide);
    gelu_tanh(context, wide, wide);
    apply_linear(context, wide, weights.down, hidden.view().rows(begin, count), true);
  }
}

}  // namespace kinora
