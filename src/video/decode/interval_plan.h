// Who decodes what. A plan divides the sampled frames into intervals that begin at a keyframe and
// end with their last sampled picture; what lies between two intervals is not even read. Frames
// leave in order, so intervals should end in order: a long one starts before shorter neighbours.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "video/index/index.h"
#include "video/sampling.h"

namespace kinora {

// A picture that is wanted, and the samples [first, first + count) that want it.
struct Target {
  int64_t packet = 0;
  int64_t first = 0;
  int64_t count = 0;
};

struct KeyframeInterval {
  int64_t begin = 0;            // first packet: a start
  int64_t end = 0;              // last packet
  int64_t packets = 0;          // of those, to be decoded
  int64_t bytes = 0;            // of these
  std::vector<Target> targets;  // ascending by packet
  int64_t samples_end = 0;      // one past its last sample
  int64_t begin_at = 0;         // packets of the whole read that are decoded when it should begin

  bool wants(int64_t packet) const;
};

struct ReadPlan {
  std::vector<KeyframeInterval> intervals;  // ascending by begin; neighbours overlap at open GOPs
  int64_t packets = 0;                      // of all of them, to be decoded
  size_t urgent = 0;                        // the first intervals: they hold the first group
  int64_t urgent_packets = 0;               // of those, to be decoded
  int threads = 1;                          // that may be busy at once
  int workers = 1;
};

ReadPlan make_plan(const VideoIndex& index, std::span<const SampledFrame> samples, int threads,
                   int64_t frames_per_group = 16);

// Samples from the first that is missing to the last that workers may have begun, when intervals
// begin as planned and take about as long as expected.
int64_t samples_under_way(const ReadPlan& plan);

// Threads that interval number `number` gets when it is taken while `packets_left` packets of the
// whole read, its own among them, are not decoded. More than one where it would otherwise outlast
// the rest of the work (the last intervals, or all of them when they are few) and, with many cores,
// for the first group, which somebody waits for.
int threads_for(const ReadPlan& plan, size_t number, int64_t packets_left);

// Whether decoding the interval needs this packet of it. Exact: nothing refers to what is left
// out.
inline bool is_needed(const VideoIndex& index, const KeyframeInterval& interval, int64_t packet) {
  return !index.packet(packet).disposable || interval.wants(packet);
}

}  // namespace kinora
