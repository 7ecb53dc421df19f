#include "corpora.h"

#include <cmath>
#include <string_view>

#include "base/random.h"

namespace kinora::bench {
namespace {

void append_character(char32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))};
  } else if (c < 0x10000) {
    out += {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3f)),
            static_cast<char>(0x80 | (c & 0x3f))};
  } else {
    out += {static_cast<char>(0xf0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 0x3f)),
            static_cast<char>(0x80 | (c >> 6 & 0x3f)), static_cast<char>(0x80 | (c & 0x3f))};
  }
}

// A number from [0, bound) that is small as often as the rank of a word in a text (Zipf).
size_t ranked(Random& random, size_t bound) {
  return static_cast<size_t>(std::pow(static_cast<double>(bound), random.uniform())) - 1;
}

std::string syllables(Random& random, int64_t count) {
  static constexpr std::string_view onsets[] = {"b",  "c",  "d",  "f",  "g",  "h", "l",  "m",
                                                "n",  "p",  "r",  "s",  "t",  "w", "st", "tr",
                                                "th", "sh", "pl", "ch", "qu", "",  "",   "v"};
  static constexpr std::string_view cores[] = {"a", "e", "i", "o", "u", "ea", "ou", "ai", "io"};
  static constexpr std::string_view codas[] = {"", "", "n", "r", "s", "t", "ng", "l", "nd", "ck"};
  std::string word;
  for (; count > 0; --count) {
    word += onsets[random.below(std::size(onsets))];
    word += cores[random.below(std::size(cores))];
    word += codas[random.below(std::size(codas))];
  }
  return word;
}

std::vector<std::string> vocabulary(Random& random, size_t size) {
  static constexpr std::string_view common[] = {
      "the",  "of",   "and",   "to",   "in",    "a",     "is",    "that",  "for",   "it",
      "was",  "on",   "with",  "as",   "are",   "be",    "this",  "have",  "from",  "or",
      "one",  "had",  "by",    "word", "but",   "not",   "what",  "all",   "were",  "we",
      "when", "your", "can",   "said", "there", "use",   "an",    "each",  "which", "she",
      "do",   "how",  "their", "if",   "will",  "other", "video", "frame", "shows", "person"};
  std::vector<std::string> words(std::begin(common), std::end(common));
  while (words.size() < size) words.push_back(syllables(random, 1 + random.below(4)));
  return words;
}

std::string prose(Random& random, size_t bytes) {
  const std::vector<std::string> words = vocabulary(random, 40000);
  std::string text;
  int64_t left = 8;
  bool first = true;
  while (text.size() < bytes) {
    std::string word = words[ranked(random, words.size())];
    if (first) word[0] = static_cast<char>(word[0] >= 'a' ? word[0] - 32 : word[0]);
    if (!first) text += ' ';
    text += word;
    first = false;
    if (random.below(40) == 0) text += "'s";
    if (random.below(12) == 0) text += ',';
    if (--left == 0) {
      text += random.below(8) == 0 ? "?" : ".";
      text += random.below(6) == 0 ? "\n\n" : " ";
      left = 4 + random.below(20);
      first = true;
    }
  }
  return text;
}

std::string code(Random& random, size_t bytes) {
  static constexpr std::string_view shapes[] = {"if (@ == @) {\n",
                                                "for (int i = 0; i < @.size(); ++i) {\n",
                                                "return @(@, @[#]);\n",
                                                "auto @_@ = @->@(#);\n",
                                                "}\n",
                                                "}\n",
                                                "// @ @ @ the @\n",
                                                "self.@ = @(@=\"@\", @=#)\n",
                                                "  std::vector<@> @;\n",
                                                "\n",
                                                "@ += # * (@ - #.#f);\n",
                                                "throw Error(\"@ @: \" + @);\n"};
  const std::vector<std::string> words = vocabulary(random, 4000);
  std::string text;
  while (text.size() < bytes) {
    text.append(static_cast<size_t>(2 * random.below(6)), ' ');
    for (const char c : shapes[random.below(std::size(shapes))]) {
      if (c == '@') {
        text += words[ranked(random, words.size())];
      } else if (c == '#') {
        text += std::to_string(random.below(300));
      } else {
        text += c;
      }
    }
  }
  return text;
}

std::string chinese(Random& random, size_t bytes) {
  // Common characters first; the block's order is not that of use, so spread them by a step.
  std::string text;
  int64_t left = 10;
  while (text.size() < bytes) {
    const size_t rank = ranked(random, 6000);
    append_character(0x4e00 + static_cast<char32_t>(rank * 7919 % 20902), text);
    if (--left == 0) {
      static constexpr std::string_view ends[] = {"，", "，", "。", "。\n", "、", "！"};
      text += ends[random.below(std::size(ends))];
      left = 3 + random.below(18);
    }
  }
  return text;
}

std::string mixed(Random& random, size_t bytes) {
  struct Script {
    char32_t first, last;
  };
  static constexpr Script scripts[] = {{0x61, 0x7a},     {0xc0, 0xff},     {0x3b1, 0x3c9},
                                       {0x430, 0x44f},   {0x5d0, 0x5ea},   {0x627, 0x64a},
                                       {0x905, 0x94d},   {0xe01, 0xe3a},   {0x3041, 0x3096},
                                       {0xac00, 0xd7a3}, {0x4e00, 0x9fff}, {0x1f300, 0x1f64f}};
  std::string text;
  while (text.size() < bytes) {
    const Script& script = scripts[random.below(std::size(scripts))];
    for (int64_t words = 1 + random.below(8); words > 0; --words) {
      for (int64_t left = 1 + random.below(9); left > 0; --left) {
        const auto width = static_cast<int64_t>(script.last - script.first) + 1;
        append_character(script.first + static_cast<char32_t>(random.below(width)), text);
        if (script.first == 0x61 && random.below(12) == 0) text += "\xcc\x81";  // decomposed
      }
      text += random.below(10) == 0 ? "!\n" : " ";
    }
  }
  return text;
}

std::string digits(Random& random, size_t bytes) {
  std::string text;
  while (text.size() < bytes) {
    text += std::to_string(random.next() >> random.below(63));
    static constexpr std::string_view between[] = {",", ", ", ".", "\n", " ", "\t", ":", "-"};
    text += between[random.below(std::size(between))];
  }
  return text;
}

}  // namespace

std::vector<Corpus> make_corpora(size_t bytes) {
  Random random(20);
  return {{"prose", prose(random, bytes)},
          {"code", code(random, bytes)},
          {"chinese", chinese(random, bytes)},
          {"mixed", mixed(random, bytes)},
          {"digits", digits(random, bytes)}};
}

}  // namespace kinora::bench
