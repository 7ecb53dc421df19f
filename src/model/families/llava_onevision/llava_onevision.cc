#include "model/families/llava_onevision/llava_onevision.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/families/llava_onevision/chat.h"
#include "model/families/llava_onevision/frames.h"
#include "model/families/llava_onevision/processor.h"
#include "model/families/llava_onevision/siglip.h"
#include "model/family_model.h"
#include "model/sequential_positions.h"
#include "model/weights/gpu_weights.h"
#include "model/weights/linear.h"
#include "model/weights/quantized_files.h"
#include "ops/activation.h"
#include "ops/elementwise.h"
#include "ops/gather.h"
#include "ops/pool.h"

namespace kinora {
namespace {

// Tiles or frames that run through the tower together, so that scratch stays small.
constexpr int64_t patches_at_once = 4096;
constexpr int64_t gpu_patches_at_once = 32768;  // a GPU needs more work at once

// Copies rows of tokens and newlines one after another, on any device.
class TokenWriter {
 public:
  TokenWriter(Tensor& out, const Tensor& newline)
      : device_(out.device()),
        target_(out.data<float>()),
        end_(target_ + out.elements()),
        newline_(newline) {}

  void tokens(const float* source, int64_t elements) {
    if (elements > end_ - target_) throw Error(ErrorKind::internal, "more tokens than planned");
    copy_bytes(target_, device_, source, device_, static_cast<size_t>(elements) * sizeof(float));
    target_ += elements;
  }
  void newline() { tokens(newline_.data<float>(), newline_.elements()); }
  void finish() const {
    if (target_ != end_) throw Error(ErrorKind::internal, "fewer tokens than planned");
  }

 private:
  Device device_;
  float* target_;
  float* end_;
  const Tensor& newline_;
};

class LlavaOnevision final : public FamilyModel {
 public:
  LlavaOnevision(const Context& context, ModelParts parts, const LoadOptions& options,
                 LlavaProcessor processor, const LlavaConfig& config, LlavaWeights weights)
      : FamilyModel(context, std::move(parts), options),
        processor_(std::move(processor)),
        tower_(context, config.tower,
               context.device.is_cpu() ? std::move(weights.tower)
                                       : on_gpu(context, weights.tower, activations()),
               config.feature_layers, activations()),
        projector_in_(std::move(weights.projector_in)),
        projector_out_(std::move(weights.projector_out)),
        newline_(DType::f32, weights.newline.shape(), context.device) {
    convert(context, weights.newline.to(context.device), newline_);
    if (context.device.is_cpu()) return;
    projector_in_ = on_gpu(context, projector_in_, activations(), activations());
    projector_out_ = on_gpu(context, projector_out_, activations(), DType::f32);
  }

  VisualPlan plan_visual(const VisualSource& source, const VisualLimits&) const override {
    return processor_.plan(source);
  }

  Tensor encode(const Context& context, const VisualPlan& plan, const FrameGroup& frames,
                bool last) const override {
    check_frames(plan, frames, last);
    if (plan.source.modality == Modality::video) {
      return encode_video(context, plan, frames.pixels, last);
    }
    if (frames.frames() != 1) throw Error(ErrorKind::internal, "a picture is one frame");
    return encode_picture(context, plan, frames.pixels.view()[0]);
  }

  std::unique_ptr<PositionCounter> positions() const override { return sequential_positions(); }

  // LLaVA-Video looks once a second, LLaVA-OneVision at a number of frames.
  std::vector<int64_t> choose_frames(int64_t total, double source_fps,
                                     const FrameWish& wish) const override {
    if (wish.fps) return {};
    if (!wish.count && looks_by_time()) {
      return llava_video_frames(total, source_fps, default_max_frames());
    }
    return llava_uniform_frames(total, wish.count.value_or(default_max_frames()));
  }
  double default_fps() const override { return looks_by_time() ? 1.0 : 0.0; }
  int64_t default_max_frames() const override { return looks_by_time() ? 64 : 32; }

 private:
  bool looks_by_time() const { return processor_.config().newline == VideoNewline::grid; }
  int64_t hidden() const { return newline_.elements(); }

  // Tiles or frames u8 [n, side, side, 3] → f32 [n, grid, grid, hidden].
  Tensor features(const Context& context, ConstTensorView pictures) const {
    const int64_t grid = processor_.config().grid();
    const Tensor patches =
        processor_.patches(context, pictures, {tower_.activations(), tower_.patch_columns()});
    Tensor seen = tower_.encode(context, patches);
    if (activations() != DType::f32) {
      Tensor narrow(activations(), seen.shape(), context.device);
      convert(context, seen, narrow);
      seen = std::move(narrow);
    }
    Tensor middle(activations(), Shape{seen.size(0), hidden()}, context.device);
    apply_linear(context, seen, projector_in_, middle);
    gelu_erf(context, middle, middle);
    Tensor result(DType::f32, Shape{pictures.size(0), grid, grid, hidden()}, context.device);
    apply_linear(context, middle, projector_out_,
                 result.view().reshaped(Shape{seen.size(0), hidden()}));
    return result;
  }

  int64_t pictures_at_once(const Context& context) const {
    const int64_t grid = processor_.config().grid();
    const int64_t most = context.device.is_cpu() ? patches_at_once : gpu_patches_at_once;
    return std::max<int64_t>(1, most / (grid * grid));
  }

  Tensor pool(const Context& context, const Tensor& frames) const {
    const LlavaProcessor::Config& config = processor_.config();
    Tensor result(DType::f32, Shape{frames.size(0), config.pooled(), config.pooled(), hidden()},
                  context.device);
    switch (config.pooling) {
      case VideoPooling::bilinear:
        bilinear_pool(context, frames, result);
        break;
      case VideoPooling::average:
        average_pool(context, frames, config.pool_stride, result);
        break;
      case VideoPooling::max:
        max_pool(context, frames, config.pool_stride, result);
        break;
    }
    return result;
  }

  Tensor encode_video(const Context& context, const VisualPlan& plan, const Tensor& frames,
                      bool last) const {
    const VideoNewline place = processor_.config().newline;
    const int64_t count = frames.size(0);
    const int64_t tokens = count * plan.tokens_per_unit + (last ? plan.trailing_tokens : 0);
    Tensor result(DType::f32, Shape{tokens, hidden()}, context.device);
    TokenWriter writer(result, newline_);
    for (int64_t begin = 0; begin < count; begin += pictures_at_once(context)) {
      const int64_t some = std::min(pictures_at_once(context), count - begin);
      const Tensor pooled = pool(context, features(context, frames.view().rows(begin, some)));
      const int64_t row = pooled.size(2) * hidden();
      const float* source = pooled.data<float>();
      for (int64_t frame = 0; frame < some; ++frame) {
        for (int64_t y = 0; y < pooled.size(1); ++y, source += row) {
          writer.tokens(source, row);
          if (place == VideoNewline::grid) writer.newline();
        }
        if (place == VideoNewline::frame) writer.newline();
      }
    }
    if (last && place == VideoNewline::one_token) writer.newline();
    writer.finish();
    return result;
  }

  Tensor encode_picture(const Context& context, const VisualPlan& plan,
                        ConstTensorView picture) const {
    const Tensor tiles = processor_.tiles(Context(*context.threads), plan, picture);
    const int64_t grid = processor_.config().grid();
    Tensor all(DType::f32, Shape{tiles.size(0), grid, grid, hidden()}, context.device);
    for (int64_t begin = 0; begin < tiles.size(0); begin += pictures_at_once(context)) {
      const int64_t some = std::min(pictures_at_once(context), tiles.size(0) - begin);
      const Tensor part = features(context, tiles.view().rows(begin, some));
      copy_bytes(all.view().row<float>(begin), context.device, part.data<float>(), context.device,
                 static_cast<size_t>(part.bytes()));
    }

    Tensor result(DType::f32, Shape{plan.tokens_per_unit, hidden()}, context.device);
    TokenWriter writer(result, newline_);
    writer.tokens(all.data<float>(), grid * grid * hidden());
    if (tiles.size(0) == 1) {
      writer.newline();
    } else {
      const Tensor cells = joined_tiles(context, processor_.layout(plan.source.size), all);
      const int64_t row = cells.size(1) * hidden();
      for (int64_t y = 0; y < cells.size(0); ++y) {
        writer.tokens(cells.data<float>() + y * row, row);
        writer.newline();
      }
    }
    writer.finish();
    return result;
  }

  // The tiles after the first, put together: padding cut off, shrunk where there are too many
  // cells. f32 [rows, columns, hidden].
  Tensor joined_tiles(const Context& context, const PictureLayout& layout,
                      const Tensor& all) const {
    const int64_t grid = processor_.config().grid();
    Tensor kept(DType::f32, Shape{layout.kept.height, layout.kept.width, hidden()}, context.device);
    std::vector<int32_t> cells;
    for (int64_t y = 0; y < layout.kept.height; ++y) {
      for (int64_t x = 0; x < layout.kept.width; ++x) {
        const int64_t row = layout.first.height + y;
        const int64_t column = layout.first.width + x;
        const int64_t tile = 1 + row / grid * layout.tiles.width + column / grid;
        const int64_t cell = (tile * grid + row % grid) * grid + column % grid;
        cells.push_back(static_cast<int32_t>(cell));
      }
    }
    const auto as_rows = [&](auto view) {
      return view.reshaped(Shape{view.elements() / hidden(), hidden()});
    };
    gather_rows(context, as_rows(all.view()), cells, as_rows(kept.view()));
    if (layout.shrunk == layout.kept) return kept;
    Tensor shrunk(DType::f32, Shape{layout.shrunk.height, layout.shrunk.width, hidden()},
                  context.device);
    bilinear_pool(context, kept, shrunk);
    return shrunk;
  }

  LlavaProcessor processor_;
  SiglipTower tower_;
  LinearWeights projector_in_;
  LinearWeights projector_out_;
  Tensor newline_;  // f32 [hidden]
};

class LlavaOnevisionFamily final : public Family {
 public:
  std::string_view model_type() const override { return "llava_onevision"; }
  bool sees() const override { return true; }

  ModelConfig read(const ConfigFiles& config) const override {
    ModelConfig result = read_config(config, llava_decoder(config));
    result.image_token = read_token(config.top(), "image_token_index", "image_token_id");
    result.video_token = read_token(config.top(), "video_token_index", "video_token_id");
    return result;
  }

  ChatTraits chat() const override { return llava_onevision_chat; }

  std::unique_ptr<Model> load(const Context& context, const ModelDirectory& directory,
                              const LoadOptions& options) const override {
    ModelConfig config = read(directory.config);
    const LlavaConfig llava = read_llava(directory.config);
    WeightsBinder binder(open_weights(context, directory.files, directory.path, directory.config),
                         llava_prefixes());
    DecoderWeights decoder = take_decoder(binder, config.decoder);
    LlavaWeights weights = take_llava(binder, llava, config.decoder.hidden);
    const WeightCount count = binder.finish(context, options.check_finite);
    ModelParts parts = gather_parts(*this, directory, std::move(config), std::move(decoder), count);
    LlavaProcessor processor = LlavaProcessor::read(directory.files, directory.path);
    return std::make_unique<LlavaOnevision>(context, std::move(parts), options,
                                            std::move(processor), llava, std::move(weights));
  }
};

}  // namespace

const Family& llava_onevision_family() {
  static const LlavaOnevisionFamily family;
  return family;
}

}  // namespace kinora
