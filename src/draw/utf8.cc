#include "draw/utf8.h"

#include <algorithm>
#include <cstdint>

namespace kinora {
namespace {

bool continues(char byte) { return (static_cast<uint8_t>(byte) & 0xc0) == 0x80; }

// Bytes of the character that begins here; 0 where it is none.
size_t length_at(std::string_view text) {
  const auto first = static_cast<uint8_t>(text[0]);
  const size_t length = first < 0x80   ? 1
                        : first < 0xc2 ? 0
                        : first < 0xe0 ? 2
                        : first < 0xf0 ? 3
                        : first < 0xf5 ? 4
                                       : 0;
  if (length == 0 || length > text.size()) return 0;
  if (!std::all_of(text.begin() + 1, text.begin() + static_cast<ptrdiff_t>(length), continues)) {
    return 0;
  }
  if (length < 3) return length;
  // Longer than need be, half of a pair, or beyond the last.
  const auto second = static_cast<uint8_t>(text[1]);
  const bool wrong = (first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) ||
                     (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90);
  return wrong ? 0 : length;
}

}  // namespace

std::string clean_utf8(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = length_at(text);
    if (length == 0) {
      out += '?';
      text.remove_prefix(1);
      continue;
    }
    const bool control = length == 1 && (static_cast<uint8_t>(text[0]) < ' ' || text[0] == 0x7f);
    out += control ? std::string_view(" ") : text.substr(0, length);
    text.remove_prefix(length);
  }
  return out;
}

size_t whole_characters(std::string_view text, size_t bytes) {
  size_t end = std::min(bytes, text.size());
  while (end > 0 && end < text.size() && continues(text[end])) --end;
  return end;
}

size_t next_character(std::string_view text, size_t begin) {
  size_t end = begin + 1;
  while (end < text.size() && continues(text[end])) ++end;
  return end;
}

}  // namespace kinora
