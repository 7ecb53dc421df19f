// What a compressed picture says about itself, read from its headers without decoding: whether
// decoding may begin there, whether other pictures need it, whether it is shown at all. Containers
// also say some of this, but not always correctly; the index asks the bitstream.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

struct AVCodecParameters;
struct AVPacket;

namespace kinora {

struct PictureTraits {
  // How a picture that precedes its keyframe in presentation, but follows it in the stream, is
  // decoded.
  enum class Leading : uint8_t { unknown, with_keyframe, needs_previous };

  bool start = false;          // decoding from here on gives everything presented later, exactly
  bool resets_order = false;   // picture order numbers begin anew
  bool disposable = false;     // no other picture refers to it and it changes no decoder state
  bool shown = true;           // gives a frame
  bool bidirectional = false;  // a B picture in the old sense: presented as soon as decoded
  Leading leading = Leading::unknown;
  uint8_t layer = 0;  // temporal layer; a disposable picture counts only in the highest one
};

class PacketInspector {
 public:
  virtual ~PacketInspector() = default;
  virtual PictureTraits inspect(const AVPacket& packet) = 0;
};

// For any codec; for those not known in detail the container's key flag is believed where the codec
// is one that restarts cleanly, and nothing is disposable.
std::unique_ptr<PacketInspector> make_packet_inspector(const AVCodecParameters& parameters);

// The units of an H.264 or HEVC packet, or of any other sequence with start codes. Length-prefixed
// when `length_bytes` is above 0.
class UnitReader {
 public:
  UnitReader(std::span<const uint8_t> bytes, int length_bytes)
      : bytes_(bytes), length_bytes_(length_bytes) {}
  // The next unit without prefix or start code; empty at the end.
  std::span<const uint8_t> next();

 private:
  std::span<const uint8_t> bytes_;
  int length_bytes_;
};

}  // namespace kinora
