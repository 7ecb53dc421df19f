#include "model/family_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "model/chat/published_template.h"
#include "model/decoder/rotary.h"
#include "model/decoder/transformer_decoder.h"
#include "model/families/families.h"
#include "model/weights/gpu_weights.h"
#include "model/weights/quantized_files.h"

namespace kinora {
namespace {

std::string last_part(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const size_t slash = path.find_last_of('/');
  return slash == std::string::npos || path.size() == 1 ? path : path.substr(slash + 1);
}

ModelInfo describe(const ModelParts& parts) {
  const DecoderConfig& decoder = parts.config.decoder;
  ModelInfo info;
  info.family = parts.family.model_type();
  info.name = parts.name;
  const LinearWeights& first = parts.decoder.layers[0].query;
  info.weight_dtype =
      first.packed != nullptr ? parts.decoder.embeddings.dtype() : first.weight.dtype();
  info.parameters = parts.weights.parameters;
  const int64_t projections =
      2 * decoder.hidden * decoder.head_size * (decoder.heads + decoder.kv_heads);
  info.decoder_parameters =
      decoder.layers * (projections + 3 * decoder.hidden * decoder.intermediate);
  info.weight_bytes = parts.weights.bytes;
  info.stored_bytes = parts.weights.stored_bytes;
  info.quantization = parts.quantization;
  info.max_position = decoder.max_position;
  info.vocabulary = decoder.vocabulary;
  info.heads = decoder.heads;
  info.rows = {static_cast<int>(decoder.layers), static_cast<int>(decoder.kv_heads),
               static_cast<int>(decoder.head_size), DType::f32};
  info.rows.rotary = {rotary_frequencies(decoder.rope, decoder.head_size),
                      rotary_axes(decoder.rope, decoder.head_size)};
  info.sees = parts.family.sees();
  info.deep_levels = parts.config.deep_levels;
  info.image_token = parts.config.image_token;
  info.video_token = parts.config.video_token;
  if (info.sees) {
    const int64_t embeddings = decoder.vocabulary * decoder.hidden;
    info.vision_parameters =
        std::max<int64_t>(0, info.parameters - info.decoder_parameters - embeddings);
  }
  info.stop_tokens = parts.config.stop_tokens;
  info.generation = parts.config.generation;
  return info;
}

}  // namespace

ModelParts gather_parts(const Family& family, const ModelDirectory& directory, ModelConfig config,
                        DecoderWeights decoder, const WeightCount& weights) {
  Tokenizer tokenizer = Tokenizer::load(directory.files, directory.path);
  ChatTemplate chat(family.chat(), read_chat_template(directory.files, directory.path));
  return {family,  last_part(directory.path),           std::move(config),    std::move(decoder),
          weights, quantization_text(directory.config), std::move(tokenizer), std::move(chat)};
}

ModelConfig config_in_shape(const Family& family, const ModelDirectory& directory,
                            const ConfigFiles& shape) {
  if (&family_of(directory.config) != &family) {
    throw Error(ErrorKind::usage, directory.path + " is a model of another family than the shape");
  }
  ModelConfig config = family.read(directory.config);
  ModelConfig wanted = family.read(shape);
  if (wanted.decoder.vocabulary < config.decoder.vocabulary) {
    throw Error(ErrorKind::usage, directory.path + " has more tokens than the shape");
  }
  config.decoder = std::move(wanted.decoder);
  config.deep_levels = wanted.deep_levels;
  return config;
}

FamilyModel::FamilyModel(const Context& context, ModelParts parts, const LoadOptions& options)
    : info_(describe(parts)),
      tokenizer_(std::move(parts.tokenizer)),
      chat_(std::move(parts.chat)),
      activations_(activation_type(context, info_.weight_dtype,
                                   gpu_precision(options.gpu_exact, options.native_bf16))) {
  decoder_ =
      std::make_unique<TransformerDecoder>(context, parts.config.decoder, parts.decoder,
                                           DecoderOptions{options.native_bf16, activations_});
}

std::vector<PromptRun> FamilyModel::render(const Conversation& conversation) const {
  std::vector<PromptRun> runs;
  // Placeholders are tokens of their own, so that text can be cut at them before it is encoded.
  std::vector<ChatPiece> pieces = chat_.render(conversation, {});
  arrange(conversation, pieces);
  for (const ChatPiece& piece : pieces) {
    PromptRun run;
    run.visual = piece.visual;
    if (piece.visual < 0) run.ids = tokenizer_.encode(piece.text);
    if (piece.visual >= 0 || !run.ids.empty()) runs.push_back(std::move(run));
  }
  return runs;
}

void check_frames(const VisualPlan& plan, const FrameGroup& frames, bool last) {
  const bool whole_units = frames.frames() % plan.frames_per_unit == 0;
  // Without frames only the tokens that close an item are wanted.
  const bool some = frames.frames() > 0 || (last && plan.trailing_tokens > 0);
  if (!some || (!last && !whole_units) || frames.width() != plan.frame_size.width ||
      frames.height() != plan.frame_size.height) {
    throw Error(ErrorKind::internal,
                fmt::format("{} frames of {}×{} do not fit a plan of {} a unit, {}×{}",
                            frames.frames(), frames.frames() > 0 ? frames.width() : 0,
                            frames.frames() > 0 ? frames.height() : 0, plan.frames_per_unit,
                            plan.frame_size.width, plan.frame_size.height));
  }
}

}  // namespace kinora
