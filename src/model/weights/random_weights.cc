#include "model/weights/random_weights.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "base/gpu.h"
#include "base/random.h"

namespace kinora {
namespace {

template <typename T>
void fill_host(T* values, int64_t count, float scale, uint64_t seed) {
  Random random(seed);
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(random.uniform(-scale, scale));
    if constexpr (std::is_same_v<T, float>) {
      values[i] = value;
    } else {
      values[i] = T::from_float(value);
    }
  }
}

// Codes with all bits random, but no NaN; scales that keep activations near one.
std::shared_ptr<const PackedMatrix> random_packed(const ThreadPool& threads, PackedKind kind,
                                                  int64_t rows, int64_t columns, uint64_t seed) {
  const uint8_t mask = kind == PackedKind::int4 ? 0x0f : kind == PackedKind::fp8 ? 0xbf : 0xff;
  const double largest = kind == PackedKind::int4 ? 8 : kind == PackedKind::int8 ? 128 : 2;
  PackedMatrix::Source source;
  source.kind = kind;
  source.rows = rows;
  source.columns = columns;
  source.group = random_group;
  source.zero = kind == PackedKind::int4 ? 8.0f : 0.0f;
  source.codes = [=](int64_t first, int64_t count, uint8_t* codes) {
    Random random(seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(first));
    for (int64_t i = 0; i < count * columns; i += 8) {
      const uint64_t bits = random.next();
      for (int64_t j = i; j < std::min(i + 8, count * columns); ++j) {
        codes[j] = static_cast<uint8_t>(bits >> (j - i) * 8) & mask;
      }
    }
  };
  const auto scale = static_cast<float>(1.7 / std::sqrt(static_cast<double>(columns)) / largest);
  source.scale = [=](int64_t, int64_t) { return scale; };
  return std::make_shared<const PackedMatrix>(threads, source);
}

}  // namespace

double bytes_of_weight(std::optional<PackedKind> packed) {
  if (!packed) return 2;
  return (*packed == PackedKind::int4 ? 0.5 : 1.0) + 4.0 / static_cast<double>(random_group);
}

void fill_random(const Context& context, TensorView out, float scale, uint64_t seed) {
  if (!out.contiguous() || (out.dtype() != DType::f32 && out.dtype() != DType::bf16)) {
    throw Error(ErrorKind::internal, "random numbers fill contiguous f32 or bf16 tensors");
  }
  if (!context.device.is_cpu()) return cuda::fill_random(context, out, scale, seed);
  if (out.dtype() == DType::f32) {
    fill_host(out.data<float>(), out.elements(), scale, seed);
  } else {
    fill_host(out.data<bf16>(), out.elements(), scale, seed);
  }
}

Tensor random_tensor(const Context& context, DType type, const Shape& shape, float scale,
                     uint64_t seed) {
  Tensor tensor(type, shape, context.device);
  fill_random(context, tensor, scale, seed);
  return tensor;
}

Tensor WeightMaker::matrix(int64_t rows, int64_t columns) {
  const float scale = 1.7f / std::sqrt(static_cast<float>(columns));
  return random_tensor(context_, type_, {rows, columns}, scale, ++seed_);
}

Tensor WeightMaker::vector(int64_t length) {
  return random_tensor(context_, type_, {length}, 1.0f, ++seed_);
}

LinearWeights WeightMaker::linear(int64_t rows, int64_t columns, bool bias) {
  LinearWeights made;
  if (packed_) {
    made.packed = random_packed(*context_.threads, *packed_, rows, columns, ++seed_);
  } else {
    made.weight = matrix(rows, columns);
  }
  if (bias) made.bias = vector(rows);
  return made;
}

NormWeights WeightMaker::norm(int64_t width) {
  NormWeights made;
  made.weight = vector(width);
  made.bias = vector(width);
  return made;
}

DecoderWeights random_decoder(const Context& context, const DecoderConfig& config, DType type,
                              std::optional<PackedKind> packed) {
  WeightMaker make(context, type, packed);
  const int64_t query = config.heads * config.head_size, key = config.kv_heads * config.head_size;
  DecoderWeights weights;
  weights.embeddings = make.matrix(config.vocabulary, config.hidden);
  for (int64_t i = 0; i < config.layers; ++i) {
    DecoderLayerWeights layer;
    layer.input_norm = make.vector(config.hidden);
    layer.query = make.linear(query, config.hidden, config.qkv_bias);
    layer.key = make.linear(key, config.hidden, config.qkv_bias);
    layer.value = make.linear(key, config.hidden, config.qkv_bias);
    layer.output = make.linear(config.hidden, query, config.output_bias);
    if (config.qk_norm) {
      layer.query_norm = make.vector(config.head_size);
      layer.key_norm = make.vector(config.head_size);
    }
    layer.post_norm = make.vector(config.hidden);
    layer.gate = make.linear(config.intermediate, config.hidden, false);
    layer.up = make.linear(config.intermediate, config.hidden, false);
    layer.down = make.linear(config.hidden, config.intermediate, false);
    weights.layers.push_back(std::move(layer));
  }
  weights.norm = make.vector(config.hidden);
  weights.head.weight = config.tied.value_or(false) ? weights.embeddings
                                                    : make.matrix(config.vocabulary, config.hidden);
  return weights;
}

double gpu_read_bandwidth(const Context& context) {
  constexpr int64_t bytes = int64_t{4} << 30;  // far beyond any cache
  const Tensor block = random_tensor(context, DType::bf16, {bytes / 2}, 1.0f, 1);
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    GpuEvent begin(context.device, true), end(context.device, true);
    begin.record(context);
    cuda::read_all(context, block);
    end.record(context);
    best = std::max(best, static_cast<double>(bytes) / end.seconds_since(begin));
  }
  return best;
}

}  // namespace kinora
