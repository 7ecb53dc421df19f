// Bits of a header, most significant first. Reading past the end gives zeros and is remembered, so
// that hostile input needs no check at every field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kinora {

class BitReader {
 public:
  explicit BitReader(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  bool overrun() const { return overrun_; }

  uint32_t bit() {
    if (position_ >= bytes_.size() * 8) {
      overrun_ = true;
      return 0;
    }
    const uint32_t value = (bytes_[position_ / 8] >> (7 - position_ % 8)) & 1u;
    ++position_;
    return value;
  }
  uint32_t bits(int count) {
    uint32_t value = 0;
    for (int i = 0; i < count; ++i) value = value << 1 | bit();
    return value;
  }
  void skip(int count) {
    for (int i = 0; i < count; ++i) bit();
  }
  // Exponential-Golomb code of H.264 and HEVC.
  uint32_t golomb() {
    int zeros = 0;
    while (bit() == 0 && !overrun_ && zeros < 31) ++zeros;
    return (uint32_t{1} << zeros) - 1 + bits(zeros);
  }

 private:
  std::span<const uint8_t> bytes_;
  size_t position_ = 0;
  bool overrun_ = false;
};

}  // namespace kinora
