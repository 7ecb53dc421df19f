// Text as Python sees it: a row of characters, of which white space can be stripped. Template
// values hold UTF-8; the functions here count and cut it by characters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kinora::jinja {

// Bytes of the character that starts with `first`; 1 for what starts none.
inline size_t character_size(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0xc0 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

template <typename Visit>
void for_each_character(std::string_view text, Visit&& visit) {
  for (size_t i = 0; i < text.size();) {
    const std::string_view one = text.substr(i, character_size(text[i]));
    visit(one);
    i += one.size();
  }
}

int64_t count_characters(std::string_view text);
char32_t code_point(std::string_view character);

// What str.isspace calls so: Unicode white space and the ASCII separators.
bool is_space(std::string_view character);
std::string_view strip_left(std::string_view text);
std::string_view strip_right(std::string_view text);
inline std::string_view strip(std::string_view text) { return strip_left(strip_right(text)); }
// The same for any of the characters in `set`.
std::string_view strip_left(std::string_view text, std::string_view set);
std::string_view strip_right(std::string_view text, std::string_view set);

// Case by character, as Unicode maps them; ß becomes SS.
std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
bool is_cased_letter(char32_t character);
bool is_letter(char32_t character);
bool is_digit(char32_t character);
// False for what repr() escapes.
bool is_printable(char32_t character);

}  // namespace kinora::jinja
