#include "model/weights/quantized_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/config.h"
#include "model/weights/dequantize.h"
#include "model/weights/packed_layers.h"

namespace kinora {
namespace {

using Json = nlohmann::json;

// What `quantization_config` says.
struct Scheme {
  enum class Kind { plain, fp8, compressed, awq, gptq };
  Kind kind = Kind::plain;
  int bits = 8;
  int64_t group = 0;                      // inputs that share a scale; 0: the tensors say
  std::array<int64_t, 2> block = {0, 0};  // outputs and inputs that share a scale; 0: no blocks
  int zero_offset = 0;                    // added to stored zero points
  DType result = DType::bf16;             // of fp8 with scales in f32
  std::string text;
};

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

void read_fp8(const ConfigSection& config, Scheme& scheme) {
  expect_text(config, "fmt", "e4m3");
  scheme.kind = Scheme::Kind::fp8;
  scheme.block = read_block(config, "weight_block_size");
  if (scheme.block[0] == 0) scheme.block = {128, 128};
  scheme.text = fmt::format("fp8 in blocks of {}×{}", scheme.block[0], scheme.block[1]);
}

void read_awq(const ConfigSection& config, Scheme& scheme) {
  const std::string version = config.text("version", "gemm");
  if (version != "gemm" && version != "GEMM") {
    config.unsupported("version", fmt::format("is '{}'; kinora reads gemm", version));
  }
  scheme.kind = Scheme::Kind::awq;
  scheme.bits = read_bits(config, config.has("bits") ? "bits" : "w_bit", {4});
  scheme.group = read_group(config, 128);
  scheme.text = fmt::format("awq, 4 bits {}", group_text(scheme.group));
}

void read_gptq(const ConfigSection& config, Scheme& scheme) {
  scheme.kind = Scheme::Kind::gptq;
  scheme.bits = read_bits(config, "bits", {4, 8});
  scheme.group = read_group(config, 128);
  const std::string format = config.text("checkpoint_format", "gptq");
  if (format != "gptq" && format != "gptq_v2") {
    config.unsupported("checkpoint_format",
                       fmt::format("is '{}'; kinora reads gptq and gptq_v2", format));
  }
  scheme.zero_offset = format == "gptq" ? 1 : 0;
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

void read_compressed(const ConfigSection& config, Scheme& scheme) {
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
  scheme.kind = Scheme::Kind::compressed;
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

Scheme read_scheme(const ConfigFiles& files) {
  Scheme scheme;
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

// One layer of a directory, whose parts are taken together and checked.
class Layer {
 public:
  Layer(const TensorFiles& files, std::string name) : files_(files), name_(std::move(name)) {}

  [[noreturn]] void wrong(const std::string& what) const {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: the packed weight {} {}; download it again or choose another "
                            "directory",
                            files_.directory(), name_, what));
  }
  bool has(const char* part) const { return files_.find(name_ + part) != nullptr; }

  Tensor take(const char* part, const char* type, int64_t rank) {
    const TensorEntry* entry = files_.find(name_ + part);
    if (entry == nullptr) wrong(fmt::format("has no {}", part + 1));
    if (entry->dtype != type || entry->shape.rank() != rank) {
      wrong(fmt::format("has {} as {} {}, not {} of rank {}", part + 1, entry->dtype,
                        to_string(entry->shape), type, rank));
    }
    parts_.push_back(name_ + part);
    if (entry->known) return files_.tensor(name_ + part);
    const Tensor bytes = files_.raw(name_ + part);
    return bytes.elements() == entry->shape.elements() ? bytes.reshaped(entry->shape) : bytes;
  }
  // Scales must be numbers that a weight can be multiplied with.
  Tensor take_scales(const char* part) {
    const TensorEntry* entry = files_.find(name_ + part);
    if (entry == nullptr) wrong(fmt::format("has no {}", part + 1));
    if (entry->known != DType::f32 && entry->known != DType::bf16 && entry->known != DType::f16) {
      wrong(fmt::format("has {} in {}", part + 1, entry->dtype));
    }
    parts_.push_back(name_ + part);
    Tensor scales = files_.tensor(name_ + part);
    if (scales.rank() < 2) scales = scales.reshaped(Shape{scales.elements(), 1});
    for (int64_t i = 0; i < scales.elements(); ++i) {
      const float value = scales.dtype() == DType::f32    ? scales.data<float>()[i]
                          : scales.dtype() == DType::bf16 ? scales.data<bf16>()[i].to_float()
                                                          : scales.data<f16>()[i].to_float();
      if (!std::isfinite(value) || value == 0) {
        wrong(fmt::format("has a scale that is {} in {}", value, part + 1));
      }
    }
    return scales;
  }
  void pass_over(const char* part) {
    if (has(part)) parts_.push_back(name_ + part);
  }

  const std::string& name() const { return name_; }
  std::vector<std::string> parts() { return std::move(parts_); }

 private:
  const TensorFiles& files_;
  std::string name_;
  std::vector<std::string> parts_;
};

using Make = std::function<Tensor(const ThreadPool& threads)>;
struct Widened {
  Shape shape;
  DType type = DType::bf16;
  Make make;
  PackedLayer packed;  // the same without widening it
};

// Which of `count` parts along a side of `size` belongs to what: the number of values in each.
int64_t share_of(const Layer& layer, int64_t size, int64_t count, int64_t expected,
                 const char* what) {
  if (count < 1 || size % count != 0 || (expected > 0 && count > 1 && size / count != expected)) {
    layer.wrong(fmt::format("has {} {} for {} inputs, and its config says {}", count, what, size,
                            expected > 0 ? fmt::format("groups of {}", expected) : "channels"));
  }
  return size / count;
}

// Groups of columns as the files give them; every group must exist.
std::shared_ptr<const Tensor> take_groups(Layer& layer, const char* part, int64_t k,
                                          int64_t groups) {
  if (!layer.has(part)) return nullptr;
  auto given = std::make_shared<const Tensor>(layer.take(part, "I32", 1));
  if (given->elements() != k)
    layer.wrong(fmt::format("has {} entries in {}", given->elements(), part + 1));
  for (int64_t i = 0; i < k; ++i) {
    const int32_t group = given->data<int32_t>()[i];
    if (group < 0 || group >= groups) {
      layer.wrong(fmt::format("names group {} of {} in {}", group, groups, part + 1));
    }
  }
  return given;
}

// Blocks, channels or one scale for all, as the scales' shape says.
void fit_scales(const Layer& layer, const Scheme& scheme, int64_t n, int64_t k, PartScales& parts) {
  const Shape& shape = parts.scales.shape();
  const int64_t block_rows = scheme.block[0], block_columns = scheme.block[1];
  if (block_rows > 0) {
    const Shape wanted{(n + block_rows - 1) / block_rows, (k + block_columns - 1) / block_columns};
    if (!(shape == wanted)) {
      layer.wrong(fmt::format("has scales {} where blocks of {}×{} need {}", to_string(shape),
                              block_rows, block_columns, to_string(wanted)));
    }
    parts.rows = block_rows;
    parts.columns = block_columns;
    return;
  }
  if (shape.rank() != 2 || (shape[0] != n && parts.scales.elements() != 1)) {
    layer.wrong(fmt::format("has scales {} for {} outputs", to_string(shape), n));
  }
  parts.rows = shape[0] == n ? 1 : n;
  parts.columns = share_of(layer, k, shape[1], scheme.group, "scales");
}

Widened fp8_layer(Layer& layer, const Scheme& scheme, const char* scale_name) {
  const Tensor weight = layer.take(".weight", "F8_E4M3", 2);
  PartScales parts;
  parts.scales = layer.take_scales(scale_name);
  fit_scales(layer, scheme, weight.size(0), weight.size(1), parts);
  layer.pass_over(".input_scale");
  layer.pass_over(".activation_scale");
  const DType type = parts.scales.dtype() == DType::f32 ? scheme.result : parts.scales.dtype();
  return {
      weight.shape(),
      type,
      [=](const ThreadPool& threads) { return widen_e4m3(threads, weight, parts, type); },
      {PackedKind::fp8, weight.size(0), weight.size(1), parts, false, 0, codes_of_bytes(weight)}};
}

Widened int8_layer(Layer& layer, const Scheme& scheme) {
  const Tensor weight = layer.take(".weight", "I8", 2);
  PartScales parts;
  parts.scales = layer.take_scales(".weight_scale");
  fit_scales(layer, scheme, weight.size(0), weight.size(1), parts);
  if (layer.has(".weight_zero_point")) {
    const Tensor stored = layer.take(".weight_zero_point", "I8", parts.scales.rank());
    if (stored.elements() != parts.scales.elements()) layer.wrong("has not one zero point a scale");
    parts.zeros = Tensor(DType::i32, parts.scales.shape());
    for (int64_t i = 0; i < stored.elements(); ++i) {
      parts.zeros.data<int32_t>()[i] = stored.data<int8_t>()[i];
    }
  }
  layer.pass_over(".input_scale");
  layer.pass_over(".input_zero_point");
  const DType type = parts.scales.dtype();
  return {
      weight.shape(),
      type,
      [=](const ThreadPool& threads) { return widen_int8(threads, weight, parts, type); },
      {PackedKind::int8, weight.size(0), weight.size(1), parts, false, 0, codes_of_bytes(weight)}};
}

Widened packed_layer(Layer& layer, const Scheme& scheme) {
  const Tensor packed = layer.take(".weight_packed", "I32", 2);
  const Tensor raw = layer.take(".weight_shape", "I64", 1);  // bytes: kinora has no such type
  if (raw.elements() != 16) layer.wrong("has a weight_shape that is not two numbers");
  std::array<int64_t, 2> size{};
  std::memcpy(size.data(), raw.data<uint8_t>(), sizeof(size));
  const int64_t n = packed.size(0), k = size[1], per_word = 32 / scheme.bits;
  if (size[0] != n || k < 1 || (k + per_word - 1) / per_word != packed.size(1)) {
    layer.wrong(fmt::format("has {} words for {}×{} values of {} bits", to_string(packed.shape()),
                            size[0], k, scheme.bits));
  }
  PartScales parts;
  parts.scales = layer.take_scales(".weight_scale");
  fit_scales(layer, scheme, n, k, parts);
  const int64_t groups = parts.scales.size(1);
  if (layer.has(".weight_zero_point")) {
    const Tensor stored = layer.take(".weight_zero_point", "I32", 2);
    if (stored.size(0) != (n + per_word - 1) / per_word || stored.size(1) != groups) {
      layer.wrong(fmt::format("has zero points {}", to_string(stored.shape())));
    }
    parts.zeros = unpack_words(stored, scheme.bits, PackedAlong::rows, n);
    for (int64_t i = 0; i < parts.zeros.elements(); ++i) {
      parts.zeros.data<int32_t>()[i] -= 1 << (scheme.bits - 1);
    }
  }
  const auto column_groups = take_groups(layer, ".weight_g_idx", k, groups);
  parts.column_groups = column_groups;
  const DType type = parts.scales.dtype();
  const int bits = scheme.bits;
  return {Shape{n, k},
          type,
          [=](const ThreadPool& threads) {
            return widen_packed_rows(threads, packed, bits, k, parts, type);
          },
          {bits == 4 ? PackedKind::int4 : PackedKind::int8, n, k, parts, false,
           bits == 4 ? 8.0f : 0.0f, codes_of_packed_rows(packed, bits, k)}};
}

// Zero points of GPTQ and AWQ: [groups, n], packed along n.
Tensor take_zeros(Layer& layer, const Scheme& scheme, PackedAlong along, int64_t groups,
                  int64_t n) {
  const Tensor stored = layer.take(".qzeros", "I32", 2);
  if (stored.size(0) != groups || stored.size(1) * (32 / scheme.bits) != n) {
    layer.wrong(fmt::format("has zero points {} for {} groups of {} outputs",
                            to_string(stored.shape()), groups, n));
  }
  Tensor zeros = unpack_words(stored, scheme.bits, along, n);
  const int32_t mask = (1 << scheme.bits) - 1;
  for (int64_t i = 0; i < zeros.elements(); ++i) {
    int32_t& zero = zeros.data<int32_t>()[i];
    zero = (zero + scheme.zero_offset) & mask;  // as the references add: within the bits
  }
  return zeros;
}

Widened transposed_layer(Layer& layer, const Scheme& scheme) {
  const bool awq = scheme.kind == Scheme::Kind::awq;
  const Tensor packed = layer.take(".qweight", "I32", 2);
  const int64_t per_word = 32 / scheme.bits;
  const int64_t n = awq ? packed.size(1) * per_word : packed.size(1);
  const int64_t k = awq ? packed.size(0) : packed.size(0) * per_word;
  PartScales parts;
  parts.scales = layer.take_scales(".scales");
  const int64_t groups = parts.scales.size(0);
  if (parts.scales.size(1) != n) {
    layer.wrong(fmt::format("has scales {} for {} outputs", to_string(parts.scales.shape()), n));
  }
  parts.columns = share_of(layer, k, groups, scheme.group, "rows of scales");
  parts.zeros =
      take_zeros(layer, scheme, awq ? PackedAlong::columns_awq : PackedAlong::columns, groups, n);
  const auto column_groups = awq ? nullptr : take_groups(layer, ".g_idx", k, groups);
  parts.column_groups = column_groups;
  const DType type = parts.scales.dtype();
  const int bits = scheme.bits;
  return {Shape{n, k},
          type,
          [=](const ThreadPool& threads) {
            return awq ? widen_awq(threads, packed, parts, type)
                       : widen_packed_columns(threads, packed, bits, k, parts, type);
          },
          {bits == 4 ? PackedKind::int4 : PackedKind::int8, n, k, parts, true,
           bits == 4 ? 0.0f : -128.0f,
           awq ? codes_of_awq(packed) : codes_of_packed_columns(packed, bits, k)}};
}

// The layer that a tensor begins, or nothing. Every layer has exactly one such tensor.
std::string layer_of(const TensorFiles& files, const Scheme& scheme, const std::string& name) {
  const auto without = [&](std::string_view end) {
    return name.ends_with(end) ? name.substr(0, name.size() - end.size()) : std::string();
  };
  switch (scheme.kind) {
    case Scheme::Kind::awq:
    case Scheme::Kind::gptq:
      return without(".qweight");
    case Scheme::Kind::compressed:
      if (const std::string packed = without(".weight_packed"); !packed.empty()) return packed;
      [[fallthrough]];
    case Scheme::Kind::fp8: {
      const TensorEntry* entry = files.find(name);
      // A part of a layer that was replaced is no longer there.
      const bool narrow = entry != nullptr && (entry->dtype == "F8_E4M3" || entry->dtype == "I8");
      return narrow ? without(".weight") : std::string();
    }
    default:
      return {};
  }
}

Widened widen_layer(Layer& layer, const TensorFiles& files, const Scheme& scheme) {
  switch (scheme.kind) {
    case Scheme::Kind::fp8:
      return fp8_layer(layer, scheme, ".weight_scale_inv");
    case Scheme::Kind::compressed:
      if (layer.has(".weight_packed")) return packed_layer(layer, scheme);
      return files.find(layer.name() + ".weight")->dtype == "I8"
                 ? int8_layer(layer, scheme)
                 : fp8_layer(layer, scheme, ".weight_scale");
    default:
      return transposed_layer(layer, scheme);
  }
}

}  // namespace

TensorFiles open_weights(const Context& context, const FileSystem& files,
                         const std::string& directory, const ConfigFiles& config) {
  TensorFiles result = TensorFiles::open(files, directory);
  const Scheme scheme = read_scheme(config);
  if (scheme.kind == Scheme::Kind::plain) return result;
  int64_t found = 0;
  for (const std::string& name : result.names()) {
    const std::string layer_name = layer_of(result, scheme, name);
    if (layer_name.empty()) continue;
    Layer layer(result, layer_name);
    Widened widened = widen_layer(layer, result, scheme);
    TensorFiles::Pack pack;
    if (can_stay_packed(widened.packed)) {
      pack = [packed = std::move(widened.packed), threads = context.threads] {
        return pack_layer(*threads, packed);
      };
    }
    result.replace(
        layer.parts(), layer_name + ".weight", widened.type, widened.shape,
        [make = std::move(widened.make), threads = context.threads] { return make(*threads); },
        std::move(pack));
    ++found;
  }
  if (found == 0) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: config.json says {}, but no tensor is packed so; is "
                            "quantization_config a left-over?",
                            directory, scheme.text));
  }
  return result;
}

std::string quantization_text(const ConfigFiles& config) { return read_scheme(config).text; }

}  // namespace kinora
