#include "model/families/qwen2_5_vl/tower.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "attention/window_attention.h"
#include "base/error.h"
#include "model/weights/linear.h"
#include "ops/activation.h"
#include "ops/gather.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

namespace kinora {
namespace {

constexpr float norm_epsilon = 1e-6f;
constexpr double rotary_base = 10000;
constexpr int64_t feed_forward_rows = 1024;
constexpr int64_t gpu_feed_forward_rows = 32768;

int64_t strip_rows(const Context& context) {
  return context.device.is_cpu() ? feed_forward_rows : gpu_feed_forward_rows;
}

}  // namespace

WindowOrder window_order(int64_t rows, int64_t columns, int64_t side) {
  WindowOrder order;
  order.offsets.push_back(0);
  for (int64_t top = 0; top < rows; top += side) {
    for (int64_t left = 0; left < columns; left += side) {
      for (int64_t row = top; row < std::min(rows, top + side); ++row) {
        for (int64_t column = left; column < std::min(columns, left + side); ++column) {
          order.tokens.push_back(static_cast<int32_t>(row * columns + column));
        }
      }
      order.offsets.push_back(static_cast<int32_t>(order.tokens.size()));
    }
  }
  return order;
}

// What all layers need to know of the units that run together.
struct QwenVisionTower::Layout {
  std::vector<int32_t> tokens;          // window order, all units
  std::vector<int32_t> patches;         // the same, patch by patch
  std::vector<int32_t> window_offsets;  // in patches
  std::vector<int32_t> unit_offsets;    // in patches: the windows of full layers
  RopeTable rope;
};

struct QwenVisionTower::Scratch {
  Tensor hidden;  // [patches, hidden]: the residual stream, window order
  Tensor normed;  // [patches, hidden]
  Tensor qkv;     // [patches, 3 × hidden]
  Tensor gate;    // [strip, intermediate]
  Tensor up;      // the same; only where gate and up are apart
};

QwenVisionTower::QwenVisionTower(const QwenVisionConfig& config, QwenVisionWeights weights,
                                 DType activations)
    : config_(config), weights_(std::move(weights)), type_(activations) {}

QwenVisionTower::Layout QwenVisionTower::layout(const Context& context, int64_t units, int64_t rows,
                                                int64_t columns) const {
  const int64_t merge = config_.merge;
  const int64_t block = merge * merge;
  const int64_t token_columns = columns / merge;
  const int64_t unit_tokens = rows / merge * token_columns;
  const WindowOrder order =
      window_order(rows / merge, token_columns, config_.window / merge / config_.patch);

  Layout result;
  std::vector<std::array<int64_t, 2>> positions;  // (row, column) of every patch
  result.window_offsets.push_back(0);
  result.unit_offsets.push_back(0);
  for (int64_t unit = 0; unit < units; ++unit) {
    for (const int32_t token : order.tokens) {
      const int64_t place = unit * unit_tokens + token;
      result.tokens.push_back(static_cast<int32_t>(place));
      for (int64_t inside = 0; inside < block; ++inside) {
        result.patches.push_back(static_cast<int32_t>(place * block + inside));
        positions.push_back({token / token_columns * merge + inside / merge,
                             token % token_columns * merge + inside % merge});
      }
    }
    const auto begin = static_cast<int32_t>(unit * unit_tokens * block);
    for (size_t window = 1; window < order.offsets.size(); ++window) {
      result.window_offsets.push_back(begin + order.offsets[window] * static_cast<int32_t>(block));
    }
    result.unit_offsets.push_back(result.window_offsets.back());
  }
  const int64_t head_size = config_.hidden / config_.heads;
  result.rope =
      vision_rope_table(context, rope_inverse_frequencies(head_size / 2, rotary_base), positions);
  return result;
}

Tensor QwenVisionTower::encode(const Context& context, const PatchSource& patches, int64_t units,
                               int64_t rows, int64_t columns, const Watcher& watcher) const {
  const int64_t unit_patches = rows * columns;
  const int64_t block = config_.merge * config_.merge;
  const auto check = [](bool fits) {
    if (!fits) throw Error(ErrorKind::internal, "patches do not fit the vision tower");
  };
  check(units > 0 && unit_patches > 0 && rows % config_.merge == 0 && columns % config_.merge == 0);
  Tensor result(DType::f32, Shape{units * unit_patches / block, config_.output}, context.device);
  const int64_t at_once = watcher ? units : std::min(units, units_at_once(context, unit_patches));
  Layout current;
  Scratch scratch;
  int64_t laid_out = 0;
  for (int64_t unit = 0; unit < units; unit += at_once) {
    const int64_t count = std::min(at_once, units - unit);
    if (count != laid_out) {
      laid_out = count;
      current = layout(context, count, rows, columns);
      scratch = Scratch();  // the old one makes room for the new one
      scratch = this->scratch(context, count * unit_patches);
    }
    const Tensor piece = patches(unit, count);
    check(piece.shape() == Shape{count * unit_patches, patch_columns()});
    encode_units(context, piece, current, scratch, watcher,
                 result.view().rows(unit * unit_patches / block, count * unit_patches / block));
  }
  return result;
}

QwenVisionTower::Scratch QwenVisionTower::scratch(const Context& context, int64_t patches) const {
  const int64_t strip = std::min(patches, strip_rows(context));
  const bool fused = weights_.layers[0].gate_up.weight.defined();
  const int64_t wide = weights_.layers[0].down.weight.size(1);
  const auto make = [&](int64_t rows, int64_t width) {
    return Tensor(type_, Shape{rows, width}, context.device);
  };
  return {Tensor(DType::f32, Shape{patches, config_.hidden}, context.device),
          make(patches, config_.hidden), make(patches, 3 * config_.hidden), make(strip, wide),
          fused ? Tensor() : make(strip, wide)};
}

void QwenVisionTower::encode_units(const Context& context, ConstTensorView patches,
                                   const Layout& layout, Scratch& scratch, const Watcher& watcher,
                                   TensorView out) const {
  apply_linear(context, patches, {weights_.patch, {}}, scratch.normed);
  gather_rows(context, scratch.normed, layout.patches, scratch.hidden);

  for (int layer = 0; layer < static_cast<int>(weights_.layers.size()); ++layer) {
    const QwenVisionLayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
    const bool full = std::find(config_.full_layers.begin(), config_.full_layers.end(), layer) !=
                      config_.full_layers.end();
    attend(context, weights, layout, full, scratch);
    feed_forward(context, weights, scratch);
    if (watcher) {
      Tensor ordered(DType::f32, scratch.hidden.shape(), context.device);
      scatter_rows(context, scratch.hidden, layout.patches, ordered);
      watcher(layer, ordered);
    }
  }
  merge(context, layout, scratch, out);
}

void QwenVisionTower::attend(const Context& context, const QwenVisionLayerWeights& weights,
                             const Layout& layout, bool full, Scratch& scratch) const {
  const int64_t count = scratch.hidden.size(0);
  const int64_t hidden = config_.hidden;
  const int64_t head_size = hidden / config_.heads;
  rms_norm(context, scratch.hidden, weights.attention_norm, norm_epsilon, scratch.normed);
  apply_linear(context, scratch.normed, weights.qkv, scratch.qkv);

  // Queries, keys and values lie side by side in each row.
  const Shape shape{count, config_.heads, head_size};
  const TensorView::Strides strides{3 * hidden, head_size, 1};
  const auto part = [&](int64_t index) {
    std::byte* data = scratch.qkv.view().raw() + index * hidden * dtype_size(type_);
    return TensorView(data, type_, shape, strides, context.device);
  };
  apply_rope(context, layout.rope, part(0));
  apply_rope(context, layout.rope, part(1));
  attend_windows(
      context, part(0), part(1), part(2), full ? layout.unit_offsets : layout.window_offsets,
      1.0f / std::sqrt(static_cast<float>(head_size)), scratch.normed.view().reshaped(shape));
  apply_linear(context, scratch.normed, weights.output, scratch.hidden, true);
}

void QwenVisionTower::feed_forward(const Context& context, const QwenVisionLayerWeights& weights,
                                   Scratch& scratch) const {
  const int64_t count = scratch.hidden.size(0);
  rms_norm(context, scratch.hidden, weights.mlp_norm, norm_epsilon, scratch.normed);
  const int64_t strip = strip_rows(context);
  for (int64_t begin = 0; begin < count; begin += strip) {
    const int64_t rows = std::min(strip, count - begin);
    const TensorView gate = scratch.gate.view().rows(0, rows);
    const TensorView input = scratch.normed.view().rows(begin, rows);
    if (weights.gate_up.weight.defined()) {
      gated_matmul(context, input, weights.gate_up.weight, gate, weights.gate_up.bias.view());
    } else {
      const TensorView up = scratch.up.view().rows(0, rows);
      apply_linear(context, input, weights.gate, gate);
      apply_linear(context, input, weights.up, up);
      silu_mul(context, gate, up, gate);
    }
    apply_linear(context, gate, weights.down, scratch.hidden.view().rows(begin, rows), true);
  }
}

// The patches of one token lie side by side in window order too, so that merging is a reshape.
void QwenVisionTower::merge(const Context& context, const Layout& layout, Scratch& scratch,
                            TensorView out) const {
  const int64_t block = config_.merge * config_.merge;
  const Shape merged{scratch.hidden.size(0) / block, block * config_.hidden};
  rms_norm(context, scratch.hidden, weights_.merger_norm, norm_epsilon, scratch.normed);
  const TensorView wide(scratch.qkv.view().raw(), type_, merged, context.device);
  apply_linear(context, scratch.normed.view().reshaped(merged), weights_.merger_in, wide);
  gelu_erf(context, wide, wide);
  Tensor tokens(DType::f32, out.shape(), context.device);
  apply_linear(context, wide, weights_.merger_out, tokens);
  scatter_rows(context, tokens, layout.tokens, out);
}

}  // namespace kinora
