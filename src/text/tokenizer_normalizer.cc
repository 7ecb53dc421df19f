#include "text/tokenizer_normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "text/tokenizer_characters.h"
#include "text/tokenizer_utf8.h"

namespace kinora::tokenizer {
namespace {

int combining_class(utf8proc_int32_t character) {
  return utf8proc_get_property(character)->combining_class;
}

// Appends NFC of `text`. Marks are put in order here: utf8proc's own sort is quadratic, and a text
// of a million marks must not take hours. `characters` is working space.
void append_nfc(std::string_view text, std::vector<utf8proc_int32_t>& characters,
                std::string& out) {
  characters.clear();
  for (size_t position = 0; position < text.size();) {
    const auto character = static_cast<utf8proc_int32_t>(next_character(text, position));
    utf8proc_int32_t parts[8];  // the longest canonical decomposition has 4
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        character, parts, 8, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE),
        nullptr);
    if (count < 0 || count > 8) {
      throw Error(ErrorKind::internal, "utf8proc cannot take a character apart");
    }
    characters.insert(characters.end(), parts, parts + count);
  }
  for (auto begin = characters.begin(); begin != characters.end();) {
    const auto is_starter = [](utf8proc_int32_t c) { return combining_class(c) == 0; };
    begin = std::find_if_not(begin, characters.end(), is_starter);
    const auto end = std::find_if(begin, characters.end(), is_starter);
    std::stable_sort(begin, end, [](utf8proc_int32_t left, utf8proc_int32_t right) {
      return combining_class(left) < combining_class(right);
    });
    begin = end;
  }
  const utf8proc_ssize_t length =
      utf8proc_normalize_utf32(characters.data(), static_cast<utf8proc_ssize_t>(characters.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  for (utf8proc_ssize_t i = 0; i < length; ++i) {
    append_utf8(static_cast<char32_t>(characters[static_cast<size_t>(i)]), out);
  }
}

// Whether utf8proc may treat the character as more than a plain base to which marks attach, though
// the reference tables (Unicode 9) do not know it: it must not meet the marks that follow it.
bool is_newer_than_reference(char32_t character) {
  if (character == 0x105d2 || character == 0x105da) return true;  // Unicode 16: join with U+0307
  return combining_class(static_cast<utf8proc_int32_t>(character)) != 0;
}

// Offset of the first character that is not inert, or the end.
size_t find_not_inert(std::string_view text, size_t position) {
  const Characters& characters = Characters::table();
  while (position < text.size()) {
    // Every character below U+0300 is inert; U+0300 starts with the byte 0xcc.
    if (static_cast<unsigned char>(text[position]) < 0xcc) {
      ++position;
      continue;
    }
    size_t next = position;
    if (characters.flags(next_character(text, next)) & kNotInert) break;
    position = next;
  }
  return position;
}

}  // namespace

std::string_view to_nfc(std::string_view text, std::string& scratch) {
  size_t begin = find_not_inert(text, 0);
  if (begin == text.size()) return text;

  // Only a run of characters that are not inert can change, together with the one before it.
  const Characters& characters = Characters::table();
  std::vector<utf8proc_int32_t> working;
  scratch.clear();
  scratch.reserve(text.size() + 16);
  size_t copied = 0;
  while (begin < text.size()) {
    size_t end = begin;
    while (end < text.size()) {
      size_t next = end;
      if (!(characters.flags(next_character(text, next)) & kNotInert)) break;
      end = next;
    }
    if (begin > copied) {
      const size_t base = previous_character(text, begin);
      size_t after = base;
      if (!is_newer_than_reference(next_character(text, after))) begin = base;
    }
    scratch.append(text.substr(copied, begin - copied));
    append_nfc(text.substr(begin, end - begin), working, scratch);
    copied = end;
    begin = find_not_inert(text, end);
  }
  scratch.append(text.substr(copied));
  return scratch;
}

}  // namespace kinora::tokenizer
