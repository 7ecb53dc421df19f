// Hands packets to workers. All workers share one, under a lock of its owner: reading packets is a
// thousand times cheaper than decoding them, and one reader that counts knows for certain which
// packet is which, where many that seek would have to guess.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "video/decode/interval_plan.h"
#include "video/index/index.h"
#include "video/source/demuxer.h"

namespace kinora {

struct NumberedPacket {
  int64_t number = 0;  // in the index
  PacketPtr packet;
};

class PacketFeed {
 public:
  virtual ~PacketFeed() = default;

  // The needed packets of `interval` from `from` on, at most about `max_bytes` of them; sets `from`
  // to the first packet not yet looked at (end + 1 when the interval is complete). Intervals are
  // read in the order of the plan; `next_begin` is where the next one begins, so that packets that
  // both need are kept.
  virtual std::vector<NumberedPacket> read(const KeyframeInterval& interval, int64_t& from,
                                           int64_t next_begin, int64_t max_bytes) = 0;
  // What a decoder for the packets just read must be opened with. Lives as long as the feed.
  virtual const AVCodecParameters& parameters() const = 0;
  virtual int64_t seeks() const = 0;
};

using OpenDemuxer = std::function<std::unique_ptr<Demuxer>()>;

// Reading on is cheaper than a seek below both of these.
struct SeekPolicy {
  int64_t bytes = int64_t{2} << 20;
  int64_t packets = 64;
};

class StreamFeed final : public PacketFeed {
 public:
  StreamFeed(const VideoIndex& index, OpenDemuxer open, SeekPolicy policy = {});

  std::vector<NumberedPacket> read(const KeyframeInterval& interval, int64_t& from,
                                   int64_t next_begin, int64_t max_bytes) override;
  const AVCodecParameters& parameters() const override { return *parameters_; }
  int64_t seeks() const override { return seeks_; }
  // Some seek did not land where packets are recognised; there will be no other.
  bool gave_up_seeking() const { return gave_up_; }

 private:
  // Makes `number` the next packet to come; false when the stream ends before it.
  bool go_to(int64_t number);
  bool worth_seeking(int64_t number) const;
  bool seek(int64_t number);
  bool try_seek(int64_t number);
  // After a seek: reads on until a packet is recognised. The number, or -1.
  int64_t recognise(int64_t target);
  void reopen();
  bool read_next();  // into packet_
  bool matches(const IndexedPacket& known, const AVPacket& packet) const;

  const VideoIndex& index_;
  OpenDemuxer open_;
  SeekPolicy policy_;
  std::unique_ptr<Demuxer> demuxer_;
  ParametersPtr parameters_;
  PacketPtr packet_;
  bool held_ = false;  // packet_ is number next_, already read
  int64_t next_ = 0;   // number of the next packet
  std::deque<NumberedPacket> kept_;
  std::vector<int32_t> by_position_;  // packets by their byte in the file; made at the first seek
  bool seekable_ = true;
  bool gave_up_ = false;
  int64_t seeks_ = 0;
};

}  // namespace kinora
