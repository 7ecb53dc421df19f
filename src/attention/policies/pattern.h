// What a head's attention looks like, as people write it down: a kind and a few sizes. Resolving it
// against an input gives the line index that a plan is built from. Each kind is described in a file
// of its own (a_shape.cc, grid.cc, …) with pattern_policy.h; tables (head_table.h) and the search
// (search.h) know kinds only by what is here.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/plan/line_plan.h"
#include "attention/search/probe.h"
#include "base/policy/settings.h"

namespace kinora {

// How a size follows the input and the search.
enum class SizeChange : uint8_t {
  fixed,
  shrinks,  // in proportion, for inputs below the nominal length
  grows,    // the same, and the search makes it larger or smaller to use its budget
  counts,   // for the search as above; the length of the input does not matter
};

// One size of a kind, as tables store it.
struct PatternSize {
  std::string key;
  SizeChange change = SizeChange::fixed;
  bool flag = false;   // true or false, kept as 1 or 0
  int32_t absent = 0;  // what it is in a table that leaves it out
  int32_t least = 0;   // where a table does not
};

using SizeValues = std::vector<int32_t>;  // one for each PatternSize of a kind

struct PatternSpec;

struct PatternKind {
  std::string name;
  std::vector<PatternSize> sizes{};
  bool needs_probe = false;  // resolving looks at the last queries
  // The index in a region; sizes are taken as they are. The probe may be empty where none is
  // needed.
  std::function<LineIndex(const SizeValues&, const Region&, const Probe&)> resolve{};
  // What resolving takes from the probe, where it is nothing but the strongest lines: a GPU then
  // finds them itself. Absent: something else, or no probe.
  std::function<StrongestLines(const SizeValues&)> strongest{};
  // The same where it is nothing but a grid.
  std::function<GridLook(const SizeValues&)> look{};
  std::function<std::string(const SizeValues&)> text{};     // of the sizes, for reports
  std::function<std::string(const SizeValues&)> problem{};  // why sizes make no sense; empty: none
  // The ways in which a pattern can use a budget; empty: by its sizes as they are.
  std::function<std::vector<SizeValues>(const SizeValues&)> shapes{};
  // What the search tries (table 3 of MMInference's paper); empty: nothing.
  std::function<std::vector<SizeValues>(int32_t frame_stride)> candidates{};
  // Sizes as a person gives them behind the name.
  std::function<SizeValues(std::span<const GivenSetting>, int32_t frame_stride)> read{};
};

// Every query reads everything.
const PatternKind& dense_pattern();

// Sizes are as published, for inputs of `nominal_length` tokens and more.
struct PatternSpec {
  const PatternKind* kind = &dense_pattern();
  SizeValues sizes{};

  bool operator==(const PatternSpec&) const = default;
};

constexpr int64_t nominal_length = 25'000;

// All kinds, from the list of policies (all.h).
std::vector<const PatternKind*> pattern_kinds();
// Throws a usage error that lists them.
const PatternKind& find_pattern(std::string_view name);
// Throws a usage error when the sizes make no sense.
PatternSpec make_pattern(const PatternKind& kind, SizeValues sizes);
// "a-shape:sink=128,local=1024". Throws a usage error.
PatternSpec parse_pattern(std::string_view text, int32_t frame_stride = 64);

// "vertical-slash 1000/2048", "grid stride 64 hv-", for reports.
std::string to_string(const PatternSpec& spec);

// The same pattern for an input of `length` rows: sinks, windows and counts in proportion below the
// nominal length, strides as they are.
PatternSpec scaled(const PatternSpec& spec, int64_t length);

// Makes a pattern cost about `factor` times as much, between a quarter and four times; false when
// it has no sizes to change. Sizes of 0 and 1 stay as they are, and none falls below 1. A sink is
// cut where it is larger than what grows.
bool resize(PatternSpec& spec, double factor);

// A pattern whose sizes lie between those of two of its kind; `low` where there is none.
PatternSpec between(const PatternSpec& low, const PatternSpec& high);

// The same shape with the sum of its growing sizes set to one common value, so that shapes can be
// compared.
PatternSpec at_one_cost(const PatternSpec& spec);
// The shapes of a pattern, each at that cost.
std::vector<PatternSpec> shapes_of(const PatternSpec& spec);

LineIndex resolve(const PatternSpec& spec, const Region& region, const Probe& probe);

}  // namespace kinora
