#include "attention/cpu/bundle.h"

#include <algorithm>
#include <tuple>

namespace kinora::attention_cpu {
namespace {

// In products of one row with one key and back: what loading a key costs, and what a stretch costs
// a row beyond its keys (groups of keys that it shares with others, and the output once more).
constexpr int64_t load_cost = 16;
constexpr int64_t stretch_cost = 8;

// A segment as an interval of places on a line of memory: rows of one stride and phase, or the
// plan's list of gathered rows.
struct Interval {
  bool gathered = false;
  int64_t stride = 1;
  int64_t phase = 0;
  int64_t begin = 0;
  int64_t end = 0;
  size_t member = 0;
  bool masked = false;

  auto line() const { return std::tie(gathered, stride, phase); }
};

Interval interval_of(const Segment& segment, size_t member) {
  const int64_t stride = std::max(segment.stride, 1);
  const int64_t begin = segment.begin / stride;
  return {segment.gathered(),    stride, segment.begin % stride, begin,
          begin + segment.count, member, segment.masked};
}

}  // namespace

std::optional<Bundle> bundle_tiles(const Plan& plan, int64_t begin, int64_t end) {
  std::vector<Interval> intervals;
  Bundle bundle;
  bundle.members.resize(static_cast<size_t>(end - begin));
  int64_t keys = 0;
  for (int64_t t = begin; t < end; ++t) {
    const Tile& tile = plan.tiles[static_cast<size_t>(t)];
    const auto member = static_cast<size_t>(t - begin);
    bundle.members[member].tile = t;
    for (int64_t i = tile.segment_begin; i < tile.segment_end; ++i) {
      const Segment& segment = plan.segments[static_cast<size_t>(i)];
      if (segment.count == 0) continue;
      intervals.push_back(interval_of(segment, member));
      bundle.members[member].keys += segment.count;
      bundle.masked |= segment.masked;
    }
    keys += bundle.members[member].keys;
  }
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) {
    return std::tuple(a.line(), a.begin, a.member) < std::tuple(b.line(), b.begin, b.member);
  });
  const Interval* first = nullptr;  // of those that make up the last segment of the list
  int64_t last = 0;                 // where that ends on its line
  for (const Interval& interval : intervals) {
    if (first == nullptr || interval.line() != first->line() || interval.begin > last) {
      bundle.list.push_back(
          {interval.gathered ? interval.begin : interval.phase + interval.begin * interval.stride,
           0, interval.gathered ? 0 : static_cast<int32_t>(interval.stride)});
      first = &interval;
      last = interval.begin;
    }
    const int64_t place = bundle.length - (last - interval.begin);
    if (interval.end > last) {
      bundle.length += interval.end - last;
      bundle.list.back().count += interval.end - last;
      last = interval.end;
    }
    Bundle::Member& member = bundle.members[interval.member];
    const int64_t stop = place + interval.end - interval.begin;
    if (!member.stretches.empty()) {
      Bundle::Stretch& before = member.stretches.back();
      if (place < before.end) return std::nullopt;
      if (place == before.end && interval.masked == before.masked) {
        before.end = stop;
        continue;
      }
    }
    member.stretches.push_back({place, stop, interval.masked});
  }
  int64_t gain = (keys - bundle.length) * load_cost;
  for (const Bundle::Member& member : bundle.members) {
    gain -= std::ssize(member.stretches) * stretch_cost *
            rows_in_bundle(plan.tiles[static_cast<size_t>(member.tile)]);
  }
  if (gain <= 0) return std::nullopt;
  return bundle;
}

}  // namespace kinora::attention_cpu
