// Weights and rows of random numbers, made where they are used: benchmarks measure a model's shape
// without its files. Used by the benchmarks, and by families that make whole models this way.
#pragma once

#include <cstdint>
#include <optional>

#include "base/context.h"
#include "base/tensor.h"
#include "model/config.h"
#include "model/weights/weights.h"
#include "ops/packed_matrix.h"

namespace kinora {

// Uniform numbers in [−scale, scale), a function of seed and place only.
void fill_random(const Context& context, TensorView out, float scale, uint64_t seed);
Tensor random_tensor(const Context& context, DType type, const Shape& shape, float scale,
                     uint64_t seed);

// Makes the weights of one decoder or tower, each tensor from a seed of its own, scaled so that
// activations stay near one.
class WeightMaker {
 public:
  // With `packed`, linear layers are made in 4 or 8 bits, in groups of 128 columns.
  WeightMaker(const Context& context, DType type, std::optional<PackedKind> packed = {})
      : context_(context), type_(type), packed_(packed) {}

  Tensor matrix(int64_t rows, int64_t columns);
  Tensor vector(int64_t length);
  LinearWeights linear(int64_t rows, int64_t columns, bool bias);
  NormWeights norm(int64_t width);

 private:
  const Context& context_;
  DType type_;
  std::optional<PackedKind> packed_;
  uint64_t seed_ = 0;
};

constexpr int64_t random_group = 128;  // columns that share a scale where weights are packed

// With `packed`, the layers are; embeddings and head stay in `type`.
DecoderWeights random_decoder(const Context& context, const DecoderConfig& config, DType type,
                              std::optional<PackedKind> packed = {});
// Bytes of one weight of its layers, scales included.
double bytes_of_weight(std::optional<PackedKind> packed);

// The best read bandwidth of the device, in bytes per second.
double gpu_read_bandwidth(const Context& context);

namespace cuda {
void fill_random(const Context& context, TensorView out, float scale, uint64_t seed);
// Reads the whole view once and keeps nothing.
void read_all(const Context& context, ConstTensorView view);
}  // namespace cuda

}  // namespace kinora
