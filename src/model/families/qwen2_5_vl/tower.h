// The vision tower of Qwen2.5-VL: patches of frame pairs through layers that attend within windows
// (a few within the whole frame), then merged two by two into tokens. Frames of a video never see
// each other here, so units can be encoded in any grouping. Used by qwen2_5_vl.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/context.h"
#include "base/tensor.h"
#include "model/families/qwen2_5_vl/config.h"
#include "model/families/qwen2_5_vl/weights.h"
#include "model/vision/tower_pieces.h"

namespace kinora {

// The order in which the tower sees the tokens of one unit: window by window.
struct WindowOrder {
  std::vector<int32_t> tokens;   // place in the window order → token in raster order
  std::vector<int32_t> offsets;  // window w holds the places [offsets[w], offsets[w + 1])
};

// `rows` × `columns` tokens, windows of `side` × `side`; windows at the right and the bottom are
// smaller where the side does not divide.
WindowOrder window_order(int64_t rows, int64_t columns, int64_t side);

class QwenVisionTower {
 public:
  // Called after each layer with [patches, hidden] in the order of the input.
  using Watcher = std::function<void(int layer, ConstTensorView hidden)>;

  // `activations` is what goes through products: f32, or bf16 on a GPU.
  QwenVisionTower(const QwenVisionConfig& config, QwenVisionWeights weights,
                  DType activations = DType::f32);

  DType activations() const { return type_; }
  int64_t patch_columns() const { return weights_.patch.size(1); }  // on a GPU, padded

  // Patches have patch_columns columns and come in the processor's order; rows and columns of a
  // unit are counted in patches. Gives f32 [units × rows/merge × columns/merge, output]. With a
  // watcher all units run at once.
  Tensor encode(const Context& context, const PatchSource& patches, int64_t units, int64_t rows,
                int64_t columns, const Watcher& watcher = nullptr) const;

 private:
  struct Layout;
  struct Scratch;
  Layout layout(const Context& context, int64_t units, int64_t rows, int64_t columns) const;
  Scratch scratch(const Context& context, int64_t patches) const;
  void encode_units(const Context& context, ConstTensorView patches, const Layout& layout,
                    Scratch& scratch, const Watcher& watcher, TensorView out) const;
  void attend(const Context& context, const QwenVisionLayerWeights& weights, const Layout& layout,
              bool full, Scratch& scratch) const;
  void feed_forward(const Context& context, const QwenVisionLayerWeights& weights,
                    Scratch& scratch) const;
  void merge(const Context& context, const Layout& layout, Scratch& scratch, TensorView out) const;

  QwenVisionConfig config_;
  QwenVisionWeights weights_;
  DType type_;
};

}  // namespace kinora
