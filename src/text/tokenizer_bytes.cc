#include "text/tokenizer_bytes.h"

#include <array>

#include "text/tokenizer_utf8.h"

namespace kinora::tokenizer {
namespace {

// Printable Latin-1 characters stand for themselves; the other 68 bytes, in order, for U+0100 and
// on.
bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

// The byte of every character; -1: not of the alphabet.
using Alphabet = std::array<int, 0x144>;

const Alphabet& alphabet() {
  static const Alphabet made = [] {
    Alphabet bytes;
    bytes.fill(-1);
    unsigned next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      bytes[stands_for_itself(b) ? b : next++] = static_cast<int>(b);
    }
    return bytes;
  }();
  return made;
}

}  // namespace

std::optional<std::string> byte_level_to_bytes(std::string_view token) {
  const Alphabet& letters = alphabet();
  std::string bytes;
  for (size_t position = 0; position < token.size();) {
    const char32_t character = next_character(token, position);
    if (character >= letters.size() || letters[character] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(letters[character]));
  }
  return bytes;
}

}  // namespace kinora::tokenizer
