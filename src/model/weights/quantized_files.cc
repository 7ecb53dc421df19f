#include "model/weights/quantized_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/weights/dequantize.h"
#include "model/weights/packed_layers.h"
#include "model/weights/packing_scheme.h"

namespace kinora {
namespace {

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
    if (scales.rank() > 2) {
      wrong(fmt::format("has scales {} in {}", to_string(scales.shape()), part + 1));
    }
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

// Inputs that share one of `count` scales; there must be as many as the config says.
int64_t share_of(const Layer& layer, const PackingScheme& scheme, int64_t inputs, int64_t count,
                 const char* what) {
  const int64_t group = scheme.group;
  const bool whole = count == 1 && (group == 0 || inputs <= group || scheme.mixed());
  if (!whole && (count < 1 || group == 0 || inputs % count != 0 || inputs / count != group)) {
    layer.wrong(
        fmt::format("has {} {} for {} inputs, and its config says {}", count, what, inputs,
                    group > 0 ? fmt::format("groups of {}", group) : "one scale for all inputs"));
  }
  return inputs / count;
}

// Groups of columns as the files give them; every group must exist.
std::shared_ptr<const Tensor> take_groups(Layer& layer, const PackingScheme& scheme,
                                          const char* part, int64_t k, int64_t groups) {
  if (!layer.has(part)) {
    if (scheme.groups_listed) layer.wrong(fmt::format("has no {}", part + 1));
    return nullptr;
  }
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
void fit_scales(const Layer& layer, const PackingScheme& scheme, int64_t n, int64_t k,
                PartScales& parts) {
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
  parts.columns = share_of(layer, scheme, k, shape[1], "scales");
}

Widened fp8_layer(Layer& layer, const PackingScheme& scheme, const char* scale_name) {
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

Widened int8_layer(Layer& layer, const PackingScheme& scheme) {
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

Widened packed_layer(Layer& layer, const PackingScheme& scheme) {
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
  const auto column_groups = take_groups(layer, scheme, ".weight_g_idx", k, groups);
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
Tensor take_zeros(Layer& layer, const PackingScheme& scheme, PackedAlong along, int64_t groups,
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

Widened transposed_layer(Layer& layer, const PackingScheme& scheme) {
  const bool awq = scheme.kind == PackingScheme::Kind::awq;
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
  parts.columns = share_of(layer, scheme, k, groups, "rows of scales");
  parts.zeros =
      take_zeros(layer, scheme, awq ? PackedAlong::columns_awq : PackedAlong::columns, groups, n);
  const auto column_groups = awq ? nullptr : take_groups(layer, scheme, ".g_idx", k, groups);
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
std::string layer_of(const TensorFiles& files, const PackingScheme& scheme,
                     const std::string& name) {
  const auto without = [&](std::string_view end) {
    return name.ends_with(end) ? name.substr(0, name.size() - end.size()) : std::string();
  };
  switch (scheme.kind) {
    case PackingScheme::Kind::awq:
    case PackingScheme::Kind::gptq:
      return without(".qweight");
    case PackingScheme::Kind::compressed:
      if (const std::string packed = without(".weight_packed"); !packed.empty()) return packed;
      [[fallthrough]];
    case PackingScheme::Kind::fp8: {
      const TensorEntry* entry = files.find(name);
      // A part of a layer that was replaced is no longer there.
      const bool narrow = entry != nullptr && (entry->dtype == "F8_E4M3" || entry->dtype == "I8");
      return narrow ? without(".weight") : std::string();
    }
    default:
      return {};
  }
}

Widened compressed_layer(Layer& layer, const TensorFiles& files, const PackingScheme& scheme) {
  const bool packed = layer.has(".weight_packed");
  const bool whole_numbers = !packed && files.find(layer.name() + ".weight")->dtype == "I8";
  const char* form = packed          ? "pack-quantized"
                     : whole_numbers ? "int-quantized"
                                     : "float-quantized";
  const bool naive = scheme.format == "naive-quantized" && !packed;
  if (scheme.format != form && !naive && !scheme.mixed()) {
    layer.wrong(fmt::format("is {}, and its config says {}", form, scheme.format));
  }
  if (packed) return packed_layer(layer, scheme);
  return whole_numbers ? int8_layer(layer, scheme) : fp8_layer(layer, scheme, ".weight_scale");
}

Widened widen_layer(Layer& layer, const TensorFiles& files, const PackingScheme& scheme) {
  switch (scheme.kind) {
    case PackingScheme::Kind::fp8:
      return fp8_layer(layer, scheme, ".weight_scale_inv");
    case PackingScheme::Kind::compressed:
      return compressed_layer(layer, files, scheme);
    default:
      return transposed_layer(layer, scheme);
  }
}

// What is left over when all layers were read, and can only be a part of one that was not.
void refuse_strays(const TensorFiles& files, const PackingScheme& scheme) {
  constexpr std::array parts = {".qweight", ".qzeros", ".weight_packed", ".weight_scale_inv",
                                ".weight_scale"};
  for (const std::string& name : files.names()) {
    const std::string& type = files.find(name)->dtype;
    const bool narrow = name.ends_with(".weight") && (type == "F8_E4M3" || type == "I8");
    if (!narrow && std::none_of(parts.begin(), parts.end(),
                                [&](const char* part) { return name.ends_with(part); })) {
      continue;
    }
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: {} is a part of a packed weight, but config.json says {}, which "
                            "does not make a weight of it; download it again or choose another "
                            "directory",
                            files.directory(), name,
                            scheme.text.empty() ? "nothing about packing" : scheme.text));
  }
}

}  // namespace

TensorFiles open_weights(const Context& context, const FileSystem& files,
                         const std::string& directory, const ConfigFiles& config) {
  TensorFiles result = TensorFiles::open(files, directory);
  const PackingScheme scheme = read_packing_scheme(config);
  if (scheme.kind == PackingScheme::Kind::plain) {
    refuse_strays(result, scheme);
    if (context.device.is_cpu() && result.bytes() <= copied_weight_bytes) result.copy_to_memory();
    return result;
  }
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
  refuse_strays(result, scheme);
  return result;
}

std::string quantization_text(const ConfigFiles& config) {
  return read_packing_scheme(config).text;
}

}  // namespace kinora
