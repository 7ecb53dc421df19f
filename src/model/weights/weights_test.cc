#include "model/weights/weights.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/threads.h"
#include "model/weights/safetensors_writer.h"
#include "model/weights/weights_binder.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

TEST(TensorNamesTest, EveryGenerationHasOneCommonForm) {
  const std::pair<const char*, const char*> names[] = {
      {"model.layers.3.mlp.up_proj.weight", "model.language_model.layers.3.mlp.up_proj.weight"},
      {"model.embed_tokens.weight", "model.language_model.embed_tokens.weight"},
      {"model.language_model.norm.weight", "model.language_model.norm.weight"},
      {"language_model.model.norm.weight", "model.language_model.norm.weight"},
      {"language_model.lm_head.weight", "lm_head.weight"},
      {"lm_head.weight", "lm_head.weight"},
      {"something.else", "something.else"}};
  for (const auto& [own, common] : names) EXPECT_EQ(common_tensor_name(own), common);
}

TEST(TensorNamesTest, AFamilysOwnPrefixesComeFirst) {
  const TensorPrefix prefixes[] = {{"model.eye.", "model.eye."}, {"eye.", "model.eye."}};
  EXPECT_EQ(common_tensor_name("eye.x", prefixes), "model.eye.x");
  EXPECT_EQ(common_tensor_name("model.eye.x", prefixes), "model.eye.x");
  EXPECT_EQ(common_tensor_name("model.norm.weight", prefixes), "model.language_model.norm.weight");
  EXPECT_EQ(common_tensor_name("eye.x"), "eye.x");
}

// A decoder of one layer, whose tensors the tests damage.
class WeightsTest : public ::testing::Test {
 protected:
  WeightsTest() {
    config_.hidden = 8;
    config_.layers = 1;
    config_.heads = 2;
    config_.kv_heads = 1;
    config_.head_size = 4;
    config_.intermediate = 12;
    config_.vocabulary = 16;
    config_.max_position = 64;
    const auto add = [&](const std::string& name, const Shape& shape) {
      tensors_.emplace_back(name, Tensor::zeros(DType::f32, shape));
    };
    add("model.embed_tokens.weight", {16, 8});
    add("model.norm.weight", {8});
    add("model.layers.0.input_layernorm.weight", {8});
    add("model.layers.0.post_attention_layernorm.weight", {8});
    add("model.layers.0.self_attn.q_proj.weight", {8, 8});
    add("model.layers.0.self_attn.k_proj.weight", {4, 8});
    add("model.layers.0.self_attn.v_proj.weight", {4, 8});
    add("model.layers.0.self_attn.o_proj.weight", {8, 8});
    add("model.layers.0.mlp.gate_proj.weight", {12, 8});
    add("model.layers.0.mlp.up_proj.weight", {12, 8});
    add("model.layers.0.mlp.down_proj.weight", {8, 12});
  }

  DecoderWeights bind(bool check_finite = false) {
    write_safetensors(real_files(), directory_.file("model.safetensors"), tensors_);
    WeightsBinder binder(TensorFiles::open(real_files(), directory_.path()));
    DecoderWeights weights = take_decoder(binder, config_);
    count_ = binder.finish(context_, check_finite);
    return weights;
  }
  std::string error_of(bool check_finite = false) {
    try {
      bind(check_finite);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return error.what();
    }
    ADD_FAILURE() << "accepted";
    return "";
  }

  testing::TempDir directory_;
  DecoderConfig config_;
  NamedTensors tensors_;
  WeightCount count_;
  ThreadPool pool_{2};
  Context context_{pool_};
};

TEST_F(WeightsTest, BindsAndCounts) {
  const DecoderWeights weights = bind(true);
  int64_t parameters = 0;
  for (const auto& [name, tensor] : tensors_) parameters += tensor.elements();
  EXPECT_EQ(count_.parameters, parameters);
  EXPECT_EQ(count_.bytes, 4 * parameters);
  // No head in the files, and a config that does not say: the embeddings serve as head.
  EXPECT_EQ(weights.head.weight.view().raw(), weights.embeddings.view().raw());
}

TEST_F(WeightsTest, AnUntiedHeadIsItsOwn) {
  tensors_.emplace_back("lm_head.weight", Tensor::zeros(DType::f32, {16, 8}));
  const DecoderWeights weights = bind();
  EXPECT_NE(weights.head.weight.view().raw(), weights.embeddings.view().raw());
}

TEST_F(WeightsTest, MixedTypesAreFine) {
  tensors_[0].second = Tensor::zeros(DType::bf16, {16, 8});
  tensors_[1].second = Tensor::zeros(DType::f16, {8});
  EXPECT_EQ(bind(true).embeddings.dtype(), DType::bf16);
}

TEST_F(WeightsTest, ListsEverythingThatIsWrongAtOnce) {
  tensors_[0].second = Tensor::zeros(DType::f32, {16, 9});
  tensors_[1].second = Tensor::zeros(DType::i32, {8});
  tensors_.erase(tensors_.begin() + 4);
  tensors_.emplace_back("model.layers.1.mlp.up_proj.weight", Tensor::zeros(DType::f32, {12, 8}));
  tensors_.emplace_back("strange\n", Tensor::zeros(DType::f32, {1}));
  tensors_.emplace_back("model.rotary_emb.inv_freq", Tensor::zeros(DType::f32, {2}));  // ignored
  const std::string error = error_of();
  for (const char* part :
       {"1 missing, 2 misshapen, 2 extra", "missing model.layers.0.self_attn.q_proj.weight [8, 8]",
        "misshapen model.embed_tokens.weight F32 [16, 9] (expected [16, 8]",
        "misshapen model.norm.weight I32", "extra model.layers.1.mlp.up_proj.weight",
        "extra strange?"}) {
    EXPECT_NE(error.find(part), std::string::npos) << part << " is not in: " << error;
  }
  EXPECT_EQ(error.find("inv_freq"), std::string::npos);
}

TEST_F(WeightsTest, ALongListIsCut) {
  for (int i = 0; i < 30; ++i) {
    tensors_.emplace_back("extra." + std::to_string(i), Tensor::zeros(DType::f32, {1}));
  }
  const std::string error = error_of();
  EXPECT_NE(error.find("30 extra"), std::string::npos) << error;
  EXPECT_NE(error.find("and 10 more"), std::string::npos) << error;
}

TEST_F(WeightsTest, TwoGenerationsOfOneTensorAreRefused) {
  tensors_.emplace_back("model.language_model.norm.weight", Tensor::zeros(DType::f32, {8}));
  EXPECT_NE(error_of().find("twice"), std::string::npos);
}

TEST_F(WeightsTest, LooksForNumbersThatAreNone) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      Tensor tensor = Tensor::zeros(dtype, {8, 12});
      const int64_t at = 77;
      if (dtype == DType::f32) tensor.data<float>()[at] = bad;
      if (dtype == DType::bf16) tensor.data<bf16>()[at] = bf16::from_float(bad);
      if (dtype == DType::f16) tensor.data<f16>()[at] = f16::from_float(bad);
      tensors_.back().second = tensor;
      EXPECT_NO_THROW(bind(false));
      EXPECT_NE(error_of(true).find("model.layers.0.mlp.down_proj.weight holds a NaN"),
                std::string::npos);
    }
  }
}

}  // namespace
}  // namespace kinora
