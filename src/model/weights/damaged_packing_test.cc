// What can be wrong with packed weights, for every scheme: each is refused in one line that names
// the weight.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/threads.h"
#include "model/weights/quantized_files.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

using nlohmann::json;

constexpr int64_t outputs = 16, inputs = 64, group = 32;
const std::string layer = "model.layers.0.mlp.up_proj";

// A tensor as a file has it, of any type.
struct Stored {
  std::string name;
  std::string type;
  std::vector<int64_t> shape;
  std::string bytes;
};

int64_t count_of(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

Stored zeros(const std::string& part, const std::string& type, std::vector<int64_t> shape) {
  const int64_t width = type == "I32" ? 4 : 1;
  const auto bytes = static_cast<size_t>(width * count_of(shape));
  return {layer + part, type, std::move(shape), std::string(bytes, '\0')};
}

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

struct PackingCase {
  std::string name;
  json config;                  // quantization_config
  std::vector<Stored> weights;  // all but the scales
  std::string scale_part;
  std::vector<int64_t> scales;         // their shape
  std::vector<int64_t> fewer_scales;   // as if there was one group
  std::vector<int64_t> uneven_scales;  // a number of groups that does not divide the inputs
  std::string said;                    // what the config asks for, in the message
};
void PrintTo(const PackingCase& one, std::ostream* out) { *out << one.name; }

json compressed(const std::string& format, const json& weights) {
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"config_groups", {{"group_0", {{"weights", weights}}}}}};
}

std::vector<PackingCase> all_cases() {
  const std::string groups = "groups of 32";
  const json four = {{"num_bits", 4}, {"strategy", "group"}, {"group_size", group}};
  const json eight = {{"num_bits", 8}, {"strategy", "group"}, {"group_size", group}};
  const Stored shape{layer + ".weight_shape", "I64", {2}, bytes_of<int64_t>({outputs, inputs})};
  const std::vector<int64_t> down{inputs / group, outputs}, across{outputs, inputs / group};
  return {
      {"fp8",
       {{"quant_method", "fp8"}, {"weight_block_size", {8, group}}},
       {zeros(".weight", "F8_E4M3", {outputs, inputs})},
       ".weight_scale_inv",
       {2, 2},
       {2, 1},
       {2, 3},
       "blocks of 8×32"},
      {"awq",
       {{"quant_method", "awq"}, {"bits", 4}, {"group_size", group}},
       {zeros(".qweight", "I32", {inputs, outputs / 8}),
        zeros(".qzeros", "I32", {inputs / group, outputs / 8})},
       ".scales",
       down,
       {1, outputs},
       {3, outputs},
       groups},
      {"gptq",
       {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", group}},
       {zeros(".qweight", "I32", {inputs / 8, outputs}),
        zeros(".qzeros", "I32", {inputs / group, outputs / 8})},
       ".scales",
       down,
       {1, outputs},
       {3, outputs},
       groups},
      {"pack_quantized",
       compressed("pack-quantized", four),
       {zeros(".weight_packed", "I32", {outputs, inputs / 8}), shape},
       ".weight_scale",
       across,
       {outputs, 1},
       {outputs, 3},
       groups},
      {"float_quantized",
       compressed("float-quantized", eight),
       {zeros(".weight", "F8_E4M3", {outputs, inputs})},
       ".weight_scale",
       across,
       {outputs, 1},
       {outputs, 3},
       groups},
      {"int_quantized",
       compressed("int-quantized", eight),
       {zeros(".weight", "I8", {outputs, inputs})},
       ".weight_scale",
       across,
       {outputs, 1},
       {outputs, 3},
       groups},
  };
}

class DamagedPacking : public ::testing::TestWithParam<PackingCase> {
 protected:
  static Stored scales(const std::vector<int64_t>& shape, float odd_one = 0.5f) {
    std::vector<float> values(static_cast<size_t>(count_of(shape)), 0.5f);
    values.back() = odd_one;
    return {layer + GetParam().scale_part, "F32", shape, bytes_of(values)};
  }
  static std::vector<Stored> whole() {
    std::vector<Stored> tensors = GetParam().weights;
    tensors.push_back(scales(GetParam().scales));
    return tensors;
  }

  TensorFiles write_and_open(const json& quantization, const std::vector<Stored>& tensors) const {
    json config{{"model_type", "qwen3"}};
    if (!quantization.is_null()) config["quantization_config"] = quantization;
    std::ofstream(directory_.file("config.json")) << config;
    nlohmann::ordered_json header = nlohmann::ordered_json::object();
    std::string data;
    for (const Stored& tensor : tensors) {
      header[tensor.name] = {{"dtype", tensor.type},
                             {"shape", tensor.shape},
                             {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
      data += tensor.bytes;
    }
    std::string text = header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    std::ofstream(directory_.file("model.safetensors"), std::ios::binary)
        << bytes_of<uint64_t>({text.size()}) << text << data;
    return open_weights(context_, real_files(), directory_.path(),
                        ConfigFiles::read(real_files(), directory_.path()));
  }

  // Every one of `whats` stands in the one line that is said.
  void refuse(const json& config, const std::vector<Stored>& tensors,
              const std::vector<std::string>& whats) const {
    try {
      write_and_open(config, tensors);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      const std::string said = error.what();
      EXPECT_EQ(error.kind(), ErrorKind::bad_input) << said;
      EXPECT_EQ(said.find('\n'), std::string::npos) << said;
      EXPECT_NE(said.find(layer), std::string::npos) << said;
      for (const std::string& what : whats) EXPECT_NE(said.find(what), std::string::npos) << said;
    }
  }
  void refuse_scales(const Stored& scales, const std::vector<std::string>& whats) const {
    std::vector<Stored> tensors = GetParam().weights;
    tensors.push_back(scales);
    refuse(GetParam().config, tensors, whats);
  }

  testing::TempDir directory_;
  ThreadPool pool_{1};
  Context context_{pool_};
};

TEST_P(DamagedPacking, NothingIsRefusedThatIsWhole) {
  const TensorFiles files = write_and_open(GetParam().config, whole());
  ASSERT_EQ(files.names(), std::vector<std::string>{layer + ".weight"});
  EXPECT_EQ(files.tensor(layer + ".weight").shape(), (Shape{outputs, inputs}));
  EXPECT_TRUE(files.has_packed(layer + ".weight"));
}

TEST_P(DamagedPacking, ScalesThatAreNoNumbersToMultiplyWith) {
  const std::string part = GetParam().scale_part.substr(1);
  constexpr float infinite = std::numeric_limits<float>::infinity();
  const std::vector<int64_t>& shape = GetParam().scales;
  refuse_scales(scales(shape, 0), {"a scale that is 0", part});
  refuse_scales(scales(shape, -0.0f), {"a scale that is -0", part});
  refuse_scales(scales(shape, std::numeric_limits<float>::quiet_NaN()),
                {"scale that is nan", part});
  refuse_scales(scales(shape, infinite), {"a scale that is inf", part});
  refuse_scales(scales(shape, -infinite), {"a scale that is -inf", part});
  // Infinite in 16 bits as well.
  const auto count = static_cast<size_t>(count_of(shape));
  Stored half{layer + GetParam().scale_part, "F16", shape,
              bytes_of(std::vector<uint16_t>(count, 0x7c00))};
  refuse_scales(half, {"a scale that is inf"});
  half = {layer + GetParam().scale_part, "BF16", shape,
          bytes_of(std::vector<uint16_t>(count, 0x7fc0))};
  refuse_scales(half, {"a scale that is nan"});
}

TEST_P(DamagedPacking, PartsThatAreMissing) {
  refuse(GetParam().config, GetParam().weights, {"has no " + GetParam().scale_part.substr(1)});
  // Beside a layer that has all of them, one without each.
  for (size_t left_out = 0; left_out < GetParam().weights.size(); ++left_out) {
    std::vector<Stored> tensors = whole();
    for (Stored& tensor : tensors) tensor.name.replace(0, layer.size(), "model.layers.1.mlp.up");
    const std::vector<Stored> parts = whole();
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i != left_out) tensors.push_back(parts[i]);
    }
    SCOPED_TRACE(parts[left_out].name);
    const bool begins = left_out == 0;  // without it nobody knows of the layer
    refuse(GetParam().config, tensors,
           {begins ? "is a part of a packed weight"
                   : "has no " + parts[left_out].name.substr(layer.size() + 1)});
  }
}

// Act-order is a list of groups, without which the numbers would be others.
TEST_P(DamagedPacking, GroupsThatAreNotListed) {
  json config = GetParam().config;
  if (GetParam().name == "gptq") {
    config["desc_act"] = true;
    refuse(config, whole(), {"has no g_idx"});
  } else if (GetParam().name == "pack_quantized") {
    config["config_groups"]["group_0"]["weights"]["actorder"] = "group";
    refuse(config, whole(), {"has no weight_g_idx"});
    config["config_groups"]["group_0"]["weights"]["actorder"] = "weight";
    EXPECT_NO_THROW(write_and_open(config, whole()));
  }
}

TEST_P(DamagedPacking, ScalesForOtherGroups) {
  refuse_scales(scales(GetParam().fewer_scales), {GetParam().said});
  refuse_scales(scales(GetParam().uneven_scales), {GetParam().said});
  std::vector<int64_t> flat = GetParam().scales;
  flat.push_back(3);
  refuse_scales(scales(flat), {"has scales"});
  Stored whole_numbers = scales(GetParam().scales);
  whole_numbers.type = "I32";
  refuse_scales(whole_numbers, {"in I32"});
  // The same files, of which the config says something else.
  json config = GetParam().config;
  if (config.contains("weight_block_size")) {
    config["weight_block_size"] = {8, 2 * group};
  } else if (config.contains("group_size")) {
    config["group_size"] = group / 2;
  } else {
    config["config_groups"]["group_0"]["weights"]["group_size"] = group / 2;
  }
  refuse(config, whole(),
         {GetParam().said.starts_with("blocks") ? "blocks of 8×64" : "groups of 16"});
  if (config.contains("weight_block_size")) return;
  json& of_groups = config.contains("group_size")
                        ? config["group_size"]
                        : config["config_groups"]["group_0"]["weights"]["group_size"];
  of_groups = -1;
  refuse(config, whole(), {"one scale for all inputs"});
}

TEST_P(DamagedPacking, ShapesThatDoNotDivide) {
  const Stored weight = GetParam().weights[0];
  std::vector<Stored> tensors = whole();
  for (const size_t side : {0u, 1u}) {
    for (const int64_t more : {int64_t{-1}, int64_t{1}}) {
      // The blocks at the edge may be smaller than the others.
      if (GetParam().name == "fp8" && more < 0) continue;
      std::vector<int64_t> shape = weight.shape;
      shape[side] += more;
      SCOPED_TRACE(json(shape).dump());
      tensors[0] = zeros(weight.name.substr(layer.size()), weight.type, shape);
      refuse(GetParam().config, tensors, {"has"});
    }
  }
}

TEST_P(DamagedPacking, SchemesThatAreMixed) {
  for (const PackingCase& other : all_cases()) {
    if (other.name == GetParam().name) continue;
    SCOPED_TRACE(other.name);
    // A layer of the other scheme beside one of this.
    std::vector<Stored> tensors = whole();
    std::vector<Stored> strange = other.weights;
    strange.push_back(
        {layer + other.scale_part, "F32", other.scales,
         bytes_of(std::vector<float>(static_cast<size_t>(count_of(other.scales)), 0.5f))});
    for (Stored& tensor : tensors) tensor.name.replace(0, layer.size(), "model.layers.1.mlp.up");
    tensors.insert(tensors.end(), strange.begin(), strange.end());
    refuse(GetParam().config, tensors, {});
  }
}

TEST_P(DamagedPacking, AConfigThatSaysNothing) {
  refuse(json(), whole(), {"says nothing about packing"});
}

INSTANTIATE_TEST_SUITE_P(Schemes, DamagedPacking, ::testing::ValuesIn(all_cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kinora
