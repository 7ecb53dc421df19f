#include "model/families/qwen3_vl/tower.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "attention/window_attention.h"
#include "base/error.h"
#include "model/weights/linear.h"
#include "ops/activation.h"
#include "ops/elementwise.h"
#include "ops/layer_norm.h"
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

// Row and column of patch number `place` of a unit.
std::array<int64_t, 2> place_of(int64_t place, int64_t columns, int64_t merge) {
  const int64_t block = place / (merge * merge), inside = place % (merge * merge);
  const int64_t across = columns / merge;
  return {block / across * merge + inside / merge, block % across * merge + inside % merge};
}

// Of one of `size` places along a side of the table: the row before, and the share of the next one.
std::pair<int64_t, float> tap(int64_t place, int64_t size, int64_t side) {
  const double at =
      static_cast<double>(place * (side - 1)) / static_cast<double>(std::max<int64_t>(1, size - 1));
  const double below = std::floor(at);
  return {static_cast<int64_t>(below), static_cast<float>(at - below)};
}

}  // namespace

Tensor interpolated_positions(const Context& context, const Tensor& table, int64_t rows,
                              int64_t columns, int64_t merge) {
  const auto side = static_cast<int64_t>(std::llround(std::sqrt(table.size(0))));
  const int64_t width = table.size(1);
  const Context cpu(*context.threads);
  Tensor wide(DType::f32, table.shape());
  convert(cpu, table, wide);
  Tensor result(DType::f32, Shape{rows * columns, width});
  context.threads->parallel_for(rows * columns, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto [row, column] = place_of(i, columns, merge);
      const auto [top, down] = tap(row, rows, side);
      const auto [left, right] = tap(column, columns, side);
      const int64_t bottom = std::min(top + 1, side - 1), next = std::min(left + 1, side - 1);
      const float* taps[] = {wide.view().row<float>(top * side + left),
                             wide.view().row<float>(top * side + next),
                             wide.view().row<float>(bottom * side + left),
                             wide.view().row<float>(bottom * side + next)};
      const float shares[] = {(1 - down) * (1 - right), (1 - down) * right, down * (1 - right),
                              down * right};
      float* out = result.view().row<float>(i);
      for (int64_t k = 0; k < width; ++k) {
        out[k] = taps[0][k] * shares[0] + taps[1][k] * shares[1] + taps[2][k] * shares[2] +
                 taps[3][k] * shares[3];
      }
    }
  });
  return result.to(context.device);
}

// What all layers need to know of the units that run together.
struct Qwen3VisionTower::Layout {
  std::vector<int32_t> offsets;  // unit u holds the patches [offsets[u], offsets[u + 1])
  Tensor positions;              // [patches of a unit, hidden]
  RopeTable rope;
};

struct Qwen3VisionTower::Scratch {
  Tensor hidden;  // [patches, hidden]: the residual stream
  Tensor normed;  // [patches, hidden]
  Tensor qkv;     // [patches, 3 × hidden]
  Tensor wide;    // [strip, intermediate]
};

Qwen3VisionTower::Qwen3VisionTower(const Qwen3VisionConfig& config, Qwen3VisionWeights weights,
                                   DType activations)
    : config_(config), weights_(std::move(weights)), type_(activations) {}

Qwen3VisionTower::Layout Qwen3VisionTower::layout(const Context& context, int64_t units,
                                                  int64_t rows, int64_t columns) const {
  const int64_t unit_patches = rows * columns;
  Layout result;
  std::vector<std::array<int64_t, 2>> places;  // (row, column) of every patch
  for (int64_t i = 0; i < units * unit_patches; ++i) {
    places.push_back(place_of(i % unit_patches, columns, config_.merge));
  }
  for (int64_t unit = 0; unit <= units; ++unit) {
    result.offsets.push_back(static_cast<int32_t>(unit * unit_patches));
  }
  result.positions =
      interpolated_positions(context, weights_.positions, rows, columns, config_.merge);
  const int64_t head_size = config_.hidden / config_.heads;
  result.rope =
      vision_rope_table(context, rope_inverse_frequencies(head_size / 2, rotary_base), places);
  return result;
}

Tensor Qwen3VisionTower::encode(const Context& context, const PatchSource& patches, int64_t units,
                                int64_t rows, int64_t columns, const Watcher& watcher) const {
  const int64_t unit_patches = rows * columns;
  const int64_t block = config_.merge * config_.merge;
  const auto check = [](bool fits) {
    if (!fits) throw Error(ErrorKind::internal, "patches do not fit the vision tower");
  };
  check(units > 0 && unit_patches > 0 && rows % config_.merge == 0 && columns % config_.merge == 0);
  Tensor result(DType::f32,
                Shape{units * unit_patches / block, (1 + config_.levels()) * config_.output},
                context.device);
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

Qwen3VisionTower::Scratch Qwen3VisionTower::scratch(const Context& context, int64_t patches) const {
  const int64_t strip = std::min(patches, strip_rows(context));
  const auto make = [&](int64_t rows, int64_t width) {
    return Tensor(type_, Shape{rows, width}, context.device);
  };
  return {Tensor(DType::f32, Shape{patches, config_.hidden}, context.device),
          make(patches, config_.hidden), make(patches, 3 * config_.hidden),
          make(strip, weights_.layers[0].down.weight.size(1))};
}

void Qwen3VisionTower::encode_units(const Context& context, ConstTensorView patches,
                                    const Layout& layout, Scratch& scratch, const Watcher& watcher,
                                    TensorView out) const {
  const int64_t count = patches.size(0), unit_patches = layout.positions.size(0);
  apply_linear(context, patches, weights_.patch, scratch.hidden);
  for (int64_t begin = 0; begin < count; begin += unit_patches) {
    const TensorView unit = scratch.hidden.view().rows(begin, unit_patches);
    add(context, unit, layout.positions, unit);
  }
  int64_t level = 0;
  for (int layer = 0; layer < static_cast<int>(weights_.layers.size()); ++layer) {
    const Qwen3VisionLayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
    attend(context, weights, layout, scratch);
    feed_forward(context, weights, scratch);
    if (watcher) watcher(layer, scratch.hidden);
    if (level < config_.levels() && config_.deep_layers[static_cast<size_t>(level)] == layer) {
      merge(context, weights_.deep_mergers[static_cast<size_t>(level)], scratch,
            out.columns((1 + level) * config_.output, config_.output));
      ++level;
    }
  }
  merge(context, weights_.merger, scratch, out.columns(0, config_.output));
}

void Qwen3VisionTower::attend(const Context& context, const Qwen3VisionLayerWeights& weights,
                              const Layout& layout, Scratch& scratch) const {
  const int64_t hidden = config_.hidden, head_size = hidden / config_.heads;
  layer_norm(context, scratch.hidden, weights.attention_norm.weight, weights.attention_norm.bias,
             norm_epsilon, scratch.normed);
  apply_linear(context, scratch.normed, weights.qkv, scratch.qkv);

  // Queries, keys and values lie side by side in each row.
  const Shape shape{scratch.hidden.size(0), config_.heads, head_size};
  const TensorView::Strides strides{3 * hidden, head_size, 1};
  const auto part = [&](int64_t index) {
    std::byte* data = scratch.qkv.view().raw() + index * hidden * dtype_size(type_);
    return TensorView(data, type_, shape, strides, context.device);
  };
  apply_rope(context, layout.rope, part(0));
  apply_rope(context, layout.rope, part(1));
  attend_windows(context, part(0), part(1), part(2), layout.offsets,
                 1.0f / std::sqrt(static_cast<float>(head_size)),
                 scratch.normed.view().reshaped(shape));
  apply_linear(context, scratch.normed, weights.output, scratch.hidden, true);
}

void Qwen3VisionTower::feed_forward(const Context& context, const Qwen3VisionLayerWeights& weights,
                                    Scratch& scratch) const {
  const int64_t count = scratch.hidden.size(0);
  layer_norm(context, scratch.hidden, weights.mlp_norm.weight, weights.mlp_norm.bias, norm_epsilon,
             scratch.normed);
  const int64_t strip = strip_rows(context);
  for (int64_t begin = 0; begin < count; begin += strip) {
    const int64_t rows = std::min(strip, count - begin);
    const TensorView wide = scratch.wide.view().rows(0, rows);
    apply_linear(context, scratch.normed.view().rows(begin, rows), weights.up, wide);
    gelu_tanh(context, wide, wide);
    apply_linear(context, wide, weights.down, scratch.hidden.view().rows(begin, rows), true);
  }
}

// The patches of one token lie side by side, so that joining them is a reshape. The norm says
// whether it goes over one patch or over all that are joined.
void Qwen3VisionTower::merge(const Context& context, const Qwen3MergerWeights& weights,
                             Scratch& scratch, TensorView out) const {
  const int64_t block = config_.merge * config_.merge;
  const int64_t width = weights.norm.weight.size(0);
  const Shape merged{scratch.hidden.size(0) / block, block * config_.hidden};
  const Shape normed{scratch.hidden.elements() / width, width};
  layer_norm(context, scratch.hidden.view().reshaped(normed), weights.norm.weight,
             weights.norm.bias, norm_epsilon, scratch.normed.view().reshaped(normed));
  const TensorView wide(scratch.qkv.view().raw(), type_, merged, context.device);
  apply_linear(context, scratch.normed.view().reshaped(merged), weights.in, wide);
  gelu_erf(context, wide, wide);
  apply_linear(context, wide, weights.out, out);
}

}  // namespace kinora
