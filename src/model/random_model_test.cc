#include "model/random_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/config_case.h"
#include "model/reference_case.h"

namespace kinora {
namespace {

class RandomModelTest : public ::testing::Test {
 protected:
  std::unique_ptr<Model> make(const ConfigFiles& shape,
                              const std::string& model = "qwen2_5_vl_untied_old") {
    return random_model(context_, real_files(), testing::model_directory(model), "made up", shape);
  }
  void expect_error(ErrorKind kind, const ConfigFiles& shape, const std::string& model,
                    const std::string& what) {
    try {
      make(shape, model);
      ADD_FAILURE() << "made, though " << what;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind);
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  }

  const std::string qwen_ = "qwen2_5_vl_untied_old";
  ConfigFiles own_ = ConfigFiles::read(real_files(), testing::model_directory(qwen_));
  ThreadPool pool_{2};
  Context context_{pool_};
};

TEST_F(RandomModelTest, HasTheShapeAndTheTokenizer) {
  const auto model = make(own_);
  EXPECT_EQ(model->info().name, "made up");
  EXPECT_EQ(model->info().family, "qwen2_5_vl");
  EXPECT_EQ(model->info().weight_dtype, DType::bf16);
  EXPECT_EQ(model->info().rows.layers, 3);
  EXPECT_EQ(model->info().weight_bytes, 2 * model->info().parameters);
  EXPECT_TRUE(model->info().sees);
  EXPECT_EQ(model->info().stop_tokens, (std::vector<int32_t>{1002, 1000}));
  EXPECT_FALSE(model->tokenizer().encode("Hi").empty());
}

TEST_F(RandomModelTest, SeesWithDeepRowsWhereTheFamilyHasThem) {
  const std::string name = "qwen3_vl_untied";
  const auto model = make(ConfigFiles::read(real_files(), testing::model_directory(name)), name);
  EXPECT_EQ(model->info().deep_levels, 2);
  const VisualPlan plan = model->plan_visual({Modality::video, {64, 32}, 2, 2.0}, {});
  FrameGroup frames;
  frames.pixels = Tensor::zeros(DType::u8, {2, plan.frame_size.height, plan.frame_size.width, 3});
  const Tensor tokens = model->encode(context_, plan, frames, true);
  EXPECT_EQ(tokens.shape(), (Shape{plan.tokens(), 3 * model->decoder().hidden_size()}));
  for (int64_t i = 0; i < tokens.elements(); ++i)
    ASSERT_TRUE(std::isfinite(tokens.data<float>()[i]));
}

TEST_F(RandomModelTest, SaysWhatDoesNotFit) {
  const ConfigFiles llama(testing::llama_config(), "a llama");
  expect_error(ErrorKind::unsupported, llama, qwen_, "llama");
  expect_error(ErrorKind::usage, own_, "llama3", "another family");
  auto small =
      nlohmann::json::parse(real_files().read(testing::model_directory(qwen_) + "/config.json"));
  small["vocab_size"] = 100;
  if (small.contains("text_config")) small["text_config"]["vocab_size"] = 100;
  expect_error(ErrorKind::usage, ConfigFiles(small, "a small one"), qwen_, "more tokens");
}

}  // namespace
}  // namespace kinora
