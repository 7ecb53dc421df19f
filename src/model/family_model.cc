#include "model/family_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "model/decoder/gpu_decoder.h"
#include "model/weights/gpu_weights.h"

namespace kinora {
namespace {

std::string last_part(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const size_t slash = path.find_last_of('/');
  return slash == std::string::npos || path.size() == 1 ? path : path.substr(slash + 1);
}

ModelInfo describe(const LoadedFiles& loaded) {
  const DecoderConfig& decoder = loaded.config.decoder;
  ModelInfo info;
  info.family = family_name(loaded.config.family);
  info.name = loaded.name.empty() ? last_part(loaded.directory) : loaded.name;
  info.weight_dtype = loaded.weights.decoder.layers[0].query.weight.dtype();
  info.parameters = loaded.weights.parameters;
  const int64_t projections =
      2 * decoder.hidden * decoder.head_size * (decoder.heads + decoder.kv_heads);
  info.decoder_parameters =
      decoder.layers * (projections + 3 * decoder.hidden * decoder.intermediate);
  info.weight_bytes = loaded.weights.bytes;
  info.max_position = decoder.max_position;
  info.vocabulary = decoder.vocabulary;
  info.rows = {static_cast<int>(decoder.layers), static_cast<int>(decoder.kv_heads),
               static_cast<int>(decoder.head_size), DType::f32};
  info.sees = loaded.config.qwen_vision || loaded.config.siglip;
  if (info.sees) {
    const int64_t embeddings = decoder.vocabulary * decoder.hidden;
    info.vision_parameters =
        std::max<int64_t>(0, info.parameters - info.decoder_parameters - embeddings);
  }
  info.stop_tokens = loaded.config.stop_tokens;
  info.generation = loaded.config.generation;
  return info;
}

}  // namespace

FamilyModel::FamilyModel(const Context& context, LoadedFiles loaded, const LoadOptions& options)
    : info_(describe(loaded)),
      config_(std::move(loaded.config)),
      tokenizer_(std::move(loaded.tokenizer)),
      chat_(std::move(loaded.chat)),
      activations_(activation_type(context, info_.weight_dtype, options.gpu_exact)) {
  if (context.device.is_cpu()) {
    decoder_ = std::make_unique<TransformerDecoder>(
        config_.decoder, std::move(loaded.weights.decoder), DecoderOptions{options.native_bf16});
  } else {
    decoder_ = make_gpu_decoder(context, config_.decoder, loaded.weights.decoder, activations_);
  }
}

std::vector<PromptRun> FamilyModel::render(const Conversation& conversation) const {
  std::vector<PromptRun> runs;
  // Placeholders are tokens of their own, so that text can be cut at them before it is encoded.
  for (const ChatPiece& piece : chat_.render(conversation, {})) {
    PromptRun run;
    run.visual = piece.visual;
    if (piece.visual < 0) run.ids = tokenizer_.encode(piece.text);
    if (piece.visual >= 0 || !run.ids.empty()) runs.push_back(std::move(run));
  }
  return runs;
}

void check_frames(const VisualPlan& plan, const FrameGroup& frames, bool last) {
  const bool whole_units = frames.frames() % plan.frames_per_unit == 0;
  if (frames.frames() < 1 || (!last && !whole_units) || frames.width() != plan.frame_size.width ||
      frames.height() != plan.frame_size.height) {
    throw Error(ErrorKind::internal,
                fmt::format("{} frames of {}×{} do not fit a plan of {} a unit, {}×{}",
                            frames.frames(), frames.frames() > 0 ? frames.width() : 0,
                            frames.frames() > 0 ? frames.height() : 0, plan.frames_per_unit,
                            plan.frame_size.width, plan.frame_size.height));
  }
}

}  // namespace kinora
