#include "model/weights/weights_binder.h"

#include <fmt/format.h>

#include <array>
#include <atomic>

#include "base/error.h"
#include "ops/packed_matrix.h"

namespace kinora {
namespace {

// The first prefix that fits is taken, so the longer ones stand first.
constexpr std::array decoder_prefixes = {
    TensorPrefix{"model.language_model.", "model.language_model."},
    TensorPrefix{"language_model.model.", "model.language_model."},
    TensorPrefix{"language_model.lm_head.", "lm_head."},
    TensorPrefix{"lm_head.", "lm_head."},
    TensorPrefix{"model.", "model.language_model."},
};

const TensorPrefix* prefix_of(std::string_view name, std::span<const TensorPrefix> family) {
  for (const std::span<const TensorPrefix> known :
       {family, std::span<const TensorPrefix>(decoder_prefixes)}) {
    for (const TensorPrefix& prefix : known) {
      if (name.starts_with(prefix.own)) return &prefix;
    }
  }
  return nullptr;
}

// Values that older exporters stored with the weights. Every loader computes them itself.
bool is_derived(std::string_view name) {
  return name.ends_with("rotary_emb.inv_freq") || name.ends_with("embeddings.position_ids");
}

constexpr size_t listed_at_most = 20;

class Report {
 public:
  void add(std::string_view what, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      if (count_++ < listed_at_most) text_ += fmt::format("; {} {}", what, name);
    }
  }
  bool empty() const { return count_ == 0; }
  std::string text() const {
    if (count_ <= listed_at_most) return text_;
    return text_ + fmt::format("; and {} more", count_ - listed_at_most);
  }

 private:
  size_t count_ = 0;
  std::string text_;
};

std::string printable(std::string_view name) {
  std::string shown(name.substr(0, 160));
  for (char& c : shown) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return shown;
}

// NaN and infinity have all exponent bits set.
bool all_finite(const Context& context, const Tensor& tensor) {
  const auto check = [&](auto mask, const auto* bits) {
    std::atomic<bool> finite{true};
    context.threads->parallel_for(tensor.elements(), 1 << 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if ((bits[i] & mask) == mask) {
          finite.store(false, std::memory_order_relaxed);
          return;
        }
      }
    });
    return finite.load();
  };
  const std::byte* raw = tensor.view().raw();
  switch (tensor.dtype()) {
    case DType::f32:
      return check(uint32_t{0x7f800000}, reinterpret_cast<const uint32_t*>(raw));
    case DType::bf16:
      return check(uint16_t{0x7f80}, reinterpret_cast<const uint16_t*>(raw));
    default:
      return check(uint16_t{0x7c00}, reinterpret_cast<const uint16_t*>(raw));
  }
}

}  // namespace

std::string common_tensor_name(std::string_view name,
                               std::span<const TensorPrefix> family_prefixes) {
  const TensorPrefix* prefix = prefix_of(name, family_prefixes);
  if (prefix == nullptr) return std::string(name);
  return std::string(prefix->common) + std::string(name.substr(prefix->own.size()));
}

WeightsBinder::WeightsBinder(TensorFiles files, std::span<const TensorPrefix> family_prefixes)
    : files_(std::move(files)) {
  for (const std::string& name : files_.names()) {
    if (const TensorPrefix* prefix = prefix_of(name, family_prefixes)) {
      own_prefixes_.emplace(prefix->common, prefix->own);
    }
    if (!sources_.emplace(common_tensor_name(name, family_prefixes), name).second) {
      repeated_.push_back(printable(name));
    }
  }
}

std::string WeightsBinder::directory_name(const std::string& common) const {
  for (const auto& [prefix, own] : own_prefixes_) {
    if (common.starts_with(prefix)) return own + common.substr(prefix.size());
  }
  return common;
}

std::string WeightsBinder::find(const std::string& name, const Shape& shape) {
  const auto found = sources_.find(name);
  if (found == sources_.end()) {
    missing_.push_back(fmt::format("{} {}", directory_name(name), to_string(shape)));
    return {};
  }
  used_.insert(name);
  const TensorEntry& entry = *files_.find(found->second);
  const bool floating =
      entry.known == DType::f32 || entry.known == DType::bf16 || entry.known == DType::f16;
  if (!(entry.shape == shape) || !floating) {
    misshapen_.push_back(fmt::format("{} {} {} (expected {} in F32, BF16 or F16)",
                                     printable(found->second), printable(entry.dtype),
                                     to_string(entry.shape), to_string(shape)));
    return {};
  }
  return found->second;
}

Tensor WeightsBinder::take(const std::string& name, const Shape& shape) {
  const std::string own = find(name, shape);
  if (own.empty()) return {};
  Tensor tensor = files_.tensor(own);
  count_.parameters += tensor.elements();
  count_.bytes += tensor.bytes();
  taken_.emplace_back(own, tensor);
  return tensor;
}

LinearWeights WeightsBinder::take_linear(const std::string& name, int64_t out, int64_t in,
                                         bool bias) {
  LinearWeights linear;
  linear.weight = take(name + ".weight", Shape{out, in});
  if (bias) linear.bias = take(name + ".bias", Shape{out});
  return linear;
}

LinearWeights WeightsBinder::take_product(const std::string& name, int64_t out, int64_t in,
                                          bool bias) {
  const auto found = sources_.find(name + ".weight");
  if (found == sources_.end() || !files_.has_packed(found->second)) {
    return take_linear(name, out, in, bias);
  }
  LinearWeights linear;
  if (const std::string own = find(name + ".weight", Shape{out, in}); !own.empty()) {
    linear.packed = files_.packed(own);
    count_.parameters += out * in;
    count_.bytes += linear.packed->bytes();
    taken_packed_.emplace_back(own, linear.packed);
  }
  if (bias) linear.bias = take(name + ".bias", Shape{out});
  return linear;
}

NormWeights WeightsBinder::take_norm(const std::string& name, int64_t width) {
  return {take(name + ".weight", Shape{width}), take(name + ".bias", Shape{width})};
}

Tensor WeightsBinder::take_patches(const std::string& name, const Shape& shape) {
  const Tensor convolution = take(name, shape);
  if (!convolution.defined()) return {};
  const int64_t out = convolution.size(0);
  return convolution.reshaped(Shape{out, out == 0 ? 0 : convolution.elements() / out});
}

void WeightsBinder::pass_over(std::string_view name) { used_.insert(std::string(name)); }

WeightCount WeightsBinder::finish(const Context& context, bool check_finite) const {
  std::vector<std::string> extra;
  for (const auto& [common, own] : sources_) {
    if (!used_.contains(common) && !is_derived(common)) extra.push_back(printable(own));
  }
  Report report;
  report.add("missing", missing_);
  report.add("misshapen", misshapen_);
  report.add("extra", extra);
  report.add("twice", repeated_);
  if (report.empty()) {
    if (check_finite) expect_finite(context);
    WeightCount count = count_;
    count.stored_bytes = files_.bytes();
    return count;
  }
  throw Error(ErrorKind::bad_input,
              fmt::format("the weights in {} do not fit its config.json: {} missing, {} misshapen, "
                          "{} extra{}",
                          files_.directory(), missing_.size(), misshapen_.size(),
                          extra.size() + repeated_.size(), report.text()));
}

void WeightsBinder::expect_finite(const Context& context) const {
  const auto refuse = [&](const std::string& name) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: tensor {} holds a NaN or an infinity; download it again",
                            files_.directory(), name));
  };
  for (const auto& [name, tensor] : taken_) {
    if (!all_finite(context, tensor)) refuse(name);
  }
  for (const auto& [name, matrix] : taken_packed_) {
    if (!matrix->finite()) refuse(name);
  }
}

}  // namespace kinora
