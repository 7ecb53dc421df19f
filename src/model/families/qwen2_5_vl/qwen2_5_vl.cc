#include "model/families/qwen2_5_vl/qwen2_5_vl.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "model/families/qwen2_5_vl/chat.h"
#include "model/families/qwen2_5_vl/frames.h"
#include "model/families/qwen2_5_vl/positions.h"
#include "model/families/qwen2_5_vl/processor.h"
#include "model/families/qwen2_5_vl/tower.h"
#include "model/family_model.h"
#include "model/weights/quantized_files.h"
#include "model/weights/random_weights.h"

namespace kinora {
namespace {

// A rate that a person asks for is not cut short by the family's habit.
constexpr int64_t most_frames_of_a_wish = int64_t{1} << 20;

class Qwen25Vl final : public FamilyModel {
 public:
  Qwen25Vl(const Context& context, ModelParts parts, const LoadOptions& options,
           QwenProcessor processor, const QwenVisionConfig& vision, QwenVisionWeights weights)
      : FamilyModel(context, std::move(parts), options),
        processor_(std::move(processor)),
        merge_(vision.merge),
        tokens_per_second_(vision.tokens_per_second),
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

  std::unique_ptr<PositionCounter> positions() const override {
    return multimodal_positions(tokens_per_second_);
  }

  std::vector<int64_t> choose_frames(int64_t total, double source_fps,
                                     const FrameWish& wish) const override {
    QwenFrameRule rule;
    rule.fps = wish.fps.value_or(default_fps());
    rule.count = wish.count.value_or(0);
    rule.max_frames = wish.fps ? most_frames_of_a_wish : default_max_frames();
    std::vector<int64_t> frames = qwen_frames(rule, wish.first, total, source_fps);
    for (int64_t& frame : frames) frame -= wish.first;
    return frames;
  }
  double default_fps() const override { return QwenFrameRule{}.fps; }
  int64_t default_max_frames() const override { return QwenFrameRule{}.max_frames; }

 private:
  QwenProcessor processor_;
  int64_t merge_;
  double tokens_per_second_;
  QwenVisionTower tower_;
};

std::unique_ptr<Model> make_model(const Context& context, const ModelDirectory& directory,
                                  ModelParts parts, const QwenVisionConfig& vision,
                                  QwenVisionWeights weights, const LoadOptions& options) {
  QwenProcessor processor = QwenProcessor::read(directory.files, directory.path);
  const QwenProcessor::Config& wanted = processor.config();
  if (wanted.patch != vision.patch || wanted.merge != vision.merge ||
      wanted.temporal_patch != vision.temporal_patch) {
    throw Error(ErrorKind::bad_input, directory.path +
                                          ": preprocessor_config.json and config.json disagree "
                                          "about the size of patches");
  }
  return std::make_unique<Qwen25Vl>(context, std::move(parts), options, std::move(processor),
                                    vision, std::move(weights));
}

WeightCount random_count(const DecoderConfig& d, const QwenVisionConfig& v) {
  const int64_t parameters = d.layers * (2 * d.hidden * d.head_size * (d.heads + d.kv_heads) +
                                         3 * d.hidden * d.intermediate) +
                             (d.tied.value_or(false) ? 1 : 2) * d.vocabulary * d.hidden +
                             v.layers * (4 * v.hidden * v.hidden + 3 * v.hidden * v.intermediate);
  return {parameters, 2 * parameters, 2 * parameters};
}

class Qwen25VlFamily final : public Family {
 public:
  std::string_view model_type() const override { return "qwen2_5_vl"; }
  bool sees() const override { return true; }

  ModelConfig read(const ConfigFiles& config) const override {
    ModelConfig result =
        read_config(config, {.qkv_bias = true,
                             .rope_theta = 1e6,
                             .mrope = true,
                             .defaults = DecoderDefaults{8192, 80, 64, 8, 29568, 152064}});
    result.image_token = read_token(config.top(), "image_token_id", "image_token_index");
    result.video_token = read_token(config.top(), "video_token_id", "video_token_index");
    return result;
  }

  ChatTraits chat() const override { return qwen2_5_vl_chat; }

  std::unique_ptr<Model> load(const Context& context, const ModelDirectory& directory,
                              const LoadOptions& options) const override {
    ModelConfig config = read(directory.config);
    const QwenVisionConfig vision = read_qwen_vision(directory.config, config.decoder.hidden);
    WeightsBinder binder(open_weights(context, directory.files, directory.path, directory.config),
                         qwen_vision_prefixes());
    DecoderWeights decoder = take_decoder(binder, config.decoder);
    QwenVisionWeights tower = take_qwen_vision(binder, vision);
    const WeightCount count = binder.finish(context, options.check_finite);
    return make_model(context, directory,
                      gather_parts(*this, directory, std::move(config), std::move(decoder), count),
                      vision, std::move(tower), options);
  }

  std::unique_ptr<Model> make_random(const Context& context, const ModelDirectory& directory,
                                     const std::string& name,
                                     const ConfigFiles& shape) const override {
    ModelConfig config = config_in_shape(*this, directory, shape);
    const QwenVisionConfig vision = read_qwen_vision(shape, config.decoder.hidden);
    const WeightCount count = random_count(config.decoder, vision);
    DecoderWeights decoder = random_decoder(context, config.decoder, DType::bf16);
    ModelParts parts = gather_parts(*this, directory, std::move(config), std::move(decoder), count);
    parts.name = name;
    return make_model(context, directory, std::move(parts), vision,
                      random_qwen_vision(context, vision, DType::bf16), {});
  }
};

}  // namespace

const Family& qwen2_5_vl_family() {
  static const Qwen25VlFamily family;
  return family;
}

}  // namespace kinora
