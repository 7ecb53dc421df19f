#include "base/one_line.h"

#include <cstddef>
#include <cstdint>

namespace kinora {
namespace {

struct Character {
  uint32_t value = 0;
  size_t bytes = 0;  // 0: no UTF-8 begins here
};

Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t count = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < count) return {};
  uint32_t value = lead & (0xffU >> (count + 1));
  for (size_t i = 1; i < count; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    value = value << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = value >= 0xd800 && value <= 0xdfff;
  if (value < smallest[count] || value > 0x10ffff || surrogate) return {};
  return {value, count};
}

// `digits` of them in base 16.
std::string hexadecimal(uint32_t value, int digits) {
  std::string text;
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) {
    text += "0123456789abcdef"[value >> shift & 0xf];
  }
  return text;
}

bool is_harmless(uint32_t value) {
  if (value < 0x20 || (value >= 0x7f && value <= 0x9f)) return false;
  const bool separator = value == 0x2028 || value == 0x2029;
  const bool turns = value == 0x61c || value == 0x200e || value == 0x200f ||
                     (value >= 0x202a && value <= 0x202e) || (value >= 0x2066 && value <= 0x2069);
  return !separator && !turns;
}

}  // namespace

std::string one_line(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  while (!text.empty()) {
    const Character next = first_character(text);
    const size_t bytes = next.bytes == 0 ? 1 : next.bytes;
    if (next.bytes > 0 && is_harmless(next.value)) {
      line += text.substr(0, bytes);
    } else if (text[0] == '\n') {
      line += "\\n";
    } else if (text[0] == '\r') {
      line += "\\r";
    } else if (text[0] == '\t') {
      line += "\\t";
    } else if (next.value >= 0x80) {
      line += "\\u" + hexadecimal(next.value, 4);
    } else {
      line += "\\x" + hexadecimal(static_cast<unsigned char>(text[0]), 2);
    }
    text.remove_prefix(bytes);
  }
  return line;
}

}  // namespace kinora
