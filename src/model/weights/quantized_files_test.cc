#include "model/weights/quantized_files.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/threads.h"
#include "model/weights/safetensors_writer.h"
#include "ops/packed_matrix.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

using nlohmann::json;

const std::string fixtures = std::string(KINORA_FIXTURES) + "/quantized";
const std::string layer = "model.layers.0.mlp.up_proj";

TEST(E4m3Test, IsTheFiniteKind) {
  EXPECT_EQ(e4m3_value(0x00), 0.0f);
  EXPECT_EQ(e4m3_value(0x01), 0x1p-9f);
  EXPECT_EQ(e4m3_value(0x07), 7 * 0x1p-9f);
  EXPECT_EQ(e4m3_value(0x08), 0x1p-6f);
  EXPECT_EQ(e4m3_value(0x38), 1.0f);
  EXPECT_EQ(e4m3_value(0xb9), -1.125f);
  EXPECT_EQ(e4m3_value(0x7e), 448.0f);
  EXPECT_TRUE(std::isnan(e4m3_value(0x7f)));
  EXPECT_TRUE(std::isnan(e4m3_value(0xff)));
  for (int i = 0; i < 0x7e; ++i) {  // the numbers rise with their bits
    EXPECT_LT(e4m3_value(static_cast<uint8_t>(i)), e4m3_value(static_cast<uint8_t>(i + 1)));
  }
}

class QuantizedFilesTest : public ::testing::Test {
 protected:
  TensorFiles open(const std::string& directory) const {
    return open_weights(context_, real_files(), directory,
                        ConfigFiles::read(real_files(), directory));
  }
  // Writes the directory that a test damages.
  TensorFiles write_and_open(const json& quantization, const NamedTensors& tensors) const {
    std::ofstream(directory_.file("config.json"))
        << json{{"model_type", "qwen3"}, {"quantization_config", quantization}}.dump();
    write_safetensors(real_files(), directory_.file("model.safetensors"), tensors);
    return open(directory_.path());
  }
  void refuse(const json& quantization, const NamedTensors& tensors, ErrorKind kind,
              const std::string& what) const {
    try {
      write_and_open(quantization, tensors);
      ADD_FAILURE() << "accepted, though " << what;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }

  static json gptq() { return {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 16}}; }
  // 32 inputs, 8 outputs, two groups.
  static NamedTensors gptq_tensors() {
    Tensor scales(DType::f32, {2, 8});
    for (int64_t i = 0; i < scales.elements(); ++i) scales.data<float>()[i] = 0.5f;
    return {{layer + ".qweight", Tensor::zeros(DType::i32, {4, 8})},
            {layer + ".qzeros", Tensor::zeros(DType::i32, {2, 1})},
            {layer + ".scales", scales},
            {"model.norm.weight", Tensor::zeros(DType::f32, {8})}};
  }
  static json compressed(const json& weights) {
    return {{"quant_method", "compressed-tensors"},
            {"format", "int-quantized"},
            {"config_groups", {{"group_0", {{"weights", weights}}}}}};
  }

  testing::TempDir directory_;
  ThreadPool pool_{2};
  Context context_{pool_};
};

TEST_F(QuantizedFilesTest, EveryPackingGivesTheReferencesNumbers) {
  int compared = 0;
  for (const std::string& name : real_files().list(fixtures)) {
    SCOPED_TRACE(name);
    const std::string directory = fixtures + "/" + name;
    const TensorFiles files = open(directory);
    const Tensor expected =
        SafetensorsFile::open(real_files(), directory + "/expected.safetensors").tensor("weight");
    EXPECT_EQ(files.names(), std::vector<std::string>{layer + ".weight"});
    const TensorEntry* entry = files.find(layer + ".weight");
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->shape, expected.shape());
    const Tensor actual = files.tensor(layer + ".weight");
    ASSERT_EQ(actual.shape(), expected.shape());
    ASSERT_EQ(actual.dtype(), expected.dtype());
    EXPECT_EQ(std::memcmp(actual.view().raw(), expected.view().raw(),
                          static_cast<size_t>(expected.bytes())),
              0);
    EXPECT_LT(files.bytes(), expected.bytes() + 1024);
    ++compared;
  }
  EXPECT_EQ(compared, 15);
}

TEST_F(QuantizedFilesTest, WhatStaysPackedGivesTheSameNumbers) {
  int compared = 0;
  for (const std::string& name : real_files().list(fixtures)) {
    SCOPED_TRACE(name);
    const std::string directory = fixtures + "/" + name;
    const TensorFiles files = open(directory);
    const std::shared_ptr<const PackedMatrix> packed = files.packed(layer + ".weight");
    EXPECT_EQ(packed != nullptr, files.has_packed(layer + ".weight"));
    if (packed == nullptr) continue;
    const Tensor expected =
        SafetensorsFile::open(real_files(), directory + "/expected.safetensors").tensor("weight");
    ASSERT_EQ((Shape{packed->rows(), packed->columns()}), expected.shape());
    EXPECT_TRUE(packed->finite());
    Tensor widened(DType::f32, expected.shape());
    packed->widen(0, packed->rows(), widened);
    for (int64_t i = 0; i < expected.elements(); ++i) {
      const float value = widened.data<float>()[i];
      if (expected.dtype() == DType::bf16) {
        ASSERT_EQ(bf16::from_float(value).to_float(), expected.data<bf16>()[i].to_float()) << i;
      } else if (expected.dtype() == DType::f16) {
        ASSERT_EQ(f16::from_float(value).to_float(), expected.data<f16>()[i].to_float()) << i;
      } else {
        ASSERT_EQ(value, expected.data<float>()[i]) << i;
      }
    }
    ++compared;
  }
  EXPECT_GE(compared, 8);  // groups of 16 are widened
}

TEST_F(QuantizedFilesTest, WhatIsNotPackedStaysAsItIs) {
  const TensorFiles files = write_and_open(gptq(), gptq_tensors());
  EXPECT_EQ(files.names(), (std::vector<std::string>{layer + ".weight", "model.norm.weight"}));
  EXPECT_EQ(files.tensor("model.norm.weight").dtype(), DType::f32);
  // All bits 0: zero points of 1 (stored less one), weights of 0.
  EXPECT_EQ(files.tensor(layer + ".weight").data<float>()[0], -0.5f);
}

TEST_F(QuantizedFilesTest, SaysHowWeightsAreStored) {
  const auto text = [](const std::string& name) {
    return quantization_text(ConfigFiles::read(real_files(), fixtures + "/" + name));
  };
  EXPECT_EQ(text("fp8"), "fp8 in blocks of 32×64");
  EXPECT_EQ(text("awq"), "awq, 4 bits in groups of 16");
  EXPECT_EQ(text("gptq_8_v2"), "gptq, 8 bits one scale a channel");
  EXPECT_EQ(text("pack_group"), "compressed-tensors, pack-quantized, 4 bits in groups of 16");
}

TEST_F(QuantizedFilesTest, UnknownSchemesAreRefusedByName) {
  const NamedTensors tensors = gptq_tensors();
  const auto unsupported = [&](const json& config, const std::string& what) {
    refuse(config, tensors, ErrorKind::unsupported, what);
  };
  unsupported({{"quant_method", "bitsandbytes"}}, "quant_method is 'bitsandbytes'");
  unsupported({{"quant_method", "awq"}, {"bits", 4}, {"version", "gemv"}}, "version is 'gemv'");
  unsupported({{"quant_method", "gptq"}, {"bits", 3}}, "bits is 3");
  unsupported({{"quant_method", "gptq"}, {"bits", 4}, {"checkpoint_format", "marlin"}}, "marlin");
  json mixed = gptq();
  mixed["dynamic"] = {{"model.*", {{"bits", 8}}}};
  unsupported(mixed, "dynamic");
  json nvfp4 = compressed({{"num_bits", 4}});
  nvfp4["format"] = "nvfp4-pack-quantized";
  unsupported(nvfp4, "format is 'nvfp4-pack-quantized'");
  json two = compressed({{"num_bits", 8}, {"strategy", "channel"}});
  two["config_groups"]["group_1"] = {{"weights", {{"num_bits", 4}, {"strategy", "channel"}}}};
  unsupported(two, "differ in num_bits");
  two["format"] = "mixed-precision";
  two["config_groups"]["group_0"]["format"] = "pack-quantized";
  two["config_groups"]["group_1"]["format"] = "marlin-24";
  unsupported(two, "format is 'marlin-24'");
  two["config_groups"]["group_1"]["format"] = "pack-quantized";
  unsupported(two, "differ in num_bits");
  two["config_groups"]["group_1"]["format"] = "int-quantized";
  unsupported(two, "num_bits is 4");
  json sparse = compressed({{"num_bits", 8}});
  sparse["sparsity_config"] = {{"format", "sparse-24-bitmask"}};
  unsupported(sparse, "sparsity_config");
}

TEST_F(QuantizedFilesTest, TensorsThatDoNotFitAreRefused) {
  const auto bad = [&](const std::string& part, const Tensor& tensor, const std::string& what) {
    NamedTensors tensors = gptq_tensors();
    std::erase_if(tensors, [&](const auto& one) { return one.first == layer + part; });
    if (tensor.defined()) tensors.emplace_back(layer + part, tensor);
    refuse(gptq(), tensors, ErrorKind::bad_input, what);
  };
  const auto scales = [](int64_t groups, int64_t outputs, float value) {
    Tensor made(DType::f32, {groups, outputs});
    for (int64_t i = 0; i < made.elements(); ++i) made.data<float>()[i] = value;
    return made;
  };
  bad(".scales", Tensor(), "has no scales");
  bad(".qzeros", Tensor(), "has no qzeros");
  bad(".scales", scales(2, 8, 0.0f), "a scale that is 0");
  bad(".scales", scales(2, 8, std::numeric_limits<float>::quiet_NaN()), "a scale that is nan");
  bad(".scales", scales(4, 8, 1.0f), "groups of 16");
  bad(".scales", scales(3, 8, 1.0f), "3 rows of scales for 32 inputs");
  bad(".scales", scales(2, 7, 1.0f), "for 8 outputs");
  bad(".scales", Tensor::zeros(DType::i32, {2, 8}), "scales in I32");
  bad(".qzeros", Tensor::zeros(DType::i32, {2, 2}), "zero points [2, 2]");
  bad(".qweight", Tensor::zeros(DType::f32, {4, 8}), "not I32");
  bad(".g_idx", Tensor::zeros(DType::i32, {31}), "31 entries in g_idx");
  Tensor beyond = Tensor::zeros(DType::i32, {32});
  beyond.data<int32_t>()[7] = 2;
  bad(".g_idx", beyond, "group 2 of 2");

  const NamedTensors plain = {{"model.norm.weight", Tensor::zeros(DType::f32, {8})}};
  refuse(gptq(), plain, ErrorKind::bad_input, "no tensor is packed so");
  json nothing = gptq();
  nothing["group_size"] = 0;
  refuse(nothing, plain, ErrorKind::bad_input, "group_size is 0");
  refuse({{"quant_method", "fp8"}, {"weight_block_size", {128}}}, plain, ErrorKind::bad_input,
         "weight_block_size must be two");
  refuse({{"quant_method", "compressed-tensors"}, {"format", "int-quantized"}}, plain,
         ErrorKind::bad_input, "names no group");
  const NamedTensors lonely = {{layer + ".weight", Tensor::zeros(DType::i8, {8, 32})}};
  refuse(compressed({{"num_bits", 8}, {"strategy", "channel"}}), lonely, ErrorKind::bad_input,
         "has no weight_scale");
  const NamedTensors wrong = {{layer + ".weight", Tensor::zeros(DType::i8, {8, 32})},
                              {layer + ".weight_scale", scales(7, 1, 1.0f)}};
  refuse(compressed({{"num_bits", 8}, {"strategy", "channel"}}), wrong, ErrorKind::bad_input,
         "scales [7, 1] for 8 outputs");
}

}  // namespace
}  // namespace kinora
