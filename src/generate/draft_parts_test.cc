// Which directories are drafts of which kind, and what is said of those that are not, that were
// made for another model or that are damaged.
#include "generate/draft_parts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include "base/error.h"
#include "generate/draft_files.h"
#include "model/reference_case.h"

namespace kinora {
namespace {

using testing::DraftFiles;
using testing::DraftForm;
using testing::model_directory;

using Spoil = std::function<void(DraftFiles&)>;
void nothing(DraftFiles&) {}

Spoil with(const std::string& key, const nlohmann::json& value) {
  return [=](DraftFiles& files) { files.config[key] = value; };
}
Spoil without(const std::string& name) {
  return [=](DraftFiles& files) {
    std::erase_if(files.tensors, [&](const auto& tensor) { return tensor.first == name; });
  };
}
Spoil also(const std::string& name, const Shape& shape) {
  return [=](DraftFiles& files) {
    files.tensors.emplace_back(name, Tensor::zeros(DType::f32, shape));
  };
}

class DraftDirectories : public ::testing::Test {
 protected:
  static std::string deep() { return std::string(KINORA_FIXTURES) + "/drafts/published/target"; }

  void use(const std::string& directory) {
    directory_ = directory;
    target_ = load_model(context_, real_files(), directory);
  }
  // A draft that was changed before and after it was written.
  DraftParts read(DraftForm form, const Spoil& spoil = nothing,
                  const Spoil& spoil_files = nothing) {
    Random random(7);
    files_ = std::make_unique<DraftFiles>(random, directory_, 40, form);
    spoil(*files_);
    files_->write();
    spoil_files(*files_);
    return read_draft(context_, real_files(), files_->directory(), *target_);
  }
  void refuses(const std::string& part, DraftForm form, const Spoil& spoil,
               const Spoil& spoil_files = nothing) {
    try {
      read(form, spoil, spoil_files);
      ADD_FAILURE() << "was read: " << part;
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(part), std::string::npos) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }

  const ThreadPool pool_{1};
  const Context context_{pool_};
  std::string directory_;
  std::unique_ptr<Model> target_;
  std::unique_ptr<DraftFiles> files_;
};

TEST_F(DraftDirectories, AreRecognisedByTheirConfig) {
  use(model_directory("qwen2_tied"));
  const DraftFeed own = read(DraftForm::sparrow).feed;
  EXPECT_EQ(own.kind, "sparrow");
  EXPECT_EQ(own.layers, std::vector<int>{0});
  EXPECT_TRUE(own.first_row);
  const DraftFeed eagle = read(DraftForm::eagle).feed;
  EXPECT_EQ(eagle.kind, "EAGLE");
  EXPECT_EQ(eagle.layers, std::vector<int>{1});
  EXPECT_TRUE(eagle.normed);
  EXPECT_FALSE(eagle.first_row);
  for (const char* type : {"qwen2_vl", "llava", "qwen2_5_vl"}) {
    const DraftFeed msd = read(DraftForm::eagle, with("model_type", type)).feed;
    EXPECT_EQ(msd.kind, "MSD, by text rows alone");
    EXPECT_TRUE(msd.normed);
  }
  // The config that MSD publishes for Qwen2-VL.
  const DraftParts msd = read(DraftForm::eagle, [](DraftFiles& files) {
    files.config["model_type"] = "qwen2_vl";
    files.config["architectures"] = {"Qwen2VLForConditionalGeneration"};
    files.config["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {2, 3, 3}}};
    files.config["vision_config"] = {{"depth", 32}, {"hidden_size", 48}};
    files.config["head_dim"] = nullptr;
    files.config["bias"] = false;
  });
  EXPECT_TRUE(msd.config.rope.sections.has_value());
  EXPECT_TRUE(msd.config.qkv_bias);
  EXPECT_FALSE(msd.fc.bias.defined());
  for (const char* name : {"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM",
                           "Eagle3Qwen2_5vlForCausalLM", "LlamaForCausalLM"}) {
    const DraftFeed feed =
        read(DraftForm::eagle3, with("architectures", nlohmann::json::array({name}))).feed;
    EXPECT_EQ(feed.kind, "EAGLE-3");
    EXPECT_TRUE(feed.fused);
    EXPECT_FALSE(feed.normed);
  }
}

TEST_F(DraftDirectories, BringWhatTheyHave) {
  use(model_directory("qwen2_tied"));
  const auto table = [&](const Shape& shape) {
    return read(DraftForm::eagle, also("embed_tokens.weight", shape)).embeddings;
  };
  EXPECT_TRUE(table({1024, 48}).defined());
  EXPECT_FALSE(table({1000, 48}).defined());  // the target's are used
  EXPECT_FALSE(read(DraftForm::eagle).embeddings.defined());
  EXPECT_TRUE(read(DraftForm::eagle, also("fc.bias", {48})).fc.bias.defined());
  // A head over all tokens needs no list of them, and may be the target's.
  EXPECT_EQ(read(DraftForm::eagle3).tokens.size(), 40u);
  const DraftParts all = read(DraftForm::eagle3, [](DraftFiles& files) {
    files.config["draft_vocab_size"] = 1024;
    files.tensor("lm_head.weight") = Tensor::zeros(DType::f32, {1024, 48});
    files.tensor("d2t") = Tensor::zeros(DType::i32, {1024});
  });
  EXPECT_TRUE(all.tokens.empty());
  EXPECT_TRUE(all.weights.head.weight.defined());
  const DraftParts shared = read(DraftForm::eagle3, [](DraftFiles& files) {
    files.config.erase("draft_vocab_size");
    without("lm_head.weight")(files);
    without("d2t")(files);
  });
  EXPECT_TRUE(shared.tokens.empty());
  EXPECT_FALSE(shared.weights.head.weight.defined());
}

// Lists count the states before a layer, or layers from 0 if they begin with 1.
TEST_F(DraftDirectories, NameTheLayersThatTheyRead) {
  use(deep());
  const auto layers = [&](const std::vector<int>& given) {
    return read(DraftForm::eagle3, with("eagle_aux_hidden_state_layer_ids", given)).feed.layers;
  };
  EXPECT_EQ(read(DraftForm::eagle3).feed.layers, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(layers({2, 3, 4}), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(layers({2, 5, 7}), (std::vector<int>{1, 4, 6}));
  EXPECT_EQ(layers({1, 3, 6}), (std::vector<int>{1, 3, 6}));
  const nlohmann::json inner = {{"eagle_aux_hidden_state_layer_ids", {1, 2, 5}}};
  EXPECT_EQ(read(DraftForm::eagle3, with("eagle_config", inner)).feed.layers,
            (std::vector<int>{1, 2, 5}));
  const auto wrong = [&](const std::string& part, const nlohmann::json& given) {
    refuses(part, DraftForm::eagle3, with("eagle_aux_hidden_state_layer_ids", given));
  };
  wrong("it reads layer 8, the model has 7", {2, 5, 8});
  wrong("it reads layer 8, the model has 7", {1, 5, 7});
  wrong("must be layers in rising order", {2, 2, 4});
  wrong("must be layers in rising order", {2, "x", 4});
  wrong("must be a list of layers", 3);
  wrong("must name layers", {0, 3, 4});
  wrong("must name layers", nlohmann::json::array());
  // As many layers as FC has columns for.
  wrong("misshapen fc.weight", {2, 5});
  use(model_directory("qwen2_tied"));
  refuses("it reads three layers of 7 or more, the model has 2", DraftForm::eagle3,
          [](DraftFiles& files) { files.config.erase("eagle_aux_hidden_state_layer_ids"); });
}

TEST_F(DraftDirectories, OfAnotherModelAreRefused) {
  use(model_directory("qwen2_tied"));
  for (const DraftForm form : {DraftForm::eagle, DraftForm::eagle3}) {
    refuses("made for another model: its hidden size is 96, the model's 48", form,
            with("hidden_size", 96));
    refuses("its vocabulary is 1000, the model's 1024", form, with("vocab_size", 1000));
    refuses("must be 1 in a draft", form, with("num_hidden_layers", 2));
    refuses("misshapen", form, with("intermediate_size", 99));
  }
  refuses("its hidden size is 64, the model's 48", DraftForm::eagle3,
          with("target_hidden_size", 64));
  // One that is narrower than its target needs embeddings and a head of its own.
  refuses("missing embed_tokens.weight [1024, 24]", DraftForm::eagle3, [](DraftFiles& files) {
    files.config["hidden_size"] = 24;
    files.config["target_hidden_size"] = 48;
  });
}

TEST_F(DraftDirectories, OfFormsThatKinoraDoesNotHaveAreRefused) {
  use(model_directory("qwen2_tied"));
  refuses("kinora has sparrow drafts, and EAGLE's and MSD's", DraftForm::eagle,
          with("model_type", "gpt2"));
  refuses("speculators", DraftForm::eagle3,
          with("transformer_layer_config", nlohmann::json::object()));
  refuses("use_aux_hidden_state", DraftForm::eagle3,
          with("eagle_config", {{"use_aux_hidden_state", false}}));
  refuses("norm_before_fc", DraftForm::eagle3, with("norm_before_fc", true));
  refuses("rope_type", DraftForm::eagle, with("rope_scaling", {{"rope_type", "yarn"}}));
  refuses("convert it to model.safetensors", DraftForm::eagle, nothing, [](DraftFiles& files) {
    std::filesystem::rename(files.file(), files.directory() + "/pytorch_model.bin");
  });
}

TEST_F(DraftDirectories, DamagedAreRefused) {
  use(model_directory("qwen2_tied"));
  for (const DraftForm form : {DraftForm::eagle, DraftForm::eagle3}) {
    const std::string layer = form == DraftForm::eagle ? "layers.0." : "midlayer.";
    refuses("model.safetensors is damaged", form, nothing, [](DraftFiles& files) {
      std::filesystem::resize_file(files.file(), std::filesystem::file_size(files.file()) / 2);
    });
    refuses("safetensors", form, nothing,
            [](DraftFiles& files) { std::filesystem::remove(files.file()); });
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY}) {
      refuses("tensor fc.weight holds a NaN or an infinity", form,
              [&](DraftFiles& files) { files.tensor("fc.weight").data<float>()[70] = bad; });
    }
    for (const char* name : {"self_attn.k_proj.weight", "post_attention_layernorm.weight"}) {
      refuses("missing " + layer + name, form, without(layer + name));
    }
    refuses("missing fc.weight", form, without("fc.weight"));
    refuses("extra something", form, also("something", {3}));
  }
  refuses("missing fc.bias", DraftForm::eagle, with("bias", true));
  // The first layer of EAGLE has no norm: what has one is something else.
  refuses("extra layers.0.input_layernorm.weight", DraftForm::eagle,
          also("layers.0.input_layernorm.weight", {48}));
  for (const char* name : {"midlayer.hidden_norm.weight", "midlayer.input_layernorm.weight",
                           "norm.weight", "lm_head.weight"}) {
    refuses(std::string("missing ") + name, DraftForm::eagle3, without(name));
  }
  refuses("tensor d2t is missing", DraftForm::eagle3, without("d2t"));
  const auto moved = [](int32_t by) {
    return [=](DraftFiles& files) { files.tensor("d2t").data<int32_t>()[3] = by; };
  };
  refuses("tensor d2t moves token 3 by 1021", DraftForm::eagle3, moved(1021));
  refuses("tensor d2t moves token 3 by -4", DraftForm::eagle3, moved(-4));
  EXPECT_EQ(read(DraftForm::eagle3, moved(1020)).tokens[3], 1023);
  EXPECT_EQ(read(DraftForm::eagle3, moved(-3)).tokens[3], 0);
  refuses("tensor d2t must be I64 or I32 [40]", DraftForm::eagle3,
          [](DraftFiles& files) { files.tensor("d2t") = Tensor::zeros(DType::f32, {40}); });
}

}  // namespace
}  // namespace kinora
