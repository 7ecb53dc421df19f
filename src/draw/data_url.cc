#include "draw/data_url.h"

#include <algorithm>
#include <cstdint>

namespace kinora {

std::string png_data_url(std::string_view png) {
  constexpr std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text = "data:image/png;base64,";
  text.reserve(text.size() + png.size() / 3 * 4 + 4);
  for (size_t i = 0; i < png.size(); i += 3) {
    const size_t left = std::min<size_t>(3, png.size() - i);
    uint32_t word = 0;
    for (size_t j = 0; j < 3; ++j) {
      word = word << 8 | (j < left ? static_cast<uint8_t>(png[i + j]) : 0u);
    }
    for (size_t j = 0; j < 4; ++j) {
      text += j <= left ? digits[word >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

}  // namespace kinora
