// The pictures of the reference fixtures, by the formula of tests/reference/README.md.
#pragma once

#include <cstdint>

#include "base/tensor.h"

namespace kinora::testing {

inline uint8_t procedural_pixel(uint32_t seed, uint32_t t, uint32_t y, uint32_t x, uint32_t c) {
  const uint32_t wave =
      (x * (3 + seed % 5) + y * (2 + seed % 7) + t * 37 + c * 85 + seed * 101) % 512;
  const uint32_t ramp = wave < 256 ? wave : 511 - wave;
  uint32_t hash = x * 73856093u ^ y * 19349663u ^ (t + 1) * 83492791u ^ (c + 1) * 2654435761u ^
                  (seed + 1) * 40503u;
  hash ^= hash >> 13;
  hash *= 1540483477u;
  hash ^= hash >> 15;
  return static_cast<uint8_t>(ramp * 3 / 4 + hash % 64);
}

// u8 [frames, height, width, 3]
inline Tensor procedural_clip(int64_t seed, int64_t frames, int64_t height, int64_t width) {
  Tensor clip(DType::u8, {frames, height, width, 3});
  uint8_t* out = clip.data<uint8_t>();
  for (uint32_t t = 0; t < frames; ++t)
    for (uint32_t y = 0; y < height; ++y)
      for (uint32_t x = 0; x < width; ++x)
        for (uint32_t c = 0; c < 3; ++c)
          *out++ = procedural_pixel(static_cast<uint32_t>(seed), t, y, x, c);
  return clip;
}

}  // namespace kinora::testing
