#include "model/weights/packing_scheme.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "model/config.h"

namespace kinora {
namespace {

using Json = nlohmann::json;

std::array<int64_t, 2> read_block(const ConfigSection& config, const char* key) {
  const Json* value = config.find(key);
  if (value == nullptr) return {0, 0};
  std::array<int64_t, 2> block{};
  bool good = value->is_array() && value->size() == 2;
  for (size_t i = 0; good && i < 2; ++i) {
    good = (*value)[i].is_number_unsigned() && (*value)[i].get<uint64_t>() <= (1 << 20) &&
           (*value)[i].get<uint64_t>() > 0;
    if (good) block[i] = (*value)[i].get<int64_t>();
  }
  if (!good) config.wrong(key, "must be two positive numbers");
  return block;
}

std::string group_text(int64_t group) {
  return group > 0 ? fmt::format("in groups of {}", group) : "one scale a channel";
}

// −1 means that a whole channel is one group.
int64_t read_group(const ConfigSection& config, int64_t otherwise) {
  const int64_t group = config.integer("group_size", -1, 1 << 20, otherwise);
  if (group == 0) config.wrong("group_size", "is 0; it must be positive, or −1 for whole channels");
  return std::max<int64_t>(0, group);
}

int read_bits(const ConfigSection& config, const char* key, std::initializer_list<int> known) {
  const auto bits = static_cast<int>(config.integer(key, 1, 64));
  if (std::find(known.begin(), known.end(), bits) == known.end()) {
    config.unsupported(key, fmt::format("is {}; kinora reads {} bits here", bits,
                                        known.size() > 1      ? "4 and 8"
                                        : *known.begin() == 8 ? "8"
                                                              : "4"));
  }
  return bits;
}

void read_fp8(const ConfigSection& config, PackingScheme& scheme) {
  expect_text(config, "fmt", "e4m3");
  scheme.kind = PackingScheme::Kind::fp8;
  scheme.block = read_block(config, "weight_block_size");
  if (scheme.block[0] == 0) scheme.block = {128, 128};
  scheme.text = fmt::format("fp8 in blocks of {}×{}", scheme.block[0], scheme.block[1]);
}

void read_awq(const ConfigSection& config, PackingScheme& scheme) {
  const std::string version = config.text("version", "gemm");
  if (version != "gemm" && version != "GEMM") {
    config.unsupported("version", fmt::format("is '{}'; kinora reads gemm", version));
  }
  scheme.kind = PackingScheme::Kind::awq;
  scheme.bits = read_bits(config, config.has("bits") ? "bits" : "w_bit", {4});
  scheme.group = read_group(config, 128);
  scheme.text = fmt::format("awq, 4 bits {}", group_text(scheme.group));
}

void read_gptq(const ConfigSection& config, PackingScheme& scheme) {
  scheme.kind = PackingScheme::Kind::gptq;
  scheme.bits = read_bits(config, "bits", {4, 8});
  scheme.group = read_group(config, 128);
  const std::string format = config.text("checkpoint_format", "gptq");
  if (format != "gptq" && format != "gptq_v2") {
    config.unsupported("checkpoint_format",
                       fmt::format("is '{}'; kinora reads gptq and gptq_v2", format));
  }
  scheme.zero_offset = format == "gptq" ? 1 : 0;
  scheme.groups_listed = config.flag("desc_act", false) && scheme.group > 0;
  // Rules that leave modules alone show in the files; others would change the packing.
  if (const Json* rules = config.find("dynamic"); rules != nullptr && rules->is_object()) {
    for (const auto& [rule, values] : rules->items()) {
      if (!rule.starts_with("-:")) {
        config.unsupported("dynamic", "packs some modules in another way");
      }
    }
  }
  scheme.text = fmt::format("gptq, {} bits {}", scheme.bits, group_text(scheme.group));
}

void expect_known_format(const ConfigSection& config, const std::string& format) {
  constexpr std::array known = {"pack-quantized", "float-quantized", "int-quantized",
                                "naive-quantized"};
  if (std::find(known.begin(), known.end(), format) == known.end()) {
    config.unsupported("format", fmt::format("is '{}'; kinora reads pack-quantized, "
                                             "float-quantized and int-quantized",
                                             format));
  }
}

// Of `actorder`: with "weight" groups are ordered before packing, and nothing is listed.
bool lists_groups(const Json* order) {
  return order != nullptr && (*order == "group" || *order == "dynamic" || *order == true);
}

void read_compressed(const ConfigSection& config, PackingScheme& scheme) {
  const std::string format = config.text("format", "");
  const bool mixed = format == "mixed-precision";  // every group has a format of its own
  if (!mixed) expect_known_format(config, format);
  if (config.object("sparsity_config").text("format", "dense") != "dense") {
    config.unsupported("sparsity_config", "compresses weights that are partly zero");
  }
  const Json* groups = config.find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->empty()) {
    config.wrong("config_groups", "names no group");
  }
  scheme.kind = PackingScheme::Kind::compressed;
  scheme.format = format;
  const ConfigSection all = config.object("config_groups");
  Json first;  // of the groups whose packing the config alone tells
  std::string others;
  for (const auto& [name, group] : groups->items()) {
    const ConfigSection weights = all.object(name).object("weights");
    if (mixed) {
      const std::string own = all.object(name).text("format", "");
      expect_known_format(all.object(name), own);
      // Tensors that are not packed say themselves what they are.
      if (own != "pack-quantized" && groups->size() > 1) {
        others += fmt::format(", {} {} bits", own, read_bits(weights, "num_bits", {8}));
        continue;
      }
    }
    if (first.is_null()) first = group.value("weights", Json());
    scheme.bits = read_bits(weights, "num_bits", {4, 8});
    scheme.block = read_block(weights, "block_structure");
    scheme.group = weights.has("group_size") ? read_group(weights, -1) : 0;
    scheme.groups_listed = lists_groups(weights.find("actorder"));
    for (const char* key : {"num_bits", "group_size", "type", "strategy"}) {
      if (group["weights"].value(key, Json()) != first.value(key, Json())) {
        config.unsupported("config_groups", fmt::format("differ in {}; kinora reads directories "
                                                        "with one scheme",
                                                        key));
      }
    }
  }
  scheme.text = fmt::format(
      "compressed-tensors, {}, {} bits {}{}", format, scheme.bits,
      scheme.block[0] > 0 ? fmt::format("in blocks of {}×{}", scheme.block[0], scheme.block[1])
                          : group_text(scheme.group),
      others);
}

}  // namespace

PackingScheme read_packing_scheme(const ConfigFiles& files) {
  PackingScheme scheme;
  const ConfigSection top = files.top();
  const char* key = "quantization_config";
  if (!top.has(key)) return scheme;
  const ConfigSection config = top.object(key);
  const std::string method = config.text("quant_method", "");
  const std::string type = files.text().text("dtype", files.text().text("torch_dtype", "bfloat16"));
  if (type == "float16") scheme.result = DType::f16;
  if (type == "float32") scheme.result = DType::f32;
  if (method == "fp8") {
    read_fp8(config, scheme);
  } else if (method == "awq") {
    read_awq(config, scheme);
  } else if (method == "gptq") {
    read_gptq(config, scheme);
  } else if (method == "compressed-tensors") {
    read_compressed(config, scheme);
  } else {
    config.unsupported(
        "quant_method",
        fmt::format("is '{}'; kinora reads fp8, compressed-tensors, awq and gptq", method));
  }
  return scheme;
}

}  // namespace kinora
