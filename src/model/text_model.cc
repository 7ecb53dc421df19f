// Llama 3.x, Qwen2.5 and Qwen3: the shared decoder and no eyes.
#include <utility>

#include "base/error.h"
#include "model/family_model.h"
#include "model/sequential_positions.h"

namespace kinora {
namespace {

class TextModel final : public FamilyModel {
 public:
  using FamilyModel::FamilyModel;

  VisualPlan plan_visual(const VisualSource&, const VisualLimits&) const override { blind(); }
  Tensor encode(const Context&, const VisualPlan&, const FrameGroup&, bool) const override {
    blind();
  }
  std::unique_ptr<PositionCounter> positions() const override { return sequential_positions(); }
  double default_fps() const override { return 0; }
  int64_t default_max_frames() const override { return 0; }

 private:
  [[noreturn]] void blind() const {
    throw Error(ErrorKind::unsupported,
                info().name +
                    " is a text model and cannot see; choose a qwen2_5_vl or "
                    "llava_onevision directory");
  }
};

}  // namespace

std::unique_ptr<Model> make_text_model(const Context& context, LoadedFiles loaded,
                                       const LoadOptions& options) {
  return std::make_unique<TextModel>(context, std::move(loaded), options);
}

}  // namespace kinora
