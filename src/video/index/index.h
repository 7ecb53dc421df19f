// The index of a video: every packet of its stream in decoding order and every frame in the order
// of presentation, from one pass over the packets without decoding. A frame's number is its rank by
// presentation time among the frames that are shown, never an estimate from a rate. Sampling,
// planning and decoding all work from it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/loop_guard.h"
#include "video/index/packet_inspector.h"
#include "video/source/demuxer.h"
#include "video/video.h"

namespace kinora {

struct IndexedPacket {
  int64_t pts = 0;      // in time base units; repaired where the file has none
  int64_t raw_pts = 0;  // as the file says, or AV_NOPTS_VALUE; recognises a packet after a seek
  int64_t raw_dts = 0;
  int64_t position = -1;  // byte in the file, or -1
  int32_t size = 0;
  int32_t frame = -1;  // presentation rank; -1 when the packet shows nothing
  int32_t start = 0;   // packet at which decoding must begin to get this picture exactly; -1 when
                       // none comes before it
  bool key = false;    // decoding may begin here
  bool disposable = false;
};

struct VideoIndex {
  std::vector<IndexedPacket> packets;  // in decoding order
  std::vector<int32_t> frame_packet;   // rank → packet
  std::vector<double> times;           // rank → seconds from the first frame
  double duration = 0;                 // to the end of the last frame
  double fps = 0;
  double start_offset = 0;  // container time of the first frame
  int reorder_depth = 0;    // packets that a decoder must hold back
  bool repaired_times = false;
  bool ended_badly = false;

  int64_t frames() const { return static_cast<int64_t>(frame_packet.size()); }
  const IndexedPacket& packet(int64_t position) const {
    return packets[static_cast<size_t>(position)];
  }
};

// Frames per second as the container or a look into the stream says; 0 when neither does.
double nominal_rate(const AVStream& stream);

// Reads the demuxer to its end. `rate` is the nominal rate. `open_again` gives a fresh demuxer for
// streams that begin in the middle: there, only decoding can tell which of the first pictures
// FFmpeg shows. Throws bad_input when there is no frame.
VideoIndex make_index(Demuxer& demuxer, double rate, const OpenOptions& options,
                      const std::function<std::unique_ptr<Demuxer>()>& open_again);

// The raw facts about a packet, from which the index is built; apart, so that tests can build
// indices without files.
struct PacketFacts {
  int64_t pts = 0;
  int64_t dts = 0;
  int64_t duration = 0;
  int64_t position = -1;
  int32_t size = 0;
  bool discarded = false;     // by an edit list
  bool second_field = false;  // belongs to the picture before
  int32_t order = 0;          // picture order number, where the bitstream has one
  PictureTraits traits;
};

struct TimeBase {
  int64_t numerator = 1;
  int64_t denominator = 1;
  double seconds(int64_t ticks) const {
    return static_cast<double>(ticks) * static_cast<double>(numerator) /
           static_cast<double>(denominator);
  }
};

// `rate` is the nominal frame rate, used where the file has no times at all.
VideoIndex build_index(std::span<const PacketFacts> facts, TimeBase time_base, double rate,
                       bool has_order_numbers, LoopGuard& guard);
VideoIndex build_index(std::span<const PacketFacts> facts, TimeBase time_base, double rate,
                       bool has_order_numbers);

// How many packets at the beginning span shown ones without a start before them. 0 if healthy.
int64_t uncertain_packets(const VideoIndex& index);

}  // namespace kinora
