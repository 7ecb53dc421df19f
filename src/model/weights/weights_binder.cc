#include "model/weights/weights_binder.h"

#include <fmt/format.h>

#include <array>

#include "base/error.h"

namespace kinora {
namespace {

struct Rule {
  std::string_view own;     // how a name begins in some generation
  std::string_view common;  // how it begins in the common form
};

// The first rule that fits is taken, so the longer prefixes stand first.
constexpr std::array rules = {
    Rule{"model.language_model.", "model.language_model."},
    Rule{"language_model.model.", "model.language_model."},
    Rule{"language_model.lm_head.", "lm_head."},
    Rule{"model.visual.", "model.visual."},
    Rule{"visual.", "model.visual."},
    Rule{"model.vision_tower.", "model.vision_tower."},
    Rule{"vision_tower.", "model.vision_tower."},
    Rule{"model.multi_modal_projector.", "model.multi_modal_projector."},
    Rule{"multi_modal_projector.", "model.multi_modal_projector."},
    Rule{"model.image_newline", "model.image_newline"},
    Rule{"image_newline", "model.image_newline"},
    Rule{"lm_head.", "lm_head."},
    Rule{"model.", "model.language_model."},
};

const Rule* rule_for(std::string_view name) {
  for (const Rule& rule : rules) {
    if (name.starts_with(rule.own)) return &rule;
  }
  return nullptr;
}

// Values that older exporters wrote beside the weights and every loader computes itself.
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

}  // namespace

std::string common_tensor_name(std::string_view name) {
  const Rule* rule = rule_for(name);
  if (rule == nullptr) return std::string(name);
  return std::string(rule->common) + std::string(name.substr(rule->own.size()));
}

WeightsBinder::WeightsBinder(const TensorFiles& files) : files_(&files) {
  for (const std::string& name : files.names()) {
    if (const Rule* rule = rule_for(name)) own_prefixes_.emplace(rule->common, rule->own);
    if (!sources_.emplace(common_tensor_name(name), name).second) {
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

Tensor WeightsBinder::take(const std::string& name, const Shape& shape) {
  const auto found = sources_.find(name);
  if (found == sources_.end()) {
    missing_.push_back(fmt::format("{} {}", directory_name(name), to_string(shape)));
    return {};
  }
  used_.insert(name);
  const TensorEntry& entry = *files_->find(found->second);
  const bool floating =
      entry.known == DType::f32 || entry.known == DType::bf16 || entry.known == DType::f16;
  if (!(entry.shape == shape) || !floating) {
    misshapen_.push_back(fmt::format("{} {} {} (expected {} in F32, BF16 or F16)",
                                     printable(found->second), printable(entry.dtype),
                                     to_string(entry.shape), to_string(shape)));
    return {};
  }
  Tensor tensor = files_->tensor(found->second);
  parameters_ += tensor.elements();
  bytes_ += tensor.bytes();
  taken_.emplace_back(found->second, tensor);
  return tensor;
}

void WeightsBinder::pass_over(std::string_view name) { used_.insert(std::string(name)); }

void WeightsBinder::finish() const {
  std::vector<std::string> extra;
  for (const auto& [common, own] : sources_) {
    if (!used_.contains(common) && !is_derived(common)) extra.push_back(printable(own));
  }
  Report report;
  report.add("missing", missing_);
  report.add("misshapen", misshapen_);
  report.add("extra", extra);
  report.add("twice", repeated_);
  if (report.empty()) return;
  throw Error(ErrorKind::bad_input,
              fmt::format("the weights in {} do not fit its config.json: {} missing, {} misshapen, "
                          "{} extra{}",
                          files_->directory(), missing_.size(), misshapen_.size(),
                          extra.size() + repeated_.size(), report.text()));
}

}  // namespace kinora
