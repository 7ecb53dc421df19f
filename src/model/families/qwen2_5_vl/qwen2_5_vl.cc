// Qwen2.5-VL: the vision tower's tokens among text, with positions in time, height and width.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "model/families/qwen2_5_vl/processor.h"
#include "model/families/qwen2_5_vl/tower.h"
#include "model/family_model.h"
#include "model/weights/gpu_weights.h"

namespace kinora {
namespace {

// M-RoPE. Text counts one by one in all three. A visual item begins where the next text token would
// stand; its tokens add (time, row, column). What follows stands after the largest of all three.
class MultimodalPositions final : public PositionCounter {
 public:
  explicit MultimodalPositions(double tokens_per_second) : tokens_per_second_(tokens_per_second) {}

  void text(int64_t count, std::vector<TokenInfo>& out) override {
    within_ = false;
    check(next_ + count);
    for (int64_t i = 0; i < count; ++i) {
      const auto position = static_cast<int32_t>(next_++);
      out.push_back({{position, position, position}, no_time, Modality::text});
    }
  }

  void visual(const VisualPlan& plan, int64_t first, int64_t count, std::span<const double> times,
              bool last, std::vector<TokenInfo>& out) override {
    if (!std::exchange(within_, !last)) {
      begin_ = next_;
      first_unit_ = first;
    }
    const bool moves = plan.source.modality == Modality::video;
    for (int64_t i = 0; i < count; ++i) {
      // In f32 and cut off, as the reference does.
      const float elapsed = static_cast<float>(first + i - first_unit_) *
                            static_cast<float>(plan.seconds_per_unit) *
                            static_cast<float>(tokens_per_second_);
      if (!(elapsed < 0x1p31f)) check(std::numeric_limits<int64_t>::max());
      const int64_t time = moves ? static_cast<int64_t>(elapsed) : 0;
      const int64_t reach = std::max({time + 1, plan.grid.width, plan.grid.height});
      check(begin_ + reach);
      const bool timed = i < static_cast<int64_t>(times.size());
      TokenInfo token;
      token.time = timed ? times[static_cast<size_t>(i)] : no_time;
      token.modality = plan.source.modality;
      for (int64_t row = 0; row < plan.grid.height; ++row) {
        for (int64_t column = 0; column < plan.grid.width; ++column) {
          token.position = {static_cast<int32_t>(begin_ + time), static_cast<int32_t>(begin_ + row),
                            static_cast<int32_t>(begin_ + column)};
          out.push_back(token);
        }
      }
      next_ = std::max(next_, begin_ + reach);
    }
  }

  int64_t next() const override { return next_; }

  std::unique_ptr<PositionCounter> clone() const override {
    return std::make_unique<MultimodalPositions>(*this);
  }

 private:
  static constexpr double no_time = std::numeric_limits<double>::quiet_NaN();

  static void check(int64_t end) {
    if (end > std::numeric_limits<int32_t>::max()) {
      throw Error(ErrorKind::resource, "the conversation is longer than 2^31 positions");
    }
  }

  double tokens_per_second_;
  int64_t next_ = 0;
  bool within_ = false;     // a visual item that has not ended
  int64_t begin_ = 0;       // its position
  int64_t first_unit_ = 0;  // the number of its first unit
};

class Qwen25Vl final : public FamilyModel {
 public:
  Qwen25Vl(const Context& context, LoadedFiles loaded, const LoadOptions& options,
           QwenProcessor processor, QwenVisionWeights weights)
      : FamilyModel(context, std::move(loaded), options),
        processor_(std::move(processor)),
        tower_(
            *config().qwen_vision,
            context.device.is_cpu() ? std::move(weights) : on_gpu(context, weights, activations()),
            activations()) {}

  VisualPlan plan_visual(const VisualSource& source, const VisualLimits& limits) const override {
    return processor_.plan(source, limits);
  }

  Tensor encode(const Context& context, const VisualPlan& plan, const FrameGroup& frames,
                bool last) const override {
    check_frames(plan, frames, last);
    const int64_t merge = config().qwen_vision->merge;
    const Tensor patches =
        processor_.patches(context, frames.pixels, {tower_.activations(), tower_.patch_columns()});
    const int64_t unit_patches = plan.tokens_per_unit * merge * merge;
    return tower_.encode(context, patches, patches.size(0) / unit_patches, plan.grid.height * merge,
                         plan.grid.width * merge);
  }

  std::unique_ptr<PositionCounter> positions() const override {
    return std::make_unique<MultimodalPositions>(config().qwen_vision->tokens_per_second);
  }

  double default_fps() const override { return 2.0; }
  int64_t default_max_frames() const override { return 768; }

 private:
  QwenProcessor processor_;
  QwenVisionTower tower_;
};

}  // namespace

std::unique_ptr<Model> make_qwen2_5_vl(const Context& context, const FileSystem& files,
                                       LoadedFiles loaded, const LoadOptions& options) {
  QwenProcessor processor = QwenProcessor::read(files, loaded.directory);
  const QwenVisionConfig& vision = *loaded.config.qwen_vision;
  const QwenProcessor::Config& wanted = processor.config();
  if (wanted.patch != vision.patch || wanted.merge != vision.merge ||
      wanted.temporal_patch != vision.temporal_patch) {
    throw Error(ErrorKind::bad_input, loaded.directory +
                                          ": preprocessor_config.json and config.json disagree "
                                          "about the size of patches");
  }
  QwenVisionWeights weights = std::move(loaded.weights.qwen_vision);
  return std::make_unique<Qwen25Vl>(context, std::move(loaded), options, std::move(processor),
                                    std::move(weights));
}

}  // namespace kinora
