#include "model/decoder/transformer_decoder.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "model/decoder/batch_runner.h"
#include "model/decoder/rotary.h"
#include "ops/gather.h"

namespace kinora {

TransformerDecoder::TransformerDecoder(const Context& context, const DecoderConfig& config,
                                       const DecoderWeights& weights, const DecoderOptions& options)
    : TransformerDecoder(config, place_weights(context, weights, options.activations), options) {}

TransformerDecoder::TransformerDecoder(const DecoderConfig& config, PlacedWeights weights,
                                       const DecoderOptions& options)
    : layers_(config, std::move(weights), options.activations, options.native_bf16,
              options.observer),
      frequencies_(rotary_frequencies(config.rope, config.head_size)) {}

void check_tokens(std::span<const int32_t> ids, int64_t vocabulary) {
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocabulary) continue;
    throw Error(ErrorKind::bad_input,
                fmt::format("token {} is not in the model's vocabulary of {}; do tokenizer.json "
                            "and the weights belong together?",
                            id, vocabulary));
  }
}

Tensor TransformerDecoder::embed(const Context& context, std::span<const int32_t> ids) const {
  const DecoderConfig& config = layers_.config();
  check_tokens(ids, config.vocabulary);
  Tensor result(DType::f32, Shape{static_cast<int64_t>(ids.size()), config.hidden}, context.device);
  if (!ids.empty()) gather_rows(context, layers_.weights().embeddings, ids, result);
  return result;
}

Tensor TransformerDecoder::norm(const Context& context, ConstTensorView rows) const {
  Tensor result(DType::f32, rows.shape(), context.device);
  layers_.norm(context, rows, result);
  return result;
}

std::unique_ptr<DecoderRunner> TransformerDecoder::runner(const Context& context) const {
  return std::make_unique<BatchRunner>(context, *this, layers_, frequencies_);
}

}  // namespace kinora
