// What is known of a token from the start, whatever later happens to its K/V rows.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/modality.h"

namespace kinora {

// Rotary position: temporal, height, width. Text, and models without M-RoPE, use the same value
// for all three.
using Position = std::array<int32_t, 3>;

struct TokenInfo {
  Position position{};
  double time = std::numeric_limits<double>::quiet_NaN();  // seconds in its video; NaN for text
  Modality modality = Modality::text;
};

}  // namespace kinora
