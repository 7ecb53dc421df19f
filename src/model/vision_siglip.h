// The SigLIP vision tower of LLaVA-OneVision: square tiles or frames, each by itself, through
// layers of full attention. Used by llava_onevision.cc.
#pragma once

#include <cstdint>
#include <functional>

#include "base/context.h"
#include "base/tensor.h"
#include "model/config.h"
#include "model/weights.h"

namespace kinora {

class SiglipTower {
 public:
  // Called after each layer with [tiles × grid², hidden].
  using Watcher = std::function<void(int layer, ConstTensorView hidden)>;

  // Runs the first `layers` layers; the projector reads the output of the last of them.
  SiglipTower(const Context& context, const SiglipConfig& config, SiglipWeights weights,
              int64_t layers);

  // patches: f32 [tiles × grid², channels × patch²], tile by tile in raster order. Gives f32
  // [tiles × grid², hidden].
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
  Tensor positions_;  // f32 [grid², hidden]
};

}  // namespace kinora
