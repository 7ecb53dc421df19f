#include "base/one_line.h"

#include <gtest/gtest.h>

#include <string>

#include "support/random_data.h"

namespace kinora {
namespace {

TEST(OneLine, LeavesWhatIsHarmless) {
  EXPECT_EQ(one_line(""), "");
  EXPECT_EQ(one_line("a plain line, 100 % \\ {}"), "a plain line, 100 % \\ {}");
  EXPECT_EQ(one_line("Größe × 2 · 東京 🎬"), "Größe × 2 · 東京 🎬");
}

TEST(OneLine, EscapesWhatEndsOrMovesALine) {
  EXPECT_EQ(one_line("a\nb\rc\td"), "a\\nb\\rc\\td");
  EXPECT_EQ(one_line(std::string("\0\x1b[2J\x7f", 6)), "\\x00\\x1b[2J\\x7f");
  EXPECT_EQ(one_line("\xc2\x9b"), "\\u009b");  // the one-byte form of ESC [
  EXPECT_EQ(one_line("\xe2\x80\xae"
                     "gpj"),
            "\\u202egpj");  // what follows would run backwards
  EXPECT_EQ(one_line("\xe2\x80\xa8"), "\\u2028");
}

TEST(OneLine, EscapesBytesThatAreNoText) {
  EXPECT_EQ(one_line("caf\xe9"), "caf\\xe9");
  EXPECT_EQ(one_line("\xc0\xaf"), "\\xc0\\xaf");                    // longer than it needs to be
  EXPECT_EQ(one_line("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // half of a pair
  EXPECT_EQ(one_line("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // above the last character
  EXPECT_EQ(one_line("\xe2\x80"), "\\xe2\\x80");                    // cut short
}

TEST(OneLine, GivesALineThatStaysAsItIs) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (uint64_t left = random.next() % 24; left > 0; --left) {
      text += static_cast<char>(random.next());
    }
    const std::string line = one_line(text);
    EXPECT_EQ(one_line(line), line) << text;
    for (const char c : line) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
  }
}

}  // namespace
}  // namespace kinora
