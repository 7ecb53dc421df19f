#include "model/families/qwen3_vl/qwen3_vl.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "model/families/qwen3_vl/chat.h"
#include "model/families/qwen3_vl/frames.h"
#include "model/families/qwen3_vl/positions.h"
#include "model/families/qwen3_vl/processor.h"
#include "model/families/qwen3_vl/tower.h"
#include "model/family_model.h"
#include "model/weights/quantized_files.h"
#include "model/weights/random_weights.h"

namespace kinora {
namespace {

// A rate that a person asks for is not cut short by the family's habit.
constexpr int64_t most_frames_of_a_wish = int64_t{1} << 20;

class Qwen3Vl final : public FamilyModel {
 public:
  Qwen3Vl(const Context& context, ModelParts parts, const LoadOptions& options,
          VideoPromptForm form, Qwen3Processor processor, const Qwen3VisionConfig& vision,
          Qwen3VisionWeights weights)
      : FamilyModel(context, std::move(parts), options),
        form_(form),
        processor_(std::move(processor)),
        merge_(vision.merge),
        tower_(
            vision,
            context.device.is_cpu() ? std::move(weights) : on_gpu(context, weights, activations()),
            activations()) {}

  VisualPlan plan_visual(const VisualSource& source, const VisualLimits& limits) const override {
    return processor_.plan(source, limits);
  }

  Tensor encode(const Context& context, const VisualPlan& plan, const FrameGroup& frames,
                bool last) const override {
    check_frames(plan, frames, last);
    const int64_t rows = plan.grid.height * merge_, columns = plan.grid.width * merge_;
    const int64_t span = plan.frames_per_unit;
    const auto patches = [&](int64_t first, int64_t count) {
      return processor_.patches(context, frames_of(frames.pixels, span, first, count),
                                {tower_.activations(), tower_.patch_columns()});
    };
    const int64_t units = (frames.pixels.size(0) + span - 1) / span;
    return tower_.encode(context, patches, units, rows, columns);
  }

  std::unique_ptr<PositionCounter> positions() const override { return unit_positions(); }

  std::vector<int64_t> choose_frames(int64_t total, double source_fps,
                                     const FrameWish& wish) const override {
    Qwen3FrameRule rule;
    rule.fps = wish.fps.value_or(rule.fps);
    rule.count = wish.count.value_or(0);
    if (wish.fps) rule.max_frames = most_frames_of_a_wish;
    return qwen3_frames(rule, total, source_fps);
  }
  double default_fps() const override { return Qwen3FrameRule{}.fps; }
  int64_t default_max_frames() const override { return Qwen3FrameRule{}.max_frames; }

 protected:
  void arrange(const Conversation& conversation, std::vector<ChatPiece>& pieces) const override {
    write_unit_times(conversation, form_, pieces);
  }

 private:
  VideoPromptForm form_;
  Qwen3Processor processor_;
  int64_t merge_;
  Qwen3VisionTower tower_;
};

std::unique_ptr<Model> make_model(const Context& context, const ModelDirectory& directory,
                                  ModelParts parts, const Qwen3VisionConfig& vision,
                                  Qwen3VisionWeights weights, const LoadOptions& options) {
  Qwen3Processor processor = Qwen3Processor::read(directory.files, directory.path);
  const QwenProcessor::Config& wanted = processor.config();
  if (wanted.patch != vision.patch || wanted.merge != vision.merge ||
      wanted.temporal_patch != vision.temporal_patch) {
    throw Error(ErrorKind::bad_input, directory.path +
                                          ": preprocessor_config.json and config.json disagree "
                                          "about the size of patches");
  }
  const VideoPromptForm form = options.video_prompt == VideoPromptForm::by_file
                                   ? video_prompt_form(directory.config)
                                   : options.video_prompt;
  return std::make_unique<Qwen3Vl>(context, std::move(parts), options, form, std::move(processor),
                                   vision, std::move(weights));
}

WeightCount random_count(const DecoderConfig& d, const Qwen3VisionConfig& v) {
  const int64_t merged = v.merge * v.merge * v.hidden;
  const int64_t parameters = d.layers * (2 * d.hidden * d.head_size * (d.heads + d.kv_heads) +
                                         3 * d.hidden * d.intermediate) +
                             (d.tied.value_or(false) ? 1 : 2) * d.vocabulary * d.hidden +
                             v.layers * (4 * v.hidden * v.hidden + 2 * v.hidden * v.intermediate) +
                             (1 + v.levels()) * merged * (merged + v.output);
  return {parameters, 2 * parameters, 2 * parameters};
}

class Qwen3VlFamily final : public Family {
 public:
  std::string_view model_type() const override { return "qwen3_vl"; }
  bool sees() const override { return true; }

  ModelConfig read(const ConfigFiles& config) const override {
    ModelConfig result = read_config(config, {.qk_norm = true,
                                              .head_size = 128,
                                              .rope_theta = 5e6,
                                              .mrope = true,
                                              .mrope_interleaved = true});
    result.image_token = read_token(config.top(), "image_token_id", "image_token_index");
    result.video_token = read_token(config.top(), "video_token_id", "video_token_index");
    result.deep_levels = read_qwen3_vision(config, result.decoder).levels();
    return result;
  }

  ChatTraits chat() const override { return qwen3_vl_chat; }

  std::unique_ptr<Model> load(const Context& context, const ModelDirectory& directory,
                              const LoadOptions& options) const override {
    ModelConfig config = read(directory.config);
    const Qwen3VisionConfig vision = read_qwen3_vision(directory.config, config.decoder);
    WeightsBinder binder(open_weights(context, directory.files, directory.path, directory.config),
                         qwen3_vision_prefixes());
    DecoderWeights decoder = take_decoder(binder, config.decoder);
    Qwen3VisionWeights tower = take_qwen3_vision(binder, vision);
    const WeightCount count = binder.finish(context, options.check_finite);
    return make_model(context, directory,
                      gather_parts(*this, directory, std::move(config), std::move(decoder), count),
                      vision, std::move(tower), options);
  }

  std::unique_ptr<Model> make_random(const Context& context, const ModelDirectory& directory,
                                     const std::string& name,
                                     const ConfigFiles& shape) const override {
    ModelConfig config = config_in_shape(*this, directory, shape);
    const Qwen3VisionConfig vision = read_qwen3_vision(shape, config.decoder);
    const WeightCount count = random_count(config.decoder, vision);
    DecoderWeights decoder = random_decoder(context, config.decoder, DType::bf16);
    ModelParts parts = gather_parts(*this, directory, std::move(config), std::move(decoder), count);
    parts.name = name;
    return make_model(context, directory, std::move(parts), vision,
                      random_qwen3_vision(context, vision, DType::bf16), {});
  }
};

}  // namespace

const Family& qwen3_vl_family() {
  static const Qwen3VlFamily family;
  return family;
}

}  // namespace kinora
