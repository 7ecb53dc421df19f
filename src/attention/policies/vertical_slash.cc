// MInference's vertical-slash: the strongest columns and diagonals of the last queries.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>

#include "attention/policies/pattern_policy.h"

namespace kinora {
namespace {

constexpr int32_t forced_columns = 30;     // the first are always read,
constexpr int32_t forced_diagonals = 100;  // and so are the nearest

struct VerticalSlash {
  int32_t verticals = 1000;
  int32_t slashes = 6144;
};

// Places of the `count` largest weights, the first `forced` among them whatever they weigh; sorted.
// The earlier of equal weights is taken.
std::vector<int32_t> strongest(std::span<const float> weights, int64_t count, int64_t forced) {
  const auto size = static_cast<int64_t>(weights.size());
  forced = std::min(forced, size);
  count = std::clamp(count, forced, size);
  std::vector<int32_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.begin() + forced, 0);
  if (count == forced) return order;
  // Weights are not negative, so that their bits are in their order. The first bits say where the
  // last one that is taken lies; only weights that share them are put in order.
  constexpr int dropped_bits = 20;
  const auto bits = [&](int64_t i) {
    return std::bit_cast<uint32_t>(weights[static_cast<size_t>(i)] + 0.0f);  // no −0
  };
  std::vector<int32_t> held(size_t{1} << (32 - dropped_bits));
  for (int64_t i = forced; i < size; ++i) ++held[bits(i) >> dropped_bits];
  int64_t wanted = count - forced;
  size_t bucket = held.size() - 1;
  for (; held[bucket] < wanted; --bucket) wanted -= held[bucket];
  std::vector<uint32_t> close;
  for (int64_t i = forced; i < size; ++i) {
    if (bits(i) >> dropped_bits == bucket) close.push_back(bits(i));
  }
  const auto last = close.begin() + wanted - 1;
  std::nth_element(close.begin(), last, close.end(), std::greater<>());
  const uint32_t least = *last;
  // Of those that equal the last one, only as many as places are left.
  wanted -= std::count_if(close.begin(), last, [&](uint32_t other) { return other > least; });
  auto to = order.begin() + forced;
  for (int64_t i = forced; i < size; ++i) {
    if (bits(i) > least || (bits(i) == least && wanted-- > 0)) *to++ = static_cast<int32_t>(i);
  }
  return order;
}

StrongestLines wanted_lines(const VerticalSlash& sizes) {
  return {sizes.verticals, forced_columns, sizes.slashes, forced_diagonals};
}

LineIndex resolve_lines(const VerticalSlash& sizes, const Region& region, const Probe& probe) {
  const StrongestLines wanted = wanted_lines(sizes);
  LineIndex index;
  for (const int32_t place : strongest(probe.columns, wanted.columns, wanted.forced_columns)) {
    index.columns.push_back(region.row_coordinates[static_cast<size_t>(place)]);
  }
  index.slashes = strongest(probe.diagonals, wanted.slashes, wanted.forced_slashes);
  return index;
}

}  // namespace

AttentionPolicy vertical_slash_policy() {
  PatternSizes<VerticalSlash> sizes({});
  sizes
      .count("verticals", &VerticalSlash::verticals, SizeChange::grows,
             "columns; the first 30 are always among them")
      .count("slashes", &VerticalSlash::slashes, SizeChange::grows,
             "diagonals; the nearest 100 are always among them");
  return pattern_policy(LinePattern<VerticalSlash>{
      .name = "vertical-slash",
      .summary = "columns and diagonals that the last 64 tokens find strongest (MInference)",
      .sizes = sizes,
      .resolve = resolve_lines,
      .text =
          [](const VerticalSlash& lines) {
            return fmt::format("{}/{}", lines.verticals, lines.slashes);
          },
      .needs_probe = true,
      .strongest = wanted_lines,
      .candidates = [](int32_t) -> std::vector<VerticalSlash> {
        return {{1000, 1024}, {1000, 2048}, {2000, 2048}, {1000, 3096}, {2000, 3096},
                {1000, 4096}, {2000, 4096}, {3500, 200},  {1000, 2500}};
      }});
}

}  // namespace kinora
