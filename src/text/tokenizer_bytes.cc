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

struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<int, 0x144> byte{};  // -1: not of the alphabet

  Alphabet() {
    byte.fill(-1);
    char32_t next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      character[b] = stands_for_itself(b) ? b : next++;
      byte[character[b]] = static_cast<int>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet made;
  return made;
}

}  // namespace

std::optional<std::string> byte_level_to_bytes(std::string_view token) {
  const Alphabet& letters = alphabet();
  std::string bytes;
  for (size_t position = 0; position < token.size();) {
    const char32_t character = next_character(token, position);
    if (character >= letters.byte.size() || letters.byte[character] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(letters.byte[character]));
  }
  return bytes;
}

std::string bytes_to_byte_level(std::string_view bytes) {
  std::string token;
  for (const char c : bytes) {
    append_utf8(alphabet().character[static_cast<unsigned char>(c)], token);
  }
  return token;
}

}  // namespace kinora::tokenizer
