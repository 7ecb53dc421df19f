// The SigLIP vision tower of LLaVA-OneVision: square tiles or frames, each by itself, through
// layers of full attention. Used by llava_onevision.cc.
#pragma once

#include <cstdint>
#include <functional>

#include "base/context.h"
#include "base/tensor.h"
#include "model/families/llava_onevision/config.h"
#include "model/families/llava_onevision/weights.h"

namespace kinora {

class SiglipTower {
 public:
  // Called after each layer with [tiles × grid², hidden].
  using Watcher = std::function<void(int layer, ConstTensorView hidden)>;

  // Runs the first `layers` layers; the projector reads the output of the last of them.
  // `activations` is what goes through products: f32, or bf16 on a GPU.
  SiglipTower(const Context& context, const SiglipConfig& config, SiglipWeights weights,
              int64_t layers, DType activations = DType::f32);

  DType activations() const { return type_; }
  int64_t patch_columns() const { return weights_.patch.weight.size(1); }  // on a GPU, padded

  // patches: [tiles × grid², patch_columns] of the activations' type, tile by tile in raster order.
  // Gives f32 [tiles × grid², hidden].
  Tensor encode(const Context& context, ConstTensorView patches,
                const Watcher& watcher = nullptr) const;

 private:
  struct Scratch;
  void attend(const Context& context, const SiglipLayerWeights& weights, Tensor& hidden,
              Scratch& scratch) const;
  void feed_forward(const Context& context, const SiglipLayerWeights& weights, Tensor& hidden,
                    Scratch& scratch) const;

  SiglipConfig config_;
  SiglipWeights weights_;
  int64_t layers_;
  DType type_;
  Tensor positions_;  // f32 [grid², hidden]
};

}  // namespace kinora
