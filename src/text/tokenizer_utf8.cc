#include "text/tokenizer_utf8.h"

#include <cstring>

namespace kinora::tokenizer {
namespace {

enum class Form { whole, broken, cut_off };

struct Sequence {
  Form form;
  size_t length;  // of the character, or of the maximal part of it that is there
};

// The character, or the broken part of one, at the start of `bytes` (not empty).
Sequence first_sequence(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {Form::whole, 1};
  size_t needed = 0;
  // Bounds of the second byte exclude overlong forms, surrogates and what lies past U+10FFFF.
  unsigned char low = 0x80, high = 0xbf;
  if (first >= 0xc2 && first <= 0xdf) {
    needed = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    needed = 3;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    needed = 4;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
  } else {
    return {Form::broken, 1};
  }
  for (size_t i = 1; i < needed; ++i) {
    if (i == bytes.size()) return {Form::cut_off, i};
    if (byte(i) < low || byte(i) > high) return {Form::broken, i};
    low = 0x80;
    high = 0xbf;
  }
  return {Form::whole, needed};
}

// Length of the run of ASCII at `position`, in steps of eight bytes (zero when shorter).
size_t ascii_run(std::string_view text, size_t position) {
  const size_t start = position;
  while (position + 8 <= text.size()) {
    uint64_t word;
    std::memcpy(&word, text.data() + position, 8);
    if (word & 0x8080808080808080u) break;
    position += 8;
  }
  return position - start;
}

}  // namespace

size_t find_invalid_utf8(std::string_view text) {
  size_t position = 0;
  while (position < text.size()) {
    if (const size_t run = ascii_run(text, position)) {
      position += run;
      continue;
    }
    const Sequence sequence = first_sequence(text.substr(position));
    if (sequence.form != Form::whole) return position;
    position += sequence.length;
  }
  return std::string_view::npos;
}

size_t append_replacing_broken(std::string_view bytes, bool last, std::string& out) {
  size_t position = 0;
  size_t copied = 0;
  while (position < bytes.size()) {
    if (const size_t run = ascii_run(bytes, position)) {
      position += run;
      continue;
    }
    const Sequence sequence = first_sequence(bytes.substr(position));
    if (sequence.form == Form::cut_off && !last) break;
    if (sequence.form != Form::whole) {
      out.append(bytes.substr(copied, position - copied));
      out.append("\xef\xbf\xbd");
      copied = position + sequence.length;
    }
    position += sequence.length;
  }
  out.append(bytes.substr(copied, position - copied));
  return position;
}

void append_utf8(char32_t character, std::string& out) {
  const auto tail = [&](int shift) {
    out.push_back(static_cast<char>(0x80 | ((character >> shift) & 0x3f)));
  };
  if (character < 0x80) {
    out.push_back(static_cast<char>(character));
  } else if (character < 0x800) {
    out.push_back(static_cast<char>(0xc0 | character >> 6));
    tail(0);
  } else if (character < 0x10000) {
    out.push_back(static_cast<char>(0xe0 | character >> 12));
    tail(6);
    tail(0);
  } else {
    out.push_back(static_cast<char>(0xf0 | character >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace kinora::tokenizer
