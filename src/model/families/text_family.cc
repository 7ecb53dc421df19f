#include "model/families/text_family.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "model/families/families.h"
#include "model/family_model.h"
#include "model/sequential_positions.h"
#include "model/weights/quantized_files.h"
#include "model/weights/weights_binder.h"

namespace kinora {
namespace {

// The shared decoder and no vision tower.
class TextModel final : public FamilyModel {
 public:
  using FamilyModel::FamilyModel;

  VisualPlan plan_visual(const VisualSource&, const VisualLimits&) const override { refuse(); }
  Tensor encode(const Context&, const VisualPlan&, const FrameGroup&, bool) const override {
    refuse();
  }
  std::unique_ptr<PositionCounter> positions() const override { return sequential_positions(); }
  std::vector<int64_t> choose_frames(int64_t, double, const FrameWish&) const override {
    return {};
  }
  double default_fps() const override { return 0; }
  int64_t default_max_frames() const override { return 0; }

 private:
  [[noreturn]] void refuse() const {
    throw Error(ErrorKind::unsupported, info().name + " is a text model and cannot see; choose a " +
                                            seeing_families() + " directory");
  }
};

}  // namespace

std::unique_ptr<Model> TextFamily::load(const Context& context, const ModelDirectory& directory,
                                        const LoadOptions& options) const {
  ModelConfig config = read(directory.config);
  WeightsBinder binder(open_weights(context, directory.files, directory.path, directory.config));
  DecoderWeights decoder = take_decoder(binder, config.decoder);
  const WeightCount count = binder.finish(context, options.check_finite);
  return std::make_unique<TextModel>(
      context, gather_parts(*this, directory, std::move(config), std::move(decoder), count),
      options);
}

}  // namespace kinora
