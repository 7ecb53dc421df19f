// Describes a line pattern with sizes of a type of its own, and makes a policy of it: the same
// pattern for every head. All that a new pattern needs is a file that calls pattern_policy, a test
// and a line of all.cc.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "attention/policies/pattern.h"
#include "attention/policies/pattern_attention.h"
#include "attention/policies/sparse_policy.h"

namespace kinora {

// Which fields of `Sizes` there are, as people set them and as tables store them.
template <typename Sizes>
class PatternSizes {
 public:
  using Field = std::variant<int32_t Sizes::*, bool Sizes::*>;

  // `initial`: the published sizes.
  explicit PatternSizes(Sizes initial) : settings_(initial) {}

  // A number that both know; '-' in its key is '_' in tables.
  PatternSizes& count(std::string_view key, int32_t Sizes::*field, SizeChange change,
                      std::string_view meaning) {
    settings_.count(key, field, {}, meaning);
    std::string stored(key);
    std::replace(stored.begin(), stored.end(), '-', '_');
    return store({.key = stored, .change = change}, field);
  }
  // What tables store; a person sets it by one of settings().
  PatternSizes& store(PatternSize size, Field field) {
    stored_.push_back(std::move(size));
    fields_.push_back(field);
    return *this;
  }
  Settings<Sizes>& settings() { return settings_; }
  const Settings<Sizes>& settings() const { return settings_; }
  const std::vector<PatternSize>& stored() const { return stored_; }

  SizeValues pack(const Sizes& sizes) const {
    SizeValues values;
    for (const Field& field : fields_) {
      values.push_back(
          std::visit([&](auto member) { return static_cast<int32_t>(sizes.*member); }, field));
    }
    return values;
  }
  Sizes unpack(const SizeValues& values) const {
    Sizes sizes;
    for (size_t i = 0; i < fields_.size(); ++i) {
      std::visit(
          [&](auto member) {
            sizes.*member = static_cast<std::decay_t<decltype(sizes.*member)>>(values.at(i));
          },
          fields_[i]);
    }
    return sizes;
  }

 private:
  Settings<Sizes> settings_;
  std::vector<PatternSize> stored_;
  std::vector<Field> fields_;
};

// The functions of PatternKind, with sizes in their own type. Optional ones are absent by default.
template <typename Sizes>
struct LinePattern {
  std::string name;
  std::string summary;
  PatternSizes<Sizes> sizes;
  std::function<LineIndex(const Sizes&, const Region&, const Probe&)> resolve;
  std::function<std::string(const Sizes&)> text;
  bool needs_probe = false;
  std::function<StrongestLines(const Sizes&)> strongest{};
  std::function<GridLook(const Sizes&)> look{};
  std::function<std::string(const Sizes&)> problem{};
  std::function<void(Sizes&, int32_t frame_stride)> follow_frames{};  // sizes that were not given
  std::function<std::vector<Sizes>(const Sizes&)> shapes{};
  std::function<std::vector<Sizes>(int32_t frame_stride)> candidates{};
};

template <typename Sizes>
std::shared_ptr<const PatternKind> pattern_kind(const LinePattern<Sizes>& pattern) {
  auto kind = std::make_shared<PatternKind>();
  kind->name = pattern.name;
  kind->sizes = pattern.sizes.stored();
  kind->needs_probe = pattern.needs_probe;
  kind->resolve = [pattern](const SizeValues& values, const Region& region, const Probe& probe) {
    return pattern.resolve(pattern.sizes.unpack(values), region, probe);
  };
  kind->text = [pattern](const SizeValues& values) {
    return pattern.text(pattern.sizes.unpack(values));
  };
  if (pattern.strongest) {
    kind->strongest = [pattern](const SizeValues& values) {
      return pattern.strongest(pattern.sizes.unpack(values));
    };
  }
  if (pattern.look) {
    kind->look = [pattern](const SizeValues& values) {
      return pattern.look(pattern.sizes.unpack(values));
    };
  }
  if (pattern.problem) {
    kind->problem = [pattern](const SizeValues& values) {
      return pattern.problem(pattern.sizes.unpack(values));
    };
  }
  if (pattern.shapes) {
    kind->shapes = [pattern](const SizeValues& values) {
      std::vector<SizeValues> packed;
      for (const Sizes& sizes : pattern.shapes(pattern.sizes.unpack(values))) {
        packed.push_back(pattern.sizes.pack(sizes));
      }
      return packed;
    };
  }
  if (pattern.candidates) {
    kind->candidates = [pattern](int32_t frame_stride) {
      std::vector<SizeValues> packed;
      for (const Sizes& sizes : pattern.candidates(frame_stride)) {
        packed.push_back(pattern.sizes.pack(sizes));
      }
      return packed;
    };
  }
  kind->read = [pattern](std::span<const GivenSetting> given, int32_t frame_stride) {
    Sizes sizes = pattern.sizes.settings().read(given);
    if (pattern.follow_frames) pattern.follow_frames(sizes, frame_stride);
    return pattern.sizes.pack(sizes);
  };
  return kind;
}

template <typename Sizes>
AttentionPolicy pattern_policy(const LinePattern<Sizes>& pattern) {
  struct Chosen {
    Sizes sizes;
    Boundary boundary = Boundary::none;
  };
  const auto kind = pattern_kind(pattern);
  Settings<Chosen> settings(Chosen{pattern.sizes.settings().initial()});
  settings.include(pattern.sizes.settings(), &Chosen::sizes)
      .choice("boundary", &Chosen::boundary, boundary_words(),
              "the pattern starts anew where the modality of keys, of queries or of both changes");
  AttentionPolicy policy = sparse_policy(
      pattern.name, pattern.summary, settings,
      [pattern, kind](Chosen chosen, const AttentionOptions& options) {
        if (pattern.follow_frames) pattern.follow_frames(chosen.sizes, options.frame_stride);
        HeadChoice choice;
        choice.boundary = chosen.boundary;
        choice.patterns.push_back({{}, {}, make_pattern(*kind, pattern.sizes.pack(chosen.sizes))});
        return std::make_unique<PatternAttention>(kind->name, choice, options.sparse);
      });
  policy.pattern = kind;
  policy.runs_on_gpu = true;
  return policy;
}

}  // namespace kinora
