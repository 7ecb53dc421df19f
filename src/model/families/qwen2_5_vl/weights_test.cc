#include "model/families/qwen2_5_vl/weights.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"

namespace kinora {
namespace {

TEST(QwenWeightsTest, EveryGenerationHasOneCommonForm) {
  for (const char* own : {"visual.blocks.0.norm1.weight", "model.visual.blocks.0.norm1.weight"}) {
    EXPECT_EQ(common_tensor_name(own, qwen_vision_prefixes()),
              "model.visual.blocks.0.norm1.weight");
  }
}

TEST(QwenWeightsTest, EveryPublishedNameIsKnown) {
  const std::string path =
      KINORA_SOURCE "/../shared/data/qwen2.5-vl-7b-instruct/model.safetensors.index.json";
  if (!real_files().is_file(path)) GTEST_SKIP() << "no published index here";
  const auto index = nlohmann::json::parse(real_files().read(path));
  int64_t count = 0;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    const std::string common = common_tensor_name(name, qwen_vision_prefixes());
    EXPECT_TRUE(common.starts_with("model.visual.") ||
                common.starts_with("model.language_model.") || common == "lm_head.weight")
        << name;
    ++count;
  }
  EXPECT_EQ(count, 729);
}

}  // namespace
}  // namespace kinora
