// Who decodes what. A plan cuts the sampled frames into intervals that begin at a keyframe and end
// with their last sampled picture; what lies between two intervals is not even read. Workers take
// intervals from the first to the last.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "video/index.h"
#include "video/sampling.h"

namespace kinora {

// A picture that is wanted, and the samples [first, first + count) that want it.
struct Target {
  int64_t packet = 0;
  int64_t first = 0;
  int64_t count = 0;
};

struct Interval {
  int64_t begin = 0;            // first packet: a start
  int64_t end = 0;              // last packet
  int64_t packets = 0;          // of those, to be decoded
  std::vector<Target> targets;  // ascending by packet

  bool wants(int64_t packet) const;
};

struct ReadPlan {
  std::vector<Interval> intervals;  // ascending by begin; neighbours overlap at open GOPs
  int workers = 1;
  int threads_per_worker = 1;  // above 1 only when there are fewer intervals than threads
};

ReadPlan make_plan(const VideoIndex& index, std::span<const SampledFrame> samples, int threads);

// Whether decoding the interval needs this packet of it. Exact: what is left out is referred to by
// nothing.
inline bool is_needed(const VideoIndex& index, const Interval& interval, int64_t packet) {
  return !index.packet(packet).disposable || interval.wants(packet);
}

}  // namespace kinora
