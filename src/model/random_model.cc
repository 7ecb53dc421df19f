#include "model/random_model.h"

#include <utility>

#include "base/error.h"
#include "model/family_model.h"
#include "model/weights/random_weights.h"

namespace kinora {

std::unique_ptr<Model> random_model(const Context& context, const FileSystem& files,
                                    const std::string& directory, const std::string& name,
                                    const ModelConfig& shape) {
  if (shape.family != Family::qwen2_5_vl || !shape.qwen_vision) {
    throw Error(ErrorKind::unsupported,
                "random weights are made for whole models of Qwen2.5-VL's family only");
  }
  ModelConfig config = read_config(files, directory);
  if (config.family != shape.family) {
    throw Error(ErrorKind::usage, directory + " is a model of another family than the shape");
  }
  if (shape.decoder.vocabulary < config.decoder.vocabulary) {
    throw Error(ErrorKind::usage, directory + " has more tokens than the shape");
  }
  config.decoder = shape.decoder;
  config.qwen_vision = shape.qwen_vision;
  ModelWeights weights;
  weights.decoder = random_decoder(context, config.decoder, DType::bf16);
  weights.qwen_vision = random_qwen_vision(context, *config.qwen_vision, DType::bf16);
  const DecoderConfig& d = config.decoder;
  const QwenVisionConfig& v = *config.qwen_vision;
  weights.parameters = d.layers * (2 * d.hidden * d.head_size * (d.heads + d.kv_heads) +
                                   3 * d.hidden * d.intermediate) +
                       (d.tied.value_or(false) ? 1 : 2) * d.vocabulary * d.hidden +
                       v.layers * (4 * v.hidden * v.hidden + 3 * v.hidden * v.intermediate);
  weights.bytes = 2 * weights.parameters;
  LoadedFiles loaded{
      directory,
      std::move(config),
      std::move(weights),
      Tokenizer::load(files, directory),
      ChatTemplate::choose(family_name(shape.family), read_chat_template(files, directory)),
      name};
  return make_qwen2_5_vl(context, files, std::move(loaded), {});
}

}  // namespace kinora
