// Hand-written matchers for the three split expressions that nearly every byte-level tokenizer
// uses. Proven equal to PCRE2 running the expressions themselves by tokenizer_split_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "text/tokenizer_characters.h"
#include "text/tokenizer_utf8.h"

namespace kinora::tokenizer {

enum class KnownSplit { gpt2, qwen2, llama3 };

inline constexpr std::string_view kGpt2Expression =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

// Walks over one text, word by word.
template <KnownSplit split>
class KnownMatcher {
 public:
  explicit KnownMatcher(std::string_view text) : text_(text), characters_(Characters::table()) {}

  // End of the word that begins at `begin` (< size).
  size_t word_end(size_t begin) const {
    size_t second = begin;
    const uint8_t first = take(second);
    constexpr uint8_t kWord = kLetter | kNumber;
    const char byte = text_[begin];
    if (byte == '\'') {
      if (const size_t end = contraction_end(begin)) return end;
    }
    if (first & kLetter) return run_end(second, kLetter);
    if (first & kNumber) return number_end(second);

    if (second < text_.size()) {
      size_t third = second;
      const uint8_t next = take(third);
      if constexpr (split == KnownSplit::gpt2) {
        if (byte == ' ') {
          if (next & kLetter) return run_end(third, kLetter);
          if (next & kNumber) return run_end(third, kNumber);
        }
      } else {
        if ((next & kLetter) && !(first & kNewline)) return run_end(third, kLetter);
      }
      if (byte == ' ' && !(next & (kSpace | kWord))) return symbols_end(third);
    }
    if (!(first & kSpace)) return symbols_end(second);
    return spaces_end(begin);
  }

 private:
  uint8_t take(size_t& position) const {
    const auto byte = static_cast<unsigned char>(text_[position]);
    if (byte < 0x80) {
      ++position;
      return characters_.ascii_flags(byte);
    }
    return characters_.flags(next_character(text_, position));
  }

  // Past all characters from `position` on that have `flag`.
  size_t run_end(size_t position, uint8_t flag) const {
    while (position < text_.size()) {
      size_t next = position;
      if (!(take(next) & flag)) break;
      position = next;
    }
    return position;
  }

  size_t number_end(size_t position) const {
    if constexpr (split == KnownSplit::gpt2) return run_end(position, kNumber);
    if constexpr (split == KnownSplit::llama3) {
      for (int more = 0; more < 2 && position < text_.size(); ++more) {
        size_t next = position;
        if (!(take(next) & kNumber)) break;
        position = next;
      }
    }
    return position;
  }

  // [^\s\p{L}\p{N}]* and, but for GPT-2, [\r\n]*.
  size_t symbols_end(size_t position) const {
    while (position < text_.size()) {
      size_t next = position;
      if (take(next) & (kSpace | kLetter | kNumber)) break;
      position = next;
    }
    return split == KnownSplit::gpt2 ? position : run_end(position, kNewline);
  }

  // \s*[\r\n]+ | \s+(?!\S) | \s+ (the first but for GPT-2), at a white space.
  size_t spaces_end(size_t begin) const {
    size_t position = begin;
    size_t last = begin;     // start of the last white space of the run
    size_t newline_end = 0;  // past the last line break of the run
    while (position < text_.size()) {
      size_t next = position;
      const uint8_t flags = take(next);
      if (!(flags & kSpace)) break;
      last = position;
      position = next;
      if (flags & kNewline) newline_end = next;
    }
    if (split != KnownSplit::gpt2 && newline_end) return newline_end;
    // The last space before a word is left to that word, unless it is alone.
    return position == text_.size() || last == begin ? position : last;
  }

  // End of 's 't 're 've 'm 'll 'd at the apostrophe `begin`, or 0. Whatever the case, but for
  // GPT-2; then the long s (U+017F) is an s too.
  size_t contraction_end(size_t begin) const {
    const auto letter = [&](size_t offset) -> char {
      if (begin + offset >= text_.size()) return 0;
      const char c = text_[begin + offset];
      return split != KnownSplit::gpt2 && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    };
    switch (letter(1)) {
      case 's':
      case 't':
      case 'm':
      case 'd':
        return begin + 2;
      case 'r':
      case 'v':
        return letter(2) == 'e' ? begin + 3 : 0;
      case 'l':
        return letter(2) == 'l' ? begin + 3 : 0;
      case '\xc5':
        return split != KnownSplit::gpt2 && letter(2) == '\xbf' ? begin + 3 : 0;
      default:
        return 0;
    }
  }

  std::string_view text_;
  const Characters& characters_;
};

template <KnownSplit split, typename Visit>
void for_each_known_word(std::string_view text, Visit&& visit) {
  const KnownMatcher<split> matcher(text);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = matcher.word_end(begin);
    visit(text.substr(begin, end - begin));
    begin = end;
  }
}

}  // namespace kinora::tokenizer
