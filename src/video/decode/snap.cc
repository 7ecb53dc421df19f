#include "video/decode/snap.h"

#include <algorithm>
#include <cmath>

namespace kinora {
namespace {

// Times are quotients of integers, so equal distances may differ in the last bits.
constexpr double tolerance = 1e-6;

// What frames cost, given the pictures that are decoded already.
class DecodeCosts {
 public:
  explicit DecodeCosts(const VideoIndex& index) : index_(index), references_{0} {
    for (const IndexedPacket& packet : index.packets) {
      references_.push_back(references_.back() + (packet.disposable ? 0 : 1));
    }
  }

  // Pictures to decode for a frame: those that it may refer to, and itself.
  int64_t of(int64_t frame) const {
    const int64_t packet = packet_of(frame), start = start_of(frame);
    if (start != start_ || packet < end_) {
      const bool there = start == start_ && !index_.packet(packet).disposable;
      return there ? 0 : between(start == start_ ? packet : start, packet) + 1;
    }
    return between(end_, packet) + 1;
  }

  void take(int64_t frame) {
    const int64_t packet = packet_of(frame), start = start_of(frame);
    end_ = start == start_ ? std::max(end_, packet + 1) : packet + 1;
    start_ = start;
  }

 private:
  int64_t packet_of(int64_t frame) const { return index_.frame_packet[static_cast<size_t>(frame)]; }
  int64_t start_of(int64_t frame) const {
    return std::max<int64_t>(index_.packet(packet_of(frame)).start, 0);
  }
  // Pictures of [begin, end) that others may refer to.
  int64_t between(int64_t begin, int64_t end) const {
    return references_[static_cast<size_t>(end)] - references_[static_cast<size_t>(begin)];
  }

  const VideoIndex& index_;
  std::vector<int64_t> references_;  // before each packet
  int64_t start_ = -1;               // of what is decoded: from this packet …
  int64_t end_ = 0;                  // … to before this one
};

}  // namespace

std::vector<SampledFrame> snap_samples(const VideoIndex& index, const FrameChoice& choice,
                                       std::vector<SampledFrame> samples) {
  const auto allowed = frames_within(index.times, choice.start, choice.end);
  DecodeCosts costs(index);
  int64_t before = -1;  // the frame that the sample before took
  for (size_t i = 0; i < samples.size(); ++i) {
    const SampledFrame own = samples[i];
    const int64_t next = i + 1 < samples.size() ? samples[i + 1].index : index.frames();
    const FrameRange near =
        frames_within(index.times, own.time - choice.snap, own.time + choice.snap);
    const int64_t first = std::max({near.first, allowed.first, before + 1});
    const int64_t end = std::min({near.first + near.count, allowed.first + allowed.count, next});
    SampledFrame best = own;
    int64_t least = costs.of(own.index);
    for (int64_t frame = first; frame < end; ++frame) {
      const double time = index.times[static_cast<size_t>(frame)];
      const int64_t cost = costs.of(frame);
      const double nearer = std::abs(best.time - own.time) - std::abs(time - own.time);
      if (cost > least || (cost == least && nearer <= tolerance)) continue;
      best = {frame, time};
      least = cost;
    }
    costs.take(best.index);
    before = best.index;
    samples[i] = best;
  }
  return samples;
}

}  // namespace kinora
