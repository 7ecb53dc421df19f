#include "text/jinja/characters.h"

#include <utf8proc.h>

#include <algorithm>

#include "text/tokenizer_utf8.h"

namespace kinora::jinja {
namespace {

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

// The last character of a text that has one.
std::string_view last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
  return text.substr(begin);
}

bool in_set(std::string_view set, std::string_view character) {
  return set.find(character) != std::string_view::npos;
}

int category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

std::string mapped(std::string_view text, utf8proc_int32_t (*map)(utf8proc_int32_t),
                   bool to_upper) {
  std::string result;
  result.reserve(text.size());
  for_each_character(text, [&](std::string_view one) {
    const char32_t c = code_point(one);
    if (to_upper && c == 0xdf) {
      result += "SS";
    } else {
      tokenizer::append_utf8(static_cast<char32_t>(map(static_cast<utf8proc_int32_t>(c))), result);
    }
  });
  return result;
}

}  // namespace

int64_t count_characters(std::string_view text) {
  return std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

char32_t code_point(std::string_view character) {
  const auto byte = [&](size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(character[i]));
  };
  switch (character.size()) {
    case 2:
      return (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f);
    case 3:
      return (byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    case 4:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 |
             (byte(3) & 0x3f);
    default:
      return byte(0);
  }
}

bool is_space(std::string_view character) { return is_space(code_point(character)); }

std::string_view strip_left(std::string_view text) {
  while (!text.empty()) {
    const size_t size = character_size(text[0]);
    if (!is_space(text.substr(0, size))) break;
    text.remove_prefix(std::min(size, text.size()));
  }
  return text;
}

std::string_view strip_right(std::string_view text) {
  while (!text.empty() && is_space(last_character(text))) {
    text.remove_suffix(last_character(text).size());
  }
  return text;
}

std::string_view strip_left(std::string_view text, std::string_view set) {
  while (!text.empty()) {
    const std::string_view first = text.substr(0, character_size(text[0]));
    if (!in_set(set, first)) break;
    text.remove_prefix(first.size());
  }
  return text;
}

std::string_view strip_right(std::string_view text, std::string_view set) {
  while (!text.empty() && in_set(set, last_character(text))) {
    text.remove_suffix(last_character(text).size());
  }
  return text;
}

std::string upper(std::string_view text) { return mapped(text, utf8proc_toupper, true); }
std::string lower(std::string_view text) { return mapped(text, utf8proc_tolower, false); }

std::string capitalize(std::string_view text) {
  if (text.empty()) return "";
  const size_t first = character_size(text[0]);
  return mapped(text.substr(0, first), utf8proc_totitle, false) + lower(text.substr(first));
}

bool is_cased_letter(char32_t c) {
  const int kind = category(c);
  return kind == UTF8PROC_CATEGORY_LU || kind == UTF8PROC_CATEGORY_LL ||
         kind == UTF8PROC_CATEGORY_LT;
}

bool is_letter(char32_t c) {
  const int kind = category(c);
  return is_cased_letter(c) || kind == UTF8PROC_CATEGORY_LM || kind == UTF8PROC_CATEGORY_LO;
}

bool is_digit(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }

bool is_printable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

}  // namespace kinora::jinja
