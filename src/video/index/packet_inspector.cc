#include "video/index/packet_inspector.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "video/ffmpeg_functions.h"
#include "video/index/av1_inspector.h"
#include "video/index/bit_reader.h"

namespace kinora {

namespace {

using Bytes = std::span<const uint8_t>;

Bytes bytes_of(const AVPacket& packet) {
  if (packet.data == nullptr || packet.size <= 0) return {};
  return Bytes(packet.data, static_cast<size_t>(packet.size));
}

Bytes extradata_of(const AVCodecParameters& parameters) {
  if (parameters.extradata == nullptr || parameters.extradata_size <= 0) return {};
  return Bytes(parameters.extradata, static_cast<size_t>(parameters.extradata_size));
}

bool key_flag(const AVPacket& packet) { return (packet.flags & AV_PKT_FLAG_KEY) != 0; }

// Offset of the next 00 00 01, or the size.
size_t find_start_code(Bytes bytes) {
  size_t i = 2;
  while (i < bytes.size()) {
    const void* one = std::memchr(bytes.data() + i, 1, bytes.size() - i);
    if (one == nullptr) break;
    i = static_cast<size_t>(static_cast<const uint8_t*>(one) - bytes.data());
    if (bytes[i - 1] == 0 && bytes[i - 2] == 0) return i - 2;
    ++i;
  }
  return bytes.size();
}

// The payload without emulation prevention bytes (00 00 03).
std::vector<uint8_t> unescape(Bytes unit) {
  std::vector<uint8_t> plain;
  plain.reserve(unit.size());
  int zeros = 0;
  for (const uint8_t byte : unit) {
    if (zeros >= 2 && byte == 3) {
      zeros = 0;
      continue;
    }
    zeros = byte == 0 ? zeros + 1 : 0;
    plain.push_back(byte);
  }
  return plain;
}

// True when a supplemental unit of H.264 says that everything presented from this picture on is
// exact: recovery point, 0 frames later, exact match.
bool is_exact_recovery_point(Bytes unit) {
  const std::vector<uint8_t> plain = unescape(unit.first(std::min<size_t>(unit.size(), 65536)));
  size_t at = 1;  // behind the unit's header
  while (at + 2 < plain.size()) {
    size_t type = 0;
    size_t size = 0;
    while (at < plain.size() && plain[at] == 0xff) type += plain[at++];
    if (at < plain.size()) type += plain[at++];
    while (at < plain.size() && plain[at] == 0xff) size += plain[at++];
    if (at < plain.size()) size += plain[at++];
    if (at >= plain.size() || size > plain.size() - at) return false;
    if (type == 6) {
      BitReader bits(Bytes(plain).subspan(at, size));
      const uint32_t frames = bits.golomb();
      const bool exact = bits.bit() != 0;
      return !bits.overrun() && frames == 0 && exact;
    }
    at += size;
  }
  return false;
}

class H264Inspector final : public PacketInspector {
 public:
  explicit H264Inspector(Bytes extradata) {
    if (extradata.size() >= 7 && extradata[0] == 1) length_bytes_ = (extradata[4] & 3) + 1;
  }

  PictureTraits inspect(const AVPacket& packet) override {
    PictureTraits traits;
    bool parameter_sets = false;
    UnitReader units(bytes_of(packet), length_bytes_);
    for (Bytes unit = units.next(); !unit.empty(); unit = units.next()) {
      const int type = unit[0] & 31;
      if (type == 6 && is_exact_recovery_point(unit)) traits.start = true;
      if (type == 7 || type == 8 || type == 13) parameter_sets = true;
      if (type >= 1 && type <= 5) {
        const bool reference = (unit[0] >> 5 & 3) != 0;
        if (type == 5) traits.start = traits.resets_order = true;
        traits.disposable = !reference && !parameter_sets;
        return traits;
      }
    }
    traits.shown = false;  // no slice at all
    return traits;
  }

 private:
  int length_bytes_ = 0;
};

class HevcInspector final : public PacketInspector {
 public:
  explicit HevcInspector(Bytes extradata) {
    if (extradata.size() >= 23 && (extradata[0] != 0 || extradata[1] != 0 || extradata[2] > 1)) {
      length_bytes_ = (extradata[21] & 3) + 1;
    }
  }

  PictureTraits inspect(const AVPacket& packet) override {
    PictureTraits traits;
    bool parameter_sets = false;
    UnitReader units(bytes_of(packet), length_bytes_);
    for (Bytes unit = units.next(); !unit.empty(); unit = units.next()) {
      if (unit.size() < 2) continue;
      const int type = unit[0] >> 1 & 63;
      const int layer_id = (unit[0] & 1) << 5 | unit[1] >> 3;
      if (layer_id > 0) continue;  // of a scalable or multi-view extension, which is not decoded
      if (type >= 32 && type <= 34) parameter_sets = true;
      if (type < 32) {
        traits.layer = static_cast<uint8_t>(std::max(unit[1] & 7, 1) - 1);
        traits.start = type >= 16 && type <= 21;
        traits.resets_order = type >= 16 && type <= 20;  // BLA and IDR, not CRA
        // Even types below 16 are not referred to within their temporal layer.
        traits.disposable = type < 16 && type % 2 == 0 && !parameter_sets;
        if (type == 6 || type == 7) traits.leading = PictureTraits::Leading::with_keyframe;
        if (type == 8 || type == 9) traits.leading = PictureTraits::Leading::needs_previous;
        return traits;
      }
    }
    traits.shown = false;
    return traits;
  }

 private:
  int length_bytes_ = 0;
};

// MPEG-1 and MPEG-2.
class MpegInspector final : public PacketInspector {
 public:
  PictureTraits inspect(const AVPacket& packet) override {
    PictureTraits traits;
    UnitReader units(bytes_of(packet), 0);
    bool sequence = false;
    for (Bytes unit = units.next(); !unit.empty(); unit = units.next()) {
      if (unit[0] == 0xb3) sequence = true;
      if (unit[0] == 0xb8 && unit.size() >= 5) closed_ = (unit[4] & 0x40) != 0;
      if (unit[0] == 0x00 && unit.size() >= 3) {
        const int type = unit[2] >> 3 & 7;
        traits.start = type == 1 && (key_flag(packet) || sequence);
        traits.bidirectional = type == 3;
        traits.disposable = type == 3;
        if (closed_) traits.leading = PictureTraits::Leading::with_keyframe;
        return traits;
      }
    }
    traits.shown = false;
    return traits;
  }

 private:
  bool closed_ = false;  // the current group of pictures stands on its own
};

// MPEG-4 part 2.
class Mpeg4Inspector final : public PacketInspector {
 public:
  explicit Mpeg4Inspector(Bytes extradata) {
    UnitReader units(extradata, 0);
    for (Bytes unit = units.next(); !unit.empty(); unit = units.next()) read_layer(unit);
  }

  PictureTraits inspect(const AVPacket& packet) override {
    PictureTraits traits;
    UnitReader units(bytes_of(packet), 0);
    for (Bytes unit = units.next(); !unit.empty(); unit = units.next()) {
      read_layer(unit);
      if (unit[0] != 0xb6) continue;
      BitReader bits(unit.subspan(1));
      const uint32_t type = bits.bits(2);
      while (bits.bit() != 0 && !bits.overrun()) {
      }
      bits.skip(1 + time_bits_ + 1);
      const bool coded = bits.bit() != 0;
      traits.start = type == 0;
      traits.bidirectional = type == 2;
      traits.disposable = type == 2;
      traits.shown = coded || time_bits_ == 0;
      return traits;
    }
    traits.shown = false;
    return traits;
  }

 private:
  // The video object layer says how many bits a time increment has.
  void read_layer(Bytes unit) {
    if (unit[0] < 0x20 || unit[0] > 0x2f) return;
    BitReader bits(unit.subspan(1));
    bits.skip(1 + 8);
    if (bits.bit() != 0) bits.skip(4 + 3);
    if (bits.bits(4) == 15) bits.skip(16);
    if (bits.bit() != 0) {
      bits.skip(2 + 1);
      if (bits.bit() != 0) bits.skip(79);
    }
    bits.skip(2 + 1);
    const uint32_t resolution = bits.bits(16);
    if (bits.overrun() || resolution == 0) return;
    time_bits_ = 1;
    while ((resolution - 1) >> time_bits_ != 0) ++time_bits_;
  }

  int time_bits_ = 0;
};

class Vp8Inspector final : public PacketInspector {
 public:
  PictureTraits inspect(const AVPacket& packet) override {
    PictureTraits traits;
    const Bytes bytes = bytes_of(packet);
    if (bytes.empty()) return traits;
    traits.start = (bytes[0] & 1) == 0;
    traits.shown = (bytes[0] >> 4 & 1) != 0;
    return traits;
  }
};

class Vp9Inspector final : public PacketInspector {
 public:
  PictureTraits inspect(const AVPacket& packet) override {
    PictureTraits traits;
    const Bytes bytes = bytes_of(packet);
    BitReader bits(bytes);
    bits.skip(2);
    const uint32_t low = bits.bit();
    const uint32_t profile = bits.bit() << 1 | low;
    if (profile == 3) bits.skip(1);
    const bool existing = bits.bit() != 0;
    if (existing) return traits;
    traits.start = bits.bit() == 0 && !bits.overrun();
    const bool shown = bits.bit() != 0;
    // A superframe (marker 110 in its last byte) ends with a picture that is shown.
    const bool superframe = !bytes.empty() && (bytes.back() & 0xe0) == 0xc0;
    traits.shown = shown || superframe || bits.overrun();
    return traits;
  }
};

class PlainInspector final : public PacketInspector {
 public:
  explicit PlainInspector(AVCodecID codec) {
    const AVCodecDescriptor* descriptor = avcodec_descriptor_get(codec);
    intra_ = descriptor != nullptr && (descriptor->props & AV_CODEC_PROP_INTRA_ONLY) != 0;
    // These build each picture on the canvas of the one before, whatever the flags say.
    believes_flag_ = codec != AV_CODEC_ID_GIF && codec != AV_CODEC_ID_APNG &&
                     codec != AV_CODEC_ID_WEBP && codec != AV_CODEC_ID_FLASHSV2;
  }

  PictureTraits inspect(const AVPacket& packet) override {
    PictureTraits traits;
    traits.start = first_ || (believes_flag_ && (intra_ || key_flag(packet)));
    // Pictures that depend on nothing are never depended on either.
    traits.disposable = intra_ && believes_flag_;
    first_ = false;
    return traits;
  }

 private:
  bool intra_ = false;
  bool believes_flag_ = true;
  bool first_ = true;
};

}  // namespace

std::span<const uint8_t> UnitReader::next() {
  if (length_bytes_ > 0) {
    const size_t prefix = static_cast<size_t>(length_bytes_);
    while (bytes_.size() > prefix) {
      size_t size = 0;
      for (size_t i = 0; i < prefix; ++i) size = size << 8 | bytes_[i];
      bytes_ = bytes_.subspan(prefix);
      const Bytes unit = bytes_.first(std::min(size, bytes_.size()));
      bytes_ = bytes_.subspan(unit.size());
      if (!unit.empty()) return unit;
    }
    return {};
  }
  while (true) {
    const size_t start = find_start_code(bytes_);
    if (bytes_.size() - start <= 3) return {};
    bytes_ = bytes_.subspan(start + 3);
    // Where the unit ends matters to no reader but that of supplemental units, and the scan over a
    // whole picture would cost more than all the rest: stop early for slices.
    const size_t end = find_start_code(bytes_.first(std::min<size_t>(bytes_.size(), 65536)));
    const Bytes unit = bytes_.first(end);
    bytes_ = bytes_.subspan(end);
    if (!unit.empty()) return unit;
  }
}

std::unique_ptr<PacketInspector> make_packet_inspector(const AVCodecParameters& parameters) {
  const Bytes extradata = extradata_of(parameters);
  switch (parameters.codec_id) {
    case AV_CODEC_ID_H264:
      return std::make_unique<H264Inspector>(extradata);
    case AV_CODEC_ID_HEVC:
      return std::make_unique<HevcInspector>(extradata);
    case AV_CODEC_ID_MPEG1VIDEO:
    case AV_CODEC_ID_MPEG2VIDEO:
      return std::make_unique<MpegInspector>();
    case AV_CODEC_ID_MPEG4:
      return std::make_unique<Mpeg4Inspector>(extradata);
    case AV_CODEC_ID_VP8:
      return std::make_unique<Vp8Inspector>();
    case AV_CODEC_ID_VP9:
      return std::make_unique<Vp9Inspector>();
    case AV_CODEC_ID_AV1:
      return make_av1_inspector(extradata);
    default:
      return std::make_unique<PlainInspector>(parameters.codec_id);
  }
}

}  // namespace kinora
