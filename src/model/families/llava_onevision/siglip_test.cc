// The vision tower, layer by layer, on the reference's own pixels.
#include "model/families/llava_onevision/siglip.h"

#include <gtest/gtest.h>

#include <utility>

#include "model/families/llava_onevision/processor.h"
#include "model/reference_case.h"

namespace kinora {
namespace {

using testing::CaseName;
using testing::ReferenceCase;
using testing::row_error;

constexpr double tolerance = 1e-4;

class SiglipTowerTest : public ::testing::TestWithParam<CaseName> {};

TEST_P(SiglipTowerTest, EveryLayerAgrees) {
  const ThreadPool pool(2);
  const Context context(pool);
  const ReferenceCase reference(GetParam());
  const std::string directory = testing::model_directory(GetParam().model);
  const LlavaProcessor processor = LlavaProcessor::read(real_files(), directory);
  const LlavaConfig config = read_llava(ConfigFiles::read(real_files(), directory));
  WeightsBinder binder(TensorFiles::open(real_files(), directory), llava_prefixes());
  LlavaWeights weights = take_llava(binder, config, testing::read_config(directory).decoder.hidden);
  // All layers, though the projector may read an earlier one.
  const SiglipTower tower(context, config.tower, std::move(weights.tower), config.tower.layers);
  const Tensor patches = processor.patches(context, reference.tensor("image.0.tiles"));
  int layers = 0;
  tower.encode(context, patches, [&](int layer, ConstTensorView hidden) {
    const Tensor expected = reference.tensor("vision.block." + std::to_string(layer));
    EXPECT_LE(row_error(hidden, expected), tolerance) << "layer " << layer;
    ++layers;
  });
  EXPECT_EQ(layers, config.tower.layers);
}

// Only these cases look inside the tower.
std::vector<CaseName> siglip_cases() {
  std::vector<CaseName> cases = testing::find_cases("llava");
  std::erase_if(cases, [](const CaseName& name) { return name.name != "image_odd"; });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, SiglipTowerTest, ::testing::ValuesIn(siglip_cases()),
                         testing::case_label);

}  // namespace
}  // namespace kinora
