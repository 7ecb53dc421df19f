// UTF-8 as the tokenizer needs it: refusing what is broken on the way in, replacing what is broken
// on the way out. The tokenizer and TextStream use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kinora::tokenizer {

// The offset of the first byte that belongs to no character, or npos when `text` is valid UTF-8
// (no surrogates, no overlong forms, nothing above U+10FFFF).
size_t find_invalid_utf8(std::string_view text);

// Appends `bytes` to `out` with U+FFFD for every maximal broken part, as the Unicode standard
// recommends. A character cut off at the end of `bytes` counts as broken when `last` is set; else
// it is left. Gives the number of bytes used: all, or all but at most three.
size_t append_replacing_broken(std::string_view bytes, bool last, std::string& out);

// Reads the character at `position` of valid UTF-8 and moves past it.
inline char32_t next_character(std::string_view text, size_t& position) {
  const auto byte = [&](size_t offset) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[position + offset]));
  };
  const char32_t first = byte(0);
  if (first < 0x80) {
    position += 1;
    return first;
  }
  if (first < 0xe0) {
    const char32_t character = (first & 0x1f) << 6 | (byte(1) & 0x3f);
    position += 2;
    return character;
  }
  if (first < 0xf0) {
    const char32_t character = (first & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    position += 3;
    return character;
  }
  const char32_t character =
      (first & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
  position += 4;
  return character;
}

// The start of the character that ends before `position` (> 0) of valid UTF-8.
inline size_t previous_character(std::string_view text, size_t position) {
  do {
    --position;
  } while ((static_cast<unsigned char>(text[position]) & 0xc0) == 0x80);
  return position;
}

void append_utf8(char32_t character, std::string& out);

}  // namespace kinora::tokenizer
