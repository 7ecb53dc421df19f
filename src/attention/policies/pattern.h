// What a head's attention looks like, as people write it down: a kind and a few sizes. Resolving it
// against an input gives the line index that a plan is built from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "attention/plan/line_plan.h"
#include "attention/search/probe.h"

namespace kinora {

enum class PatternKind : uint8_t {
  dense,
  a_shape,         // sink + local window
  tri_shape,       // A-shape whose last queries read everything
  sf_fixed,        // SparseTransformer: own segment + the first key of every segment
  sf_strided,      // SparseTransformer: local window + every stride-th key back
  vertical_slash,  // MInference: the strongest columns and diagonals of the last queries
  grid             // MMInference: evenly spaced lines, stride and phase found online
};

std::string_view pattern_name(PatternKind kind);   // "a-shape", …
PatternKind parse_pattern(std::string_view name);  // throws a usage error that lists them

// Sizes as published, for inputs of `nominal_length` tokens and more.
struct PatternSpec {
  PatternKind kind = PatternKind::dense;
  int32_t sink = 0;
  int32_t local = 0;
  int32_t bottom = 0;
  int32_t verticals = 0;  // vertical-slash: columns
  int32_t slashes = 0;    // vertical-slash: diagonals
  int32_t stride = 0;     // grid: 0 searches up to max_stride; SparseTransformer: tokens a frame
  int32_t max_stride = 1024;
  bool horizontal = false;  // grid lines
  bool vertical = false;
  bool slash = false;

  bool operator==(const PatternSpec&) const = default;
};

constexpr int64_t nominal_length = 25'000;
constexpr int32_t forced_columns = 30;     // vertical-slash always keeps the first columns
constexpr int32_t forced_diagonals = 100;  // and the nearest diagonals
constexpr int32_t least_stride = 8;        // of a search

// "vertical-slash 1000/2048", "grid stride 64 hv-", for reports.
std::string to_string(const PatternSpec& spec);

// Throws a bad_input error: a negative size, a grid without lines, a stride of 0 where none is
// searched, a largest stride below the least.
void check(const PatternSpec& spec);

// The same pattern for an input of `length` rows: sinks, windows and counts in proportion below the
// nominal length, strides as they are.
PatternSpec scaled(const PatternSpec& spec, int64_t length);

// Whether resolving needs a probe of the last queries.
bool needs_probe(const PatternSpec& spec);

// The index of a pattern in a region; sizes are taken as they are. `probe` may be empty for
// patterns that need none.
LineIndex resolve(const PatternSpec& spec, const Region& region, const Probe& probe);

}  // namespace kinora
