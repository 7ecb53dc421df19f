#include "model/quantize/input_sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "attention/policies/dense.h"
#include "base/error.h"
#include "memory/flat_memory.h"
#include "model/config_files.h"
#include "model/decoder/transformer_decoder.h"
#include "model/families/families.h"
#include "model/weights/quantized_files.h"
#include "model/weights/weights_binder.h"
#include "text/tokenizer.h"

namespace kinora {
namespace {

constexpr int64_t window = 512;  // tokens that are read together
constexpr int64_t least_tokens = 100;

class Adder final : public ProductObserver {
 public:
  // `moments` is null where they are not wanted.
  Adder(const ThreadPool& threads, std::vector<std::array<InputSizes, 4>>& layers,
        std::vector<std::array<InputMoments, 4>>* moments)
      : threads_(threads), layers_(layers), moments_(moments) {}

  void look(int layer, Product product, ConstTensorView rows) override {
    InputSizes& sizes = layers_[static_cast<size_t>(layer)][static_cast<size_t>(product)];
    const auto width = static_cast<size_t>(rows.size(1));
    sizes.magnitude.resize(width);
    sizes.square.resize(width);
    for (int64_t row = 0; row < rows.size(0); ++row) {
      const float* values = rows.row<float>(row);
      for (size_t i = 0; i < width; ++i) {
        sizes.magnitude[i] += std::abs(static_cast<double>(values[i]));
        sizes.square[i] += static_cast<double>(values[i]) * values[i];
      }
    }
    if (moments_ == nullptr) return;
    InputMoments& moments = (*moments_)[static_cast<size_t>(layer)][static_cast<size_t>(product)];
    if (moments.inputs() == 0) moments = InputMoments(rows.size(1));
    moments.add(threads_, rows);
  }

 private:
  const ThreadPool& threads_;
  std::vector<std::array<InputSizes, 4>>& layers_;
  std::vector<std::array<InputMoments, 4>>* moments_;
};

}  // namespace

InputSample InputSample::take(const Context& context, const FileSystem& files,
                              const std::string& directory, const std::string& text, int64_t tokens,
                              bool moments, Progress* progress, const CancelToken& cancel) {
  const Tokenizer tokenizer = Tokenizer::load(files, directory);
  std::vector<int32_t> ids = tokenizer.encode(text);
  if (static_cast<int64_t>(ids.size()) < least_tokens) {
    throw Error(ErrorKind::bad_input, "the sample text has " + std::to_string(ids.size()) +
                                          " tokens; give at least " + std::to_string(least_tokens));
  }
  ids.resize(std::min(ids.size(), static_cast<size_t>(tokens)));

  const ConfigFiles config_files = ConfigFiles::read(files, directory);
  const DecoderConfig config = family_of(config_files).read(config_files).decoder;
  const TensorFiles tensors = open_weights(context, files, directory, config_files);
  WeightsBinder binder(tensors);
  const DecoderWeights weights = take_decoder(binder, config);
  // A tower is not needed; what the decoder lacks is an error.
  for (const std::string& name : tensors.names()) binder.pass_over(common_tensor_name(name));
  binder.finish(context, false);

  InputSample sample;
  sample.tokens_ = static_cast<int64_t>(ids.size());
  sample.layers_.resize(static_cast<size_t>(config.layers));
  sample.moments_.resize(sample.layers_.size());
  Adder adder(*context.threads, sample.layers_, moments ? &sample.moments_ : nullptr);
  DecoderOptions options;
  options.native_bf16 = true;
  options.observer = &adder;
  const TransformerDecoder decoder(context, config, weights, options);
  const auto runner = decoder.runner(context);
  for (int64_t begin = 0; begin < sample.tokens_; begin += window) {
    cancel.check();
    if (progress != nullptr) progress->update("sample", begin, sample.tokens_);
    const int64_t count = std::min(window, sample.tokens_ - begin);
    FlatMemory memory({static_cast<int>(config.layers), static_cast<int>(config.kv_heads),
                       static_cast<int>(config.head_size), DType::f32});
    DenseAttention attention;
    Sequence sequence;
    sequence.ids.assign(ids.begin() + begin, ids.begin() + begin + count);
    sequence.tokens.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const auto position = static_cast<int32_t>(i);
      sequence.tokens[static_cast<size_t>(i)].position = {position, position, position};
    }
    sequence.memory = &memory;
    sequence.attention = &attention;
    sequence.cancel = cancel;
    runner->forward(sequence);
  }
  for (std::array<InputSizes, 4>& layer : sample.layers_) {
    for (InputSizes& sizes : layer) {
      for (double& value : sizes.magnitude) value /= static_cast<double>(sample.tokens_);
      for (double& value : sizes.square) value /= static_cast<double>(sample.tokens_);
    }
  }
  for (size_t layer = 0; layer < sample.moments_.size(); ++layer) {
    for (const InputMoments& sums : sample.moments_[layer]) {
      if (sums.finite()) continue;
      throw Error(ErrorKind::bad_input,
                  fmt::format("{}: layer {} meets a NaN or an infinity when it reads the sample "
                              "text; check the weights",
                              directory, layer));
    }
  }
  return sample;
}

}  // namespace kinora
