#include "text/tokenizer_characters.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"

namespace kinora::tokenizer {
namespace {

constexpr CharacterRange space_ranges[] = {
    {0x9, 0xd},       {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680},
    {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
};

}  // namespace

const Characters& Characters::table() {
  static const Characters characters;
  return characters;
}

Characters::Characters() {
  std::vector<uint8_t> all(0x110000, 0);
  const auto mark = [&](std::span<const CharacterRange> ranges, uint8_t flag) {
    for (const CharacterRange& range : ranges) {
      for (char32_t c = range.first; c <= range.last; ++c) all[c] |= flag;
    }
  };
  mark(letter_ranges(), kLetter);
  mark(number_ranges(), kNumber);
  mark(not_inert_ranges(), kNotInert);
  mark(space_ranges, kSpace);
  all['\r'] |= kNewline;
  all['\n'] |= kNewline;

  std::map<std::array<uint8_t, 256>, size_t> known;
  for (size_t block = 0; block < block_of_.size(); ++block) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(block << 8);
    std::array<uint8_t, 256> content{};
    std::copy_n(begin, content.size(), content.begin());
    const auto [place, is_new] = known.try_emplace(content, known.size());
    if (is_new) blocks_.insert(blocks_.end(), begin, begin + 256);
    if (place->second > 0xff) {
      throw Error(ErrorKind::internal, "the tokenizer's character table has too many blocks");
    }
    block_of_[block] = static_cast<uint8_t>(place->second);
  }
  for (size_t i = 0; i < ascii_.size(); ++i) ascii_[i] = all[i];
}

bool is_word_character(char32_t character) {
  if (Characters::table().flags(character) & kLetter) return true;
  if (character == 0x200c || character == 0x200d) return true;
  // Circled and squared letters are alphabetic, though symbols by category.
  if (character >= 0x24b6 && character <= 0x24e9) return true;
  if (character >= 0x1f130 && character <= 0x1f189) {
    return character <= 0x1f149 || (character >= 0x1f150 && character <= 0x1f169) ||
           character >= 0x1f170;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(character))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

}  // namespace kinora::tokenizer
