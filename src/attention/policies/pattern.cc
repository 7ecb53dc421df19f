#include "attention/policies/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "attention/search/grid_search.h"
#include "base/error.h"

namespace kinora {
namespace {

constexpr std::array<std::string_view, 7> names = {
    "dense", "a-shape", "tri-shape", "sf-fixed", "sf-strided", "vertical-slash", "grid"};

// Places of the `count` largest weights, the first `forced` among them whatever they weigh; sorted.
// The earlier of equal weights is taken.
std::vector<int32_t> strongest(std::span<const float> weights, int64_t count, int64_t forced) {
  const auto size = static_cast<int64_t>(weights.size());
  forced = std::min(forced, size);
  count = std::clamp(count, forced, size);
  std::vector<int32_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  const auto stronger = [&](int32_t a, int32_t b) {
    const float x = weights[static_cast<size_t>(a)];
    const float y = weights[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (count > forced && count < size) {
    std::nth_element(order.begin() + forced, order.begin() + count, order.end(), stronger);
  }
  order.resize(static_cast<size_t>(count));
  std::sort(order.begin(), order.end());
  return order;
}

LineIndex vertical_slash(const PatternSpec& spec, const Region& region, const Probe& probe) {
  LineIndex index;
  for (const int32_t place : strongest(probe.columns, spec.verticals, forced_columns)) {
    index.columns.push_back(region.row_coordinates[static_cast<size_t>(place)]);
  }
  index.slashes = strongest(probe.diagonals, spec.slashes, forced_diagonals);
  return index;
}

LineIndex grid(const PatternSpec& spec, const Region& region, const Probe& probe) {
  const GridLines lines{spec.horizontal, spec.vertical, spec.slash};
  // A line needs a few periods to be one.
  const auto high = static_cast<int32_t>(
      std::clamp<int64_t>(region.row_count() / 4, least_stride, spec.max_stride));
  const GridFit fit = spec.stride > 0 ? fit_grid(region, probe, spec.stride, lines)
                                      : search_grid(region, probe, least_stride, high, lines);
  LineIndex index;
  index.sink = spec.sink;
  index.stride = fit.stride;
  if (spec.vertical) index.vertical = fit.vertical;
  if (spec.slash) index.slash = fit.slash;
  if (spec.horizontal) index.horizontal = fit.vertical;
  // Queries of one phase lie a stride apart: a band around each would join up to everything.
  if (!spec.slash) index.local = spec.local > 0 ? spec.local : fit.stride;
  return index;
}

}  // namespace

std::string_view pattern_name(PatternKind kind) { return names[static_cast<size_t>(kind)]; }

PatternKind parse_pattern(std::string_view name) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return static_cast<PatternKind>(i);
  }
  throw Error(ErrorKind::usage, fmt::format("no attention pattern is called \"{}\"; there are {}",
                                            name, fmt::join(names, ", ")));
}

std::string to_string(const PatternSpec& spec) {
  const auto name = pattern_name(spec.kind);
  switch (spec.kind) {
    case PatternKind::dense:
      return std::string(name);
    case PatternKind::a_shape:
      return fmt::format("{} {}/{}", name, spec.sink, spec.local);
    case PatternKind::tri_shape:
      return fmt::format("{} {}/{}/{}", name, spec.sink, spec.local, spec.bottom);
    case PatternKind::sf_fixed:
    case PatternKind::sf_strided:
      return fmt::format("{} {}", name, spec.stride);
    case PatternKind::vertical_slash:
      return fmt::format("{} {}/{}", name, spec.verticals, spec.slashes);
    case PatternKind::grid: {
      const std::string stride = spec.stride > 0 ? fmt::format("stride {}", spec.stride)
                                                 : fmt::format("any stride to {}", spec.max_stride);
      return fmt::format("{} {} {}{}{}", name, stride, spec.horizontal ? "h" : "-",
                         spec.vertical ? "v" : "-", spec.slash ? "s" : "-");
    }
  }
  return "?";
}

void check(const PatternSpec& spec) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::bad_input,
                fmt::format("attention pattern {}: {}", pattern_name(spec.kind), what));
  };
  if (std::min({spec.sink, spec.local, spec.bottom, spec.verticals, spec.slashes}) < 0) {
    refuse("a size below zero");
  }
  if (spec.stride < 0) refuse(fmt::format("a stride of {}", spec.stride));
  if (spec.kind == PatternKind::sf_fixed || spec.kind == PatternKind::sf_strided) {
    if (spec.stride < 1) refuse("a stride of 0; it is the number of tokens a frame");
  }
  if (spec.kind == PatternKind::grid) {
    if (!spec.horizontal && !spec.vertical && !spec.slash) refuse("none of its lines is on");
    if (spec.max_stride < least_stride || spec.max_stride > 1024) {
      refuse(fmt::format("a largest stride of {}; it must be in {} … 1024", spec.max_stride,
                         least_stride));
    }
  }
}

PatternSpec scaled(const PatternSpec& spec, int64_t length) {
  if (length >= nominal_length) return spec;
  PatternSpec result = spec;
  const double share = static_cast<double>(length) / static_cast<double>(nominal_length);
  for (int32_t PatternSpec::*size : {&PatternSpec::sink, &PatternSpec::local, &PatternSpec::bottom,
                                     &PatternSpec::verticals, &PatternSpec::slashes}) {
    if (spec.*size > 0) {
      result.*size = std::max(1, static_cast<int32_t>(std::lround(share * (spec.*size))));
    }
  }
  return result;
}

bool needs_probe(const PatternSpec& spec) {
  return spec.kind == PatternKind::vertical_slash || spec.kind == PatternKind::grid;
}

LineIndex resolve(const PatternSpec& spec, const Region& region, const Probe& probe) {
  check(spec);
  LineIndex index;
  switch (spec.kind) {
    case PatternKind::dense:
      index.everything = true;
      break;
    case PatternKind::a_shape:
    case PatternKind::tri_shape:
      index.sink = spec.sink;
      index.local = spec.local;
      if (spec.kind == PatternKind::tri_shape) index.bottom = spec.bottom;
      break;
    case PatternKind::sf_fixed:
      index.segment = spec.stride;
      index.stride = spec.stride;
      index.vertical = 0;
      break;
    case PatternKind::sf_strided:
      index.local = spec.stride;
      index.stride = spec.stride;
      index.slash = 0;
      break;
    case PatternKind::vertical_slash:
      return vertical_slash(spec, region, probe);
    case PatternKind::grid:
      return grid(spec, region, probe);
  }
  return index;
}

}  // namespace kinora
