#include "model/families/llava_onevision/weights.h"

#include <gtest/gtest.h>

namespace kinora {
namespace {

TEST(LlavaWeightsTest, EveryGenerationHasOneCommonForm) {
  const std::pair<const char*, const char*> names[] = {
      {"vision_tower.vision_model.x", "model.vision_tower.vision_model.x"},
      {"model.vision_tower.vision_model.x", "model.vision_tower.vision_model.x"},
      {"multi_modal_projector.linear_1.bias", "model.multi_modal_projector.linear_1.bias"},
      {"image_newline", "model.image_newline"},
      {"model.image_newline", "model.image_newline"},
      {"language_model.model.norm.weight", "model.language_model.norm.weight"}};
  for (const auto& [own, common] : names) {
    EXPECT_EQ(common_tensor_name(own, llava_prefixes()), common);
  }
}

}  // namespace
}  // namespace kinora
