// Splitting: the hand-written matchers against PCRE2 on random text, and the carrying over of
// expressions from Oniguruma's syntax.
#include "text/tokenizer_split.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "support/random_data.h"
#include "text/tokenizer_test_text.h"

namespace kinora::tokenizer {
namespace {

std::vector<std::string> words(const Splitter& splitter, std::string_view text) {
  std::vector<std::string> found;
  splitter.for_each_word(text, [&](std::string_view word) { found.emplace_back(word); });
  return found;
}

std::vector<std::string> words(std::string_view expression, std::string_view text) {
  return words(Splitter(std::string(expression)), text);
}

using Words = std::vector<std::string>;

TEST(Splitter, ByHandEqualsPcre2OnRandomText) {
  KINORA_FRESH_RANDOM(random);
  for (const std::string_view expression : {kGpt2Expression, kQwen2Expression, kLlama3Expression}) {
    const Splitter fast{std::string(expression)};
    const Splitter slow(std::string(expression), Splitter::Engine::regex);
    for (int i = 0; i < 20000; ++i) {
      const std::string text = tokenizer::testing::random_text(random, 1 + random.below(40));
      ASSERT_EQ(words(fast, text), words(slow, text)) << expression << "\n" << text;
    }
  }
}

TEST(Splitter, ByHandEqualsPcre2OnEveryCharacter) {
  for (const std::string_view expression : {kGpt2Expression, kQwen2Expression, kLlama3Expression}) {
    const Splitter fast{std::string(expression)};
    const Splitter slow(std::string(expression), Splitter::Engine::regex);
    for (char32_t c = 0; c < 0x110000; c += c < 0x40000 ? 1 : 251) {
      if (c >= 0xd800 && c < 0xe000) continue;
      std::string text = "a";
      append_utf8(c, text);
      append_utf8(c, text);
      text += "1 ";
      append_utf8(c, text);
      text += "'";
      append_utf8(c, text);
      ASSERT_EQ(words(fast, text), words(slow, text))
          << expression << " U+" << std::hex << static_cast<uint32_t>(c);
    }
  }
}

TEST(Splitter, KnowsTheCornersOfTheExpressions) {
  EXPECT_EQ(words(kQwen2Expression, "it's 1234  x\n\n y"),
            (Words{"it", "'s", " ", "1", "2", "3", "4", " ", " x", "\n\n", " y"}));
  EXPECT_EQ(words(kLlama3Expression, "12345.\r\n\t\tz"),
            (Words{"123", "45", ".\r\n", "\t", "\tz"}));
  EXPECT_EQ(words(kQwen2Expression, "I'LL \xc5\xbf'\xc5\xbf"),
            (Words{"I", "'LL", " \xc5\xbf", "'\xc5\xbf"}));
  EXPECT_EQ(words(kGpt2Expression, "we'LL 12 a  "), (Words{"we", "'", "LL", " 12", " a", "  "}));
  // U+180E is no white space.
  EXPECT_EQ(words(kQwen2Expression, "\xe1\xa0\x8e\xe1\xa0\x8e a"),
            (Words{"\xe1\xa0\x8e\xe1\xa0\x8e", " a"}));
}

TEST(Splitter, GivesTheTextBetweenMatchesToo) {
  EXPECT_EQ(words("b+", "abbbcb"), (Words{"a", "bbb", "c", "b"}));
  EXPECT_EQ(words("x*", "axxb"), (Words{"a", "xx", "b"}));
  EXPECT_EQ(words("(?=b)", "abab"), (Words{"a", "ba", "b"}));
  EXPECT_EQ(words("b", ""), Words{});
}

TEST(Splitter, CarriesOverWhatMeansSomethingElse) {
  EXPECT_EQ(words(R"(\h+)", "xyzCAFE12q"), (Words{"xyz", "CAFE12", "q"}));
  EXPECT_EQ(words(R"(\u00e9)", "aéb"), (Words{"a", "é", "b"}));
  EXPECT_EQ(words(R"([^]a]+)", "a]bc]"), (Words{"a]", "bc", "]"}));
  EXPECT_EQ(words(R"(\w+)", "été ‿ x"), (Words{"été", " ", "‿", " ", "x"}));
}

TEST(Splitter, RefusesWhatItCannotCarryOver) {
  for (const char* expression : {R"([a[bc]])", R"([a-z&&[^aeiou]])", R"((?m).)", R"(a{1,2}+)",
                                 R"(\X)", R"([\W])", R"(\p)", R"(a\)", "(", R"(\p{NoSuch})"}) {
    EXPECT_THROW(Splitter{std::string(expression)}, Error) << expression;
  }
}

TEST(Splitter, LongRunsTakeLinearTime) {
  for (const char* part : {" ", "\n ", "a", "'", "1", "\xe4\xb8\xad", " \t", "<|"}) {
    std::string text;
    while (text.size() < 4'000'000) text += part;
    for (const std::string_view expression : {kQwen2Expression, kLlama3Expression}) {
      size_t total = 0;
      Splitter{std::string(expression)}.for_each_word(
          text, [&](std::string_view word) { total += word.size(); });
      EXPECT_EQ(total, text.size());
    }
  }
}

}  // namespace
}  // namespace kinora::tokenizer
