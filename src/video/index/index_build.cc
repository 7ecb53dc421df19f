// The pure half of the index: from the facts about packets to ranks, times and starts.
#include <algorithm>
#include <cmath>

#include "video/index/index.h"

extern "C" {
#include <libavutil/avutil.h>
}

namespace kinora {

namespace {

constexpr int64_t unknown = AV_NOPTS_VALUE;
constexpr size_t reorder_window = 32;  // no codec holds back more pictures
constexpr int max_reorder_depth = 16;

// Files may claim any time. Beyond this one it is no time, and sums of such stay below an overflow.
constexpr int64_t most_ticks = int64_t{1} << 60;

int64_t sane(int64_t ticks) { return ticks > most_ticks || ticks < -most_ticks ? unknown : ticks; }

int64_t add_ticks(int64_t a, int64_t b) { return std::clamp(a + b, -most_ticks, most_ticks); }

int64_t multiply_ticks(int64_t ticks, int64_t count) {
  int64_t product = 0;
  if (__builtin_mul_overflow(ticks, count, &product)) return most_ticks;
  return std::clamp(product, -most_ticks, most_ticks);
}

bool gives_frame(const PacketFacts& fact) {
  return fact.traits.shown && !fact.discarded && !fact.second_field;
}

// Length of a frame in ticks, for the places where nothing better is known.
int64_t typical_ticks(std::span<const PacketFacts> facts, TimeBase base, double rate) {
  for (const PacketFacts& fact : facts) {
    if (fact.duration > 0) return std::min(fact.duration, most_ticks);
  }
  const double ticks = static_cast<double>(base.denominator) /
                       (static_cast<double>(base.numerator) * (rate > 0 ? rate : 25));
  return std::max<int64_t>(1, std::llround(std::min(ticks, 1e15)));
}

// The first time that is presented of the part of a file that begins with packet `begin`. Open GOPs
// present pictures before the keyframe that they follow.
int64_t first_presented(std::span<const PacketFacts> facts, size_t begin) {
  int64_t first = unknown;
  int64_t last = unknown;
  for (size_t i = begin; i < std::min(facts.size(), begin + reorder_window); ++i) {
    const int64_t pts = sane(facts[i].pts), dts = sane(facts[i].dts);
    if (dts != unknown && last != unknown && dts < last) break;  // another part
    if (dts != unknown) last = dts;
    if (pts != unknown && gives_frame(facts[i]) && (first == unknown || pts < first)) first = pts;
  }
  return first;
}

// Presentation times as given, except that a clock that jumps back (recordings joined end to end)
// goes on instead, so that order in time stays order in the file: the first picture of the part
// behind the jump follows the last one before it.
std::vector<int64_t> continuous_times(std::span<const PacketFacts> facts, TimeBase base,
                                      int64_t typical, LoopGuard& guard) {
  const int64_t two_seconds = 2 * base.denominator / std::max<int64_t>(1, base.numerator);
  std::vector<int64_t> times(facts.size());
  int64_t shift = 0;
  int64_t last = unknown;
  int64_t highest = unknown;
  for (size_t i = 0; i < facts.size(); ++i) {
    guard.turn();
    const PacketFacts& fact = facts[i];
    const int64_t pts = sane(fact.pts), dts = sane(fact.dts);
    const int64_t clock = dts != unknown ? dts : pts;
    if (clock != unknown) {
      const bool back = last != unknown && clock < last;
      if (back && (fact.traits.start || last - clock > two_seconds)) {
        const int64_t first = first_presented(facts, i);
        const int64_t begin = highest == unknown ? 0 : add_ticks(highest, typical);
        shift = add_ticks(begin, first == unknown ? -clock : -first);
      }
      last = clock;
    }
    times[i] = pts == unknown ? unknown : add_ticks(pts, shift);
    if (times[i] != unknown) highest = std::max(highest, times[i]);
  }
  return times;
}

// Presentation order of the shown packets from the bitstream alone, for files without times.
std::vector<int32_t> structural_order(std::span<const PacketFacts> facts, bool has_order_numbers) {
  std::vector<int32_t> order;
  order.reserve(facts.size());
  if (has_order_numbers) {
    std::vector<int32_t> period(facts.size());
    for (size_t i = 0; i < facts.size(); ++i) {
      period[i] = (i > 0 ? period[i - 1] : 0) + (facts[i].traits.resets_order ? 1 : 0);
      if (gives_frame(facts[i])) order.push_back(static_cast<int32_t>(i));
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      const size_t left = static_cast<size_t>(a);
      const size_t right = static_cast<size_t>(b);
      if (period[left] != period[right]) return period[left] < period[right];
      return facts[left].order < facts[right].order;
    });
    return order;
  }
  // A B picture is presented at once, any other when the next such one has been decoded.
  int32_t held = -1;
  for (size_t i = 0; i < facts.size(); ++i) {
    if (!gives_frame(facts[i])) continue;
    const int32_t packet = static_cast<int32_t>(i);
    if (facts[i].traits.bidirectional) {
      order.push_back(packet);
    } else {
      if (held >= 0) order.push_back(held);
      held = packet;
    }
  }
  if (held >= 0) order.push_back(held);
  return order;
}

// Fills the times of frames in order of presentation: known ones stay where they ascend, others lie
// evenly between their neighbours; without any, decoding times in order; without those, the rate.
std::vector<int64_t> fill_times(std::span<const PacketFacts> facts, std::span<const int32_t> order,
                                std::vector<int64_t> known, int64_t typical) {
  std::vector<int64_t> ticks(order.size(), unknown);
  int64_t highest = unknown;
  size_t anchors = 0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const int64_t time = known[static_cast<size_t>(order[rank])];
    if (time == unknown || (highest != unknown && time <= highest)) continue;
    ticks[rank] = highest = time;
    ++anchors;
  }
  if (anchors * 4 < order.size()) {
    std::vector<int64_t> clocks;
    for (const PacketFacts& fact : facts) {
      if (gives_frame(fact) && sane(fact.dts) != unknown) clocks.push_back(fact.dts);
    }
    if (clocks.size() == order.size()) {
      std::sort(clocks.begin(), clocks.end());
      return clocks;
    }
    if (anchors == 0) ticks[0] = 0;
  }
  size_t first = 0;
  while (ticks[first] == unknown) ++first;
  for (size_t rank = first; rank-- > 0;) ticks[rank] = add_ticks(ticks[rank + 1], -typical);
  for (size_t rank = first; rank + 1 < order.size();) {
    size_t next = rank + 1;
    while (next < order.size() && ticks[next] == unknown) ++next;
    const int64_t gap = static_cast<int64_t>(next - rank);
    for (size_t i = rank + 1; i < next; ++i) {
      const int64_t steps = static_cast<int64_t>(i - rank);
      ticks[i] = next < order.size() ? ticks[rank] + (ticks[next] - ticks[rank]) / gap * steps
                                     : add_ticks(ticks[rank], multiply_ticks(typical, steps));
    }
    rank = next;
  }
  return ticks;
}

// For every shown packet the keyframe to begin at: the last one before it that is not presented
// after it, unless the bitstream says that the picture needs nothing before its own keyframe.
// A keyframe that is not presented before a later one is never asked for again, so those that are
// left ascend in time.
void find_starts(std::span<const PacketFacts> facts, VideoIndex& index, LoopGuard& guard) {
  std::vector<int32_t> keys;
  const auto presented_after = [&](int64_t pts, int32_t key) {
    return pts < index.packet(key).pts;
  };
  for (size_t i = 0; i < index.packets.size(); ++i) {
    guard.turn();
    IndexedPacket& packet = index.packets[i];
    if (packet.key) {
      while (!keys.empty() && index.packet(keys.back()).pts >= packet.pts) {
        guard.turn();
        keys.pop_back();
      }
      keys.push_back(static_cast<int32_t>(i));
    }
    packet.start = -1;
    if (keys.empty()) continue;
    if (facts[i].traits.leading == PictureTraits::Leading::with_keyframe) {
      packet.start = keys.back();
      continue;
    }
    const auto later = std::upper_bound(keys.begin(), keys.end(), packet.pts, presented_after);
    if (later != keys.begin()) packet.start = *(later - 1);
  }
}

int find_reorder_depth(const VideoIndex& index, LoopGuard& guard) {
  std::vector<int32_t> recent;
  int depth = 0;
  for (const IndexedPacket& packet : index.packets) {
    guard.turn();
    if (packet.frame < 0) continue;
    const auto later = std::count_if(recent.begin(), recent.end(),
                                     [&](int32_t rank) { return rank > packet.frame; });
    depth = std::max(depth, static_cast<int>(later));
    if (recent.size() >= reorder_window) recent.erase(recent.begin());
    recent.push_back(packet.frame);
  }
  return std::min(depth, max_reorder_depth);
}

void find_duration(std::span<const PacketFacts> facts, TimeBase base, double rate, int64_t typical,
                   VideoIndex& index) {
  const size_t last_packet = static_cast<size_t>(index.frame_packet.back());
  int64_t last_ticks = facts[last_packet].duration;
  if (last_ticks <= 0) last_ticks = typical;
  const double last = base.seconds(last_ticks);
  // A duration that is far from all the others is a mistake of the file.
  const double mean =
      index.frames() > 1 ? index.times.back() / static_cast<double>(index.frames() - 1) : last;
  index.duration = index.times.back() + (last > 100 * mean && mean > 0 ? mean : last);
  const double frames = static_cast<double>(index.frames());
  index.fps = index.duration > 0 ? frames / index.duration : 0;
  if (rate > 0 && std::abs(rate * index.duration - frames) <= 1.5) index.fps = rate;
}

}  // namespace

VideoIndex build_index(std::span<const PacketFacts> facts, TimeBase base, double rate,
                       bool has_order_numbers, LoopGuard& guard) {
  VideoIndex index;
  const int64_t typical = typical_ticks(facts, base, rate);
  uint8_t top_layer = 0;
  for (const PacketFacts& fact : facts) top_layer = std::max(top_layer, fact.traits.layer);

  std::vector<int64_t> times = continuous_times(facts, base, typical, guard);
  for (size_t i = 0; i < facts.size(); ++i) {
    if (gives_frame(facts[i]) && times[i] == unknown) index.repaired_times = true;
  }
  std::vector<int32_t> order;
  if (index.repaired_times) {
    order = structural_order(facts, has_order_numbers);
    const std::vector<int64_t> filled = fill_times(facts, order, times, typical);
    for (size_t rank = 0; rank < order.size(); ++rank) {
      times[static_cast<size_t>(order[rank])] = filled[rank];
    }
  } else {
    for (size_t i = 0; i < facts.size(); ++i) {
      if (gives_frame(facts[i])) order.push_back(static_cast<int32_t>(i));
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return times[static_cast<size_t>(a)] < times[static_cast<size_t>(b)];
    });
  }

  index.packets.resize(facts.size());
  for (size_t i = 0; i < facts.size(); ++i) {
    guard.turn();
    const PacketFacts& fact = facts[i];
    IndexedPacket& packet = index.packets[i];
    const int64_t before = i > 0 ? index.packets[i - 1].pts : 0;
    packet.pts = times[i] != unknown ? times[i] : before;
    packet.raw_pts = fact.pts;
    packet.raw_dts = fact.dts;
    packet.position = fact.position;
    packet.size = fact.size;
    packet.key = fact.traits.start;
    packet.disposable = fact.traits.disposable && fact.traits.layer == top_layer;
  }
  index.frame_packet = order;
  if (order.empty()) return index;
  const int64_t first = index.packet(order.front()).pts;
  index.times.reserve(order.size());
  for (size_t rank = 0; rank < order.size(); ++rank) {
    IndexedPacket& packet = index.packets[static_cast<size_t>(order[rank])];
    packet.frame = static_cast<int32_t>(rank);
    index.times.push_back(base.seconds(packet.pts - first));
  }
  index.start_offset = base.seconds(first);
  find_starts(facts, index, guard);
  index.reorder_depth = find_reorder_depth(index, guard);
  find_duration(facts, base, rate, typical, index);
  return index;
}

VideoIndex build_index(std::span<const PacketFacts> facts, TimeBase base, double rate,
                       bool has_order_numbers) {
  LoopGuard guard;
  return build_index(facts, base, rate, has_order_numbers, guard);
}

int64_t uncertain_packets(const VideoIndex& index) {
  int64_t count = 0;
  for (size_t i = 0; i < index.packets.size(); ++i) {
    const IndexedPacket& packet = index.packets[i];
    if (packet.frame >= 0 && packet.start < 0) count = static_cast<int64_t>(i) + 1;
  }
  return count;
}

}  // namespace kinora
