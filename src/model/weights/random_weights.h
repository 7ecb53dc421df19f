// Weights and rows of random numbers, made where they are used: benchmarks measure a model's shape
// without its files. Used by `kinora bench model`.
#pragma once

#include <cstdint>

#include "base/context.h"
#include "base/tensor.h"
#include "model/config.h"
#include "model/weights/weights.h"

namespace kinora {

// Uniform numbers in [−scale, scale), a function of seed and place only.
void fill_random(const Context& context, TensorView out, float scale, uint64_t seed);
Tensor random_tensor(const Context& context, DType type, const Shape& shape, float scale,
                     uint64_t seed);

// All of one type, scaled so that activations stay near one.
DecoderWeights random_decoder(const Context& context, const DecoderConfig& config, DType type);
QwenVisionWeights random_qwen_vision(const Context& context, const QwenVisionConfig& config,
                                     DType type);
SiglipWeights random_siglip(const Context& context, const SiglipConfig& config, DType type);

// Bytes a second that the device reads at best.
double gpu_read_bandwidth(const Context& context);

namespace cuda {
void fill_random(const Context& context, TensorView out, float scale, uint64_t seed);
// Reads the whole view once and keeps nothing.
void read_all(const Context& context, ConstTensorView view);
}  // namespace cuda

}  // namespace kinora
