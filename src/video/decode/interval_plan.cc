#include "video/decode/interval_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"

namespace kinora {

namespace {

// A cut within an open GOP makes both neighbours decode what lies across it. It is worth that when
// the interval before it is this many times as long.
constexpr int64_t worthwhile_ratio = 16;

// By so much of a share an interval may outlast the rest before it gets another thread: intervals
// that began together are never quite equal.
constexpr double share_tolerance = 0.1;

// Of the cores, for the first group; the others begin with what comes after it.
constexpr double urgent_share = 0.5;

void sort_targets(KeyframeInterval& interval) {
  std::sort(interval.targets.begin(), interval.targets.end(),
            [](const Target& a, const Target& b) { return a.packet < b.packet; });
}

// How many packets, and bytes of them, stand before each one that decoding never leaves out.
class NeededBefore {
 public:
  explicit NeededBefore(const VideoIndex& index) : index_(index), sums_(index.packets.size() + 1) {
    for (size_t i = 0; i < index.packets.size(); ++i) {
      const IndexedPacket& packet = index.packets[i];
      sums_[i + 1] = sums_[i];
      if (packet.disposable) continue;
      ++sums_[i + 1].packets;
      sums_[i + 1].bytes += packet.size;
    }
  }

  // Adds what `interval` needs from packet `begin` on to `total`.
  void add(const KeyframeInterval& interval, int64_t begin, KeyframeInterval& total) const {
    if (begin > interval.end) return;
    const Sum& low = sums_[static_cast<size_t>(begin)];
    const Sum& high = sums_[static_cast<size_t>(interval.end) + 1];
    total.packets += high.packets - low.packets;
    total.bytes += high.bytes - low.bytes;
    for (const Target& target : interval.targets) {
      if (target.packet < begin || !index_.packet(target.packet).disposable) continue;
      ++total.packets;
      total.bytes += index_.packet(target.packet).size;
    }
  }

 private:
  struct Sum {
    int64_t packets = 0;
    int64_t bytes = 0;
  };
  const VideoIndex& index_;
  std::vector<Sum> sums_;
};

// With all workers busy, the intervals before this one are decoded at time `before / workers`, in
// packets of one worker; to end when they and its own share are, it begins its own length earlier.
// What belongs to the first group cannot wait for that.
void set_beginnings(ReadPlan& plan) {
  int64_t before = 0;
  for (size_t i = 0; i < plan.intervals.size(); ++i) {
    KeyframeInterval& interval = plan.intervals[i];
    const int64_t earlier = (plan.workers - 1) * interval.packets;
    interval.begin_at = i < plan.urgent ? 0 : std::max<int64_t>(0, before - earlier);
    before += interval.packets;
  }
}

std::map<int64_t, KeyframeInterval> intervals_by_start(const VideoIndex& index,
                                                       std::span<const SampledFrame> samples) {
  std::map<int64_t, KeyframeInterval> intervals;
  for (size_t i = 0; i < samples.size(); ++i) {
    const int64_t frame = samples[i].index;
    const bool ordered = i == 0 || samples[i - 1].index <= frame;
    if (frame < 0 || frame >= index.frames() || !ordered) {
      throw Error(ErrorKind::usage,
                  fmt::format("sample {} is frame {}: samples must ascend within 0 to {}", i, frame,
                              index.frames() - 1));
    }
    const int64_t packet = index.frame_packet[static_cast<size_t>(frame)];
    const int64_t start = std::max<int32_t>(index.packet(packet).start, 0);
    auto [place, fresh] = intervals.try_emplace(start);
    KeyframeInterval& interval = place->second;
    if (fresh) interval.begin = interval.end = start;
    interval.end = std::max(interval.end, packet);
    if (!interval.targets.empty() && interval.targets.back().packet == packet) {
      ++interval.targets.back().count;
    } else {
      interval.targets.push_back({packet, static_cast<int64_t>(i), 1});
    }
  }
  return intervals;
}

}  // namespace

bool KeyframeInterval::wants(int64_t packet) const {
  const auto place =
      std::lower_bound(targets.begin(), targets.end(), packet,
                       [](const Target& target, int64_t wanted) { return target.packet < wanted; });
  return place != targets.end() && place->packet == packet;
}

ReadPlan make_plan(const VideoIndex& index, std::span<const SampledFrame> samples, int threads,
                   int64_t frames_per_group) {
  ReadPlan plan;
  const NeededBefore needed(index);
  for (auto& [start, interval] : intervals_by_start(index, samples)) {
    sort_targets(interval);
    needed.add(interval, interval.begin, interval);
    const bool overlaps = !plan.intervals.empty() && plan.intervals.back().end >= interval.begin;
    if (overlaps) {
      KeyframeInterval& before = plan.intervals.back();
      const int64_t twice = before.end - interval.begin + 1;
      if (threads == 1 || before.packets < worthwhile_ratio * twice) {
        needed.add(interval, before.end + 1, before);
        before.end = std::max(before.end, interval.end);
        before.targets.insert(before.targets.end(), interval.targets.begin(),
                              interval.targets.end());
        continue;
      }
    }
    plan.intervals.push_back(std::move(interval));
  }
  for (KeyframeInterval& interval : plan.intervals) {
    sort_targets(interval);
    plan.packets += interval.packets;
    for (const Target& target : interval.targets) {
      interval.samples_end = std::max(interval.samples_end, target.first + target.count);
    }
    const auto early = [&](const Target& target) { return target.first < frames_per_group; };
    if (std::any_of(interval.targets.begin(), interval.targets.end(), early)) {
      ++plan.urgent;
      plan.urgent_packets += interval.packets;
    }
  }
  plan.threads = std::max(threads, 1);
  const int count = static_cast<int>(std::min<size_t>(plan.intervals.size(), 1u << 20));
  plan.workers = std::clamp(count, 1, plan.threads);
  set_beginnings(plan);
  return plan;
}

int64_t samples_under_way(const ReadPlan& plan) {
  if (plan.intervals.empty()) return 0;
  const int64_t samples = plan.intervals.back().samples_end;
  const auto intervals = static_cast<int64_t>(plan.intervals.size());
  const int64_t each = (samples + intervals - 1) / intervals;
  int64_t reach = 0;
  size_t open = 0;  // the interval that is being decoded when `i` begins
  int64_t before = 0;
  for (size_t i = 0; i < plan.intervals.size(); ++i) {
    const KeyframeInterval& interval = plan.intervals[i];
    while (before + plan.intervals[open].packets <= interval.begin_at) {
      before += plan.intervals[open++].packets;
    }
    const int64_t complete = open > 0 ? plan.intervals[open - 1].samples_end : 0;
    reach = std::max(reach, interval.samples_end - complete);
  }
  return std::max(each * (2 * plan.workers + 1), reach + each * plan.workers);
}

int threads_for(const ReadPlan& plan, size_t number, int64_t packets_left) {
  const double own = static_cast<double>(plan.intervals[number].packets);
  const double left = std::max(static_cast<double>(packets_left), own);
  double share = left > 0 ? plan.threads * own / left - share_tolerance : 1;
  if (number < plan.urgent) {
    const double whole = static_cast<double>(std::max<int64_t>(plan.urgent_packets, 1));
    share = std::max(share, urgent_share * plan.threads * own / whole - share_tolerance);
  }
  return std::clamp(static_cast<int>(std::ceil(share)), 1, plan.threads);
}

}  // namespace kinora
