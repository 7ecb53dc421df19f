// The vision tower of Qwen3-VL: patches of frame pairs, each at its place in a learned table of
// positions, through layers that attend within the pair, then merged two by two into tokens. Some
// layers on the way are merged too (DeepStack): a token is its embedding and, beside it, the rows
// that the decoder adds after its first layers. Used by qwen3_vl.cc.
#pragma once

#include <cstdint>
#include <functional>

#include "base/context.h"
#include "base/tensor.h"
#include "model/families/qwen3_vl/config.h"
#include "model/families/qwen3_vl/weights.h"
#include "model/vision/tower_pieces.h"

namespace kinora {

// The table of positions [side², width] at `rows` × `columns` patches: bilinear, corners on
// corners. f32 [rows × columns, width] in the order of patches: block by block of `merge` ×
// `merge`.
Tensor interpolated_positions(const Context& context, const Tensor& table, int64_t rows,
                              int64_t columns, int64_t merge);

class Qwen3VisionTower {
 public:
  // Called after each layer with [patches, hidden].
  using Watcher = std::function<void(int layer, ConstTensorView hidden)>;

  // `activations` is what goes through products: f32, or bf16 on a GPU.
  Qwen3VisionTower(const Qwen3VisionConfig& config, Qwen3VisionWeights weights,
                   DType activations = DType::f32);

  DType activations() const { return type_; }
  int64_t patch_columns() const { return weights_.patch.weight.size(1); }  // on a GPU, padded

  // Patches have patch_columns columns and come in the processor's order; rows and columns of a
  // unit are counted in patches. Gives f32 [units × rows/merge × columns/merge, (1 + levels) ×
  // output]. With a watcher all units run at once.
  Tensor encode(const Context& context, const PatchSource& patches, int64_t units, int64_t rows,
                int64_t columns, const Watcher& watcher = nullptr) const;

 private:
  struct Layout;
  struct Scratch;
  Layout layout(const Context& context, int64_t units, int64_t rows, int64_t columns) const;
  Scratch scratch(const Context& context, int64_t patches) const;
  void encode_units(const Context& context, ConstTensorView patches, const Layout& layout,
                    Scratch& scratch, const Watcher& watcher, TensorView out) const;
  void attend(const Context& context, const Qwen3VisionLayerWeights& weights, const Layout& layout,
              Scratch& scratch) const;
  void feed_forward(const Context& context, const Qwen3VisionLayerWeights& weights,
                    Scratch& scratch) const;
  void merge(const Context& context, const Qwen3MergerWeights& weights, Scratch& scratch,
             TensorView out) const;

  Qwen3VisionConfig config_;
  Qwen3VisionWeights weights_;
  DType type_;
};

}  // namespace kinora
