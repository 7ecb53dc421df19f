#include "video/decode/packet_feed.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kinora {

namespace {

constexpr int recognition_reads = 16;

PacketPtr share(const AVPacket& packet) {
  PacketPtr copy = make_packet();
  if (av_packet_ref(copy.get(), &packet) < 0) {
    throw Error(ErrorKind::resource, "not enough memory for a packet");
  }
  return copy;
}

}  // namespace

StreamFeed::StreamFeed(const VideoIndex& index, OpenDemuxer open, SeekPolicy policy)
    : index_(index),
      open_(std::move(open)),
      policy_(policy),
      demuxer_(open_()),
      parameters_(copy_parameters(demuxer_->parameters())),
      packet_(make_packet()) {
  // Elementary streams have no times to seek by, and positions only of blocks.
  seekable_ =
      !index.repaired_times && (demuxer_->format().iformat->flags & AVFMT_NOTIMESTAMPS) == 0;
}

std::vector<NumberedPacket> StreamFeed::read(const KeyframeInterval& interval, int64_t& from,
                                             int64_t next_begin, int64_t max_bytes) {
  std::vector<NumberedPacket> packets;
  int64_t bytes = 0;
  while (!kept_.empty() && kept_.front().number < interval.begin) kept_.pop_front();
  for (const NumberedPacket& kept : kept_) {
    if (kept.number < from || kept.number > interval.end) continue;
    if (is_needed(index_, interval, kept.number)) {
      packets.push_back({kept.number, share(*kept.packet)});
      bytes += kept.packet->size;
    }
    from = kept.number + 1;
  }
  while (from <= interval.end && bytes < max_bytes) {
    if (!go_to(from) || !read_next()) {
      from = interval.end + 1;  // the file is shorter than it was: what is missing gets reported
      break;
    }
    const bool needed = is_needed(index_, interval, from);
    if (from >= next_begin) kept_.push_back({from, share(*packet_)});
    if (needed) {
      bytes += packet_->size;
      packets.push_back({from, std::exchange(packet_, make_packet())});
    }
    ++from;
  }
  return packets;
}

bool StreamFeed::read_next() {
  if (!held_ && !demuxer_->read(*packet_)) return false;
  held_ = false;
  ++next_;
  return true;
}

bool StreamFeed::go_to(int64_t number) {
  if (number < next_) {
    if (!seekable_ || !seek(number)) reopen();
  } else if (worth_seeking(number) && !seek(number)) {
    reopen();
  }
  while (next_ < number) {
    if (!read_next()) return false;
  }
  return true;
}

bool StreamFeed::worth_seeking(int64_t number) const {
  if (!seekable_ || number - next_ < policy_.packets || !index_.packet(number).key) return false;
  int64_t bytes = 0;
  for (int64_t i = next_; i < number && bytes < policy_.bytes; ++i) bytes += index_.packet(i).size;
  return bytes >= policy_.bytes;
}

bool StreamFeed::seek(int64_t number) {
  seekable_ = try_seek(number);
  gave_up_ = !seekable_;
  return seekable_;
}

bool StreamFeed::try_seek(int64_t number) {
  const IndexedPacket& target = index_.packet(number);
  ++seeks_;
  held_ = false;
  const bool by_byte = (demuxer_->format().iformat->flags & AVFMT_TS_DISCONT) != 0;
  if (by_byte && target.position >= 0) {
    if (!demuxer_->seek_byte(target.position)) return false;
  } else {
    // Containers index either decoding or presentation times; the lower one is safe for both.
    int64_t time = target.raw_dts;
    if (time == AV_NOPTS_VALUE || (target.raw_pts != AV_NOPTS_VALUE && target.raw_pts < time)) {
      time = target.raw_pts;
    }
    if (time == AV_NOPTS_VALUE || !demuxer_->seek_time(time)) return false;
  }
  const int64_t landed = recognise(number);
  if (landed < 0 || landed > number) return false;
  next_ = landed;
  held_ = true;
  return true;
}

bool StreamFeed::matches(const IndexedPacket& known, const AVPacket& packet) const {
  return known.position == packet.pos && known.size == packet.size && known.raw_pts == packet.pts &&
         known.position >= 0;
}

int64_t StreamFeed::recognise(int64_t target) {
  if (by_position_.empty()) {
    by_position_.resize(index_.packets.size());
    std::iota(by_position_.begin(), by_position_.end(), 0);
    std::stable_sort(by_position_.begin(), by_position_.end(), [this](int32_t a, int32_t b) {
      return index_.packet(a).position < index_.packet(b).position;
    });
  }
  for (int reads = 0; reads < recognition_reads; ++reads) {
    if (!demuxer_->read(*packet_)) return -1;
    const auto begin = std::lower_bound(
        by_position_.begin(), by_position_.end(), packet_->pos,
        [this](int32_t a, int64_t position) { return index_.packet(a).position < position; });
    // The last one up to the target; else the next one behind it, which is too far.
    int64_t found = -1;
    for (auto at = begin; at != by_position_.end() && index_.packet(*at).position == packet_->pos;
         ++at) {
      if (!matches(index_.packet(*at), *packet_)) continue;
      if (found >= 0 && *at > target) break;
      found = *at;
    }
    if (found >= 0) return found;
  }
  return -1;
}

void StreamFeed::reopen() {
  demuxer_.reset();
  demuxer_ = open_();
  next_ = 0;
  held_ = false;
}

}  // namespace kinora
