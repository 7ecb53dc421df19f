#include "video/index/av1_inspector.h"

extern "C" {
#include <libavcodec/packet.h>
}

#include <algorithm>
#include <optional>

#include "video/index/bit_reader.h"

namespace kinora {

namespace {

using Bytes = std::span<const uint8_t>;

constexpr int sequence_unit = 1;
constexpr int frame_header_unit = 3;
constexpr int frame_unit = 6;

struct Unit {
  int type = 0;
  Bytes payload;
};

// Open bitstream units with a size field each, as containers store them.
class Av1Units {
 public:
  explicit Av1Units(Bytes bytes) : bytes_(bytes) {}

  std::optional<Unit> next() {
    if (bytes_.empty()) return {};
    const uint8_t header = bytes_[0];
    const bool extended = (header >> 2 & 1) != 0;
    const bool sized = (header >> 1 & 1) != 0;
    size_t at = extended ? 2 : 1;
    size_t size = 0;
    if (sized) {
      for (int shift = 0;; shift += 7) {
        if (at >= bytes_.size() || shift > 28) return {};
        const uint8_t byte = bytes_[at++];
        size |= static_cast<size_t>(byte & 127) << shift;
        if ((byte & 128) == 0) break;
      }
    } else {
      size = bytes_.size() - std::min(at, bytes_.size());
    }
    if (at > bytes_.size() || size > bytes_.size() - at) return {};
    const Unit unit{header >> 3 & 15, bytes_.subspan(at, size)};
    bytes_ = bytes_.subspan(at + size);
    return unit;
  }

 private:
  Bytes bytes_;
};

struct SequenceHeader {
  bool reduced = false;
  bool decoder_model = false;
  bool equal_interval = false;
  int presentation_bits = 0;
  int frame_id_bits = 0;
  int order_hint_bits = 0;
  uint32_t screen_content = 2;  // 2: each frame says
  uint32_t integer_motion = 2;
};

std::optional<SequenceHeader> read_sequence(Bytes payload) {
  SequenceHeader header;
  BitReader bits(payload);
  bits.skip(3 + 1);
  header.reduced = bits.bit() != 0;
  if (header.reduced) {
    bits.skip(5);
  } else {
    int delay_bits = 0;
    if (bits.bit() != 0) {
      bits.skip(64);
      header.equal_interval = bits.bit() != 0;
      if (header.equal_interval) bits.golomb();
      header.decoder_model = bits.bit() != 0;
      if (header.decoder_model) {
        delay_bits = static_cast<int>(bits.bits(5)) + 1;
        bits.skip(32 + 5);
        header.presentation_bits = static_cast<int>(bits.bits(5)) + 1;
      }
    }
    const bool display_delay = bits.bit() != 0;
    const uint32_t points = bits.bits(5) + 1;
    for (uint32_t i = 0; i < points; ++i) {
      bits.skip(12);
      if (bits.bits(5) > 7) bits.skip(1);
      if (header.decoder_model && bits.bit() != 0) bits.skip(2 * delay_bits + 1);
      if (display_delay && bits.bit() != 0) bits.skip(4);
    }
  }
  const int width_bits = static_cast<int>(bits.bits(4)) + 1;
  const int height_bits = static_cast<int>(bits.bits(4)) + 1;
  bits.skip(width_bits + height_bits);
  if (!header.reduced && bits.bit() != 0) {
    const int delta = static_cast<int>(bits.bits(4)) + 2;
    header.frame_id_bits = delta + static_cast<int>(bits.bits(3)) + 1;
  }
  bits.skip(3);
  if (!header.reduced) {
    bits.skip(4);
    const bool order_hint = bits.bit() != 0;
    if (order_hint) bits.skip(2);
    header.screen_content = bits.bit() != 0 ? 2 : bits.bit();
    if (header.screen_content > 0) header.integer_motion = bits.bit() != 0 ? 2 : bits.bit();
    if (order_hint) header.order_hint_bits = static_cast<int>(bits.bits(3)) + 1;
  }
  if (bits.overrun()) return {};
  return header;
}

struct FrameHeader {
  bool existing = false;
  bool key = false;
  bool shown = false;
  uint32_t refreshed = 0xff;  // slots
};

FrameHeader read_frame(const SequenceHeader& sequence, Bytes payload) {
  FrameHeader frame;
  if (sequence.reduced) {
    frame.key = frame.shown = true;
    return frame;
  }
  BitReader bits(payload);
  frame.existing = bits.bit() != 0;
  if (frame.existing) {
    frame.shown = true;
    return frame;
  }
  const uint32_t type = bits.bits(2);  // key, inter, intra only, switch
  frame.key = type == 0;
  frame.shown = bits.bit() != 0;
  if (frame.shown && sequence.decoder_model && !sequence.equal_interval) {
    bits.skip(sequence.presentation_bits);
  }
  if (!frame.shown) bits.skip(1);
  const bool whole = type == 3 || (frame.key && frame.shown);
  const bool resilient = whole || bits.bit() != 0;
  bits.skip(1);
  const uint32_t screen = sequence.screen_content == 2 ? bits.bit() : sequence.screen_content;
  if (screen != 0 && sequence.integer_motion == 2) bits.skip(1);
  bits.skip(sequence.frame_id_bits);
  if (type != 3) bits.skip(1);
  bits.skip(sequence.order_hint_bits);
  const bool intra = type == 0 || type == 2;
  if (!intra && !resilient) bits.skip(3);
  // Removal times depend on the operating point; such streams keep all their frames.
  if (sequence.decoder_model && bits.bit() != 0) return frame;
  if (!whole) frame.refreshed = bits.bits(8);
  if (bits.overrun()) frame.refreshed = 0xff;
  return frame;
}

class Av1Inspector final : public PacketInspector {
 public:
  explicit Av1Inspector(Bytes extradata) {
    // The configuration box has four bytes of its own before the units.
    if (extradata.size() > 4 && extradata[0] == 0x81) extradata = extradata.subspan(4);
    Av1Units units(extradata);
    while (const auto unit = units.next()) {
      if (unit->type == sequence_unit) sequence_ = read_sequence(unit->payload);
    }
  }

  PictureTraits inspect(const AVPacket& packet) override {
    PictureTraits traits;
    if (packet.data == nullptr || packet.size <= 0) return traits;
    Av1Units units(Bytes(packet.data, static_cast<size_t>(packet.size)));
    bool first = true;
    bool disposable = true;
    while (const auto unit = units.next()) {
      if (unit->type == sequence_unit) {
        sequence_ = read_sequence(unit->payload);
        disposable = false;
      }
      if (unit->type != frame_header_unit && unit->type != frame_unit) continue;
      if (!sequence_) return traits;
      const FrameHeader frame = read_frame(*sequence_, unit->payload);
      if (first) traits.start = frame.key && frame.shown && (packet.flags & AV_PKT_FLAG_KEY) != 0;
      if (frame.existing || !frame.shown || frame.refreshed != 0) disposable = false;
      first = false;
    }
    traits.disposable = disposable && !first;
    return traits;
  }

 private:
  std::optional<SequenceHeader> sequence_;
};

}  // namespace

std::unique_ptr<PacketInspector> make_av1_inspector(std::span<const uint8_t> extradata) {
  return std::make_unique<Av1Inspector>(extradata);
}

}  // namespace kinora
