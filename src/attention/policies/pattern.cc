#include "attention/policies/pattern.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "attention/policies/all.h"
#include "base/error.h"
#include "base/policy/names.h"
#include "base/policy/policy.h"

namespace kinora {
namespace {

constexpr double one_cost = 4096;  // rows, columns or diagonals

// Calls change(size) for every size that changes in one of these ways.
template <typename Change>
void for_sizes(PatternSpec& spec, std::initializer_list<SizeChange> ways, const Change& change) {
  for (size_t i = 0; i < spec.sizes.size(); ++i) {
    const SizeChange way = spec.kind->sizes[i].change;
    if (std::find(ways.begin(), ways.end(), way) != ways.end()) change(spec.sizes[i]);
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
    const SizeChange change = spec.kind->sizes[i].change;
    if (change == SizeChange::fixed || change == SizeChange::counts || size <= 0) continue;
    size = std::max(1, static_cast<int32_t>(std::lround(share * size)));
  }
  return result;
}

bool resize(PatternSpec& spec, double factor) {
  factor = std::clamp(factor, 0.25, 4.0);
  bool changed = false;
  int32_t largest = 0;
  const auto change = [&](int32_t& size) {
    if (size < 2) return;
    const auto next = static_cast<int32_t>(std::clamp(factor * size, 1.0, 1.0 * nominal_length));
    changed = changed || next != size;
    size = next;
  };
  for_sizes(spec, {SizeChange::grows}, [&](int32_t& size) { largest = std::max(largest, size); });
  for_sizes(spec, {SizeChange::grows, SizeChange::counts}, change);
  if (factor >= 1) return changed;
  for_sizes(spec, {SizeChange::shrinks}, [&](int32_t& size) {
    if (largest > 0 && size > largest) change(size);
  });
  return changed;
}

PatternSpec at_one_cost(const PatternSpec& spec) {
  PatternSpec result = spec;
  double total = 0;
  for_sizes(result, {SizeChange::grows}, [&](int32_t& size) { total += size; });
  if (total == 0) return result;
  for_sizes(result, {SizeChange::grows}, [&](int32_t& size) {
    size = static_cast<int32_t>(std::lround(one_cost / total * size));
  });
  return result;
}

std::vector<PatternSpec> shapes_of(const PatternSpec& spec) {
  std::vector<PatternSpec> shapes;
  if (spec.kind->shapes) {
    for (SizeValues& sizes : spec.kind->shapes(spec.sizes)) {
      shapes.push_back(at_one_cost({spec.kind, std::move(sizes)}));
    }
  } else {
    shapes.push_back(at_one_cost(spec));
  }
  return shapes;
}

PatternSpec between(const PatternSpec& low, const PatternSpec& high) {
  PatternSpec middle = low;
  for (size_t i = 0; i < low.sizes.size(); ++i) {
    const double product = static_cast<double>(low.sizes[i]) * static_cast<double>(high.sizes[i]);
    if (low.sizes[i] != high.sizes[i]) middle.sizes[i] = static_cast<int32_t>(std::sqrt(product));
  }
  return middle;
}

LineIndex resolve(const PatternSpec& spec, const Region& region, const Probe& probe) {
  return spec.kind->resolve(spec.sizes, region, probe);
}

}  // namespace kinora
