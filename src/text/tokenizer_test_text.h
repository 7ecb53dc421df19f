// Random text for the tokenizer's tests: many scripts, joiners, marks, spaces of all kinds, and the
// characters on which the split expressions turn.
#pragma once

#include <string>
#include <vector>

#include "base/random.h"
#include "text/tokenizer_utf8.h"

namespace kinora::tokenizer::testing {

inline char32_t random_character(Random& random) {
  static constexpr char32_t corners[] = {
      U' ',   U' ',   U'\n',   U'\r',   U'\t',  U'\'',   U's',    U'S',    U't',   U'r',
      U'e',   U'v',   U'l',    U'L',    U'd',   U'm',    0x17f,   0x2019,  0x85,   0xa0,
      0x0b,   0x0c,   0x1c,    0x180e,  0x2000, 0x2028,  0x2029,  0x200b,  0x200d, 0xfe0f,
      0x3000, 0xfeff, 0x1f468, 0x1f3fd, U'1',   U'9',    0x0661,  0xb2,    0xbd,   0x2168,
      U'<',   U'|',   U'>',    U'-',    0x301,  0x323,   0x345,   0x1100,  0x1161, 0x11a8,
      0xac00, 0x212b, 0x1e9b,  0x94d,   0x1df9, 0x11935, 0x11930, 0x105d2, 0x307,  0x31350};
  const int64_t kind = random.below(100);
  if (kind < 45) return corners[random.below(std::size(corners))];
  if (kind < 65) return static_cast<char32_t>(random.below(0x80));
  struct Range {
    char32_t first, last;
  };
  static constexpr Range ranges[] = {
      {0x80, 0x24f},      {0x300, 0x36f},     {0x370, 0x3ff},     {0x400, 0x52f},
      {0x591, 0x5f4},     {0x600, 0x6ff},     {0x900, 0x97f},     {0x980, 0xdff},
      {0xe00, 0xe7f},     {0xf00, 0xfff},     {0x1000, 0x11ff},   {0x1e00, 0x1fff},
      {0x2000, 0x206f},   {0x2070, 0x20ff},   {0x2100, 0x2bff},   {0x3000, 0x30ff},
      {0x4e00, 0x9fff},   {0xac00, 0xd7a3},   {0xf900, 0xfaff},   {0xfe00, 0xfeff},
      {0xff00, 0xffef},   {0x10000, 0x10fff}, {0x11000, 0x11fff}, {0x1d000, 0x1d7ff},
      {0x1f000, 0x1faff}, {0x20000, 0x2a6df}, {0xe0000, 0xe01ef}, {0x0, 0xd7ff},
      {0xe000, 0x10ffff}};
  const Range& range = ranges[random.below(std::size(ranges))];
  return range.first + static_cast<char32_t>(random.below(range.last - range.first + 1));
}

inline std::string random_text(Random& random, int64_t characters) {
  std::string text;
  while (characters > 0) {
    const char32_t character = random_character(random);
    // Runs matter: of spaces, of letters, of one mark.
    const int64_t run = random.below(8) == 0 ? 1 + random.below(4) : 1;
    for (int64_t i = 0; i < run && characters > 0; ++i, --characters) append_utf8(character, text);
  }
  return text;
}

}  // namespace kinora::tokenizer::testing
