// What the tokenizer knows of a character: letter, number, white space, and whether it takes part
// in NFC. The answers are Hugging Face's, which for newer characters are not those of any one
// Unicode version (see tokenizer_characters_table.py). Splitting and normalising use it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace kinora::tokenizer {

struct CharacterRange {
  char32_t first, last;
};

// Sorted and disjoint.
std::span<const CharacterRange> letter_ranges();
std::span<const CharacterRange> number_ranges();
std::span<const CharacterRange> not_inert_ranges();
// Those that Unicode 14 did not have yet, and a distribution's PCRE2 may not know.
std::span<const CharacterRange> new_letter_ranges();
std::span<const CharacterRange> new_number_ranges();

enum CharacterFlag : uint8_t {
  kLetter = 1,
  kNumber = 2,
  kSpace = 4,
  kNewline = 8,    // \r or \n only
  kNotInert = 16,  // NFC may change it, move it, or join it to the character before
};

class Characters {
 public:
  // The one table, made on first use.
  static const Characters& table();

  uint8_t flags(char32_t character) const {
    return blocks_[(static_cast<size_t>(block_of_[character >> 8]) << 8) | (character & 0xff)];
  }
  uint8_t ascii_flags(unsigned char character) const { return ascii_[character]; }

 private:
  Characters();

  std::array<uint8_t, 128> ascii_;
  std::array<uint8_t, 0x1100> block_of_;
  std::vector<uint8_t> blocks_;  // equal blocks of 256 characters are kept once
};

// \w of added tokens that must stand alone as a word.
bool is_word_character(char32_t character);

}  // namespace kinora::tokenizer
