#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/log.h"
#include "model/family_model.h"
#include "model/weights/safetensors.h"

namespace kinora {

std::unique_ptr<Model> load_model(const Context& context, const FileSystem& files,
                                  const std::string& directory, const LoadOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  ModelConfig config = read_config(files, directory);
  const TensorFiles tensors = TensorFiles::open(files, directory);
  ModelWeights weights = bind_weights(context, config, tensors, options.check_finite);
  Tokenizer tokenizer = Tokenizer::load(files, directory);
  ChatTemplate chat =
      ChatTemplate::choose(family_name(config.family), read_chat_template(files, directory));
  const Family family = config.family;
  LoadedFiles loaded{directory, std::move(config), std::move(weights), std::move(tokenizer),
                     std::move(chat)};

  std::unique_ptr<Model> model;
  switch (family) {
    case Family::qwen2_5_vl:
      model = make_qwen2_5_vl(context, files, std::move(loaded), options);
      break;
    case Family::llava_onevision:
      model = make_llava_onevision(context, files, std::move(loaded), options);
      break;
    case Family::llama:
    case Family::qwen2:
    case Family::qwen3:
      model = make_text_model(context, std::move(loaded), options);
      break;
  }
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - begin;
  log_info(fmt::format("loaded {} ({} parameters, {} bytes mapped) in {:.1f} ms", directory,
                       model->info().parameters, model->info().weight_bytes, elapsed.count()));
  return model;
}

}  // namespace kinora
