#include "attention/policies/pattern.h"

#include <algorithm>
#include <cmath>

#include "attention/policies/all.h"
#include "base/error.h"
#include "base/policy/names.h"
#include "base/policy/policy.h"

namespace kinora {
namespace {

constexpr double one_cost = 4096;  // rows, columns or diagonals

// Calls change(size) for every size that grows.
template <typename Change>
void for_growing(PatternSpec& spec, const Change& change) {
  for (size_t i = 0; i < spec.sizes.size(); ++i) {
    if (spec.kind->sizes[i].change == SizeChange::grows) change(spec.sizes[i]);
  }
}

}  // namespace

std::vector<const PatternKind*> pattern_kinds() {
  std::vector<const PatternKind*> kinds;
  for (const AttentionPolicy& policy : attention_policies()) {
    if (policy.pattern != nullptr) kinds.push_back(policy.pattern.get());
  }
  return kinds;
}

const PatternKind& find_pattern(std::string_view name) {
  std::vector<std::string> names;
  for (const PatternKind* kind : pattern_kinds()) {
    if (kind->name == name) return *kind;
    names.push_back(kind->name);
  }
  throw Error(ErrorKind::usage, "no attention pattern is called " + in_quotes(name) + "; " +
                                    suggest_name(name, names));
}

PatternSpec make_pattern(const PatternKind& kind, SizeValues sizes) {
  const std::string problem = kind.problem ? kind.problem(sizes) : "";
  if (!problem.empty()) {
    throw Error(ErrorKind::usage, "attention pattern " + kind.name + ": " + problem);
  }
  return {&kind, std::move(sizes)};
}

PatternSpec parse_pattern(std::string_view text, int32_t frame_stride) {
  return in_words("attention pattern", text, [&] {
    const PolicyText parts = split_policy(text);
    const PatternKind& kind = find_pattern(parts.name);
    return make_pattern(kind, kind.read(parts.settings, frame_stride));
  });
}

std::string to_string(const PatternSpec& spec) {
  return spec.kind->name + (spec.kind->text ? " " + spec.kind->text(spec.sizes) : "");
}

PatternSpec scaled(const PatternSpec& spec, int64_t length) {
  if (length >= nominal_length) return spec;
  PatternSpec result = spec;
  const double share = static_cast<double>(length) / static_cast<double>(nominal_length);
  for (size_t i = 0; i < spec.sizes.size(); ++i) {
    int32_t& size = result.sizes[i];
    if (spec.kind->sizes[i].change == SizeChange::fixed || size <= 0) continue;
    size = std::max(1, static_cast<int32_t>(std::lround(share * size)));
  }
  return result;
}

bool resize(PatternSpec& spec, double factor) {
  factor = std::clamp(factor, 0.25, 4.0);
  if (factor > 1 && spec.kind->widen && spec.kind->widen(spec.sizes)) return true;
  bool changed = false;
  for_growing(spec, [&](int32_t& size) {
    if (size < 2) return;
    const auto next = static_cast<int32_t>(std::min(factor * size, 1.0 * nominal_length));
    changed = changed || next != size;
    size = next;
  });
  return changed;
}

PatternSpec at_one_cost(const PatternSpec& spec) {
  PatternSpec result = spec;
  double total = 0;
  for_growing(result, [&](int32_t& size) { total += size; });
  if (total == 0) return result;
  for_growing(result, [&](int32_t& size) {
    size = static_cast<int32_t>(std::lround(one_cost / total * size));
  });
  return result;
}

LineIndex resolve(const PatternSpec& spec, const Region& region, const Probe& probe) {
  return spec.kind->resolve(spec.sizes, region, probe);
}

}  // namespace kinora
