// NFC and UTF-8.
#include "text/tokenizer_normalizer.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <memory>

#include "support/random_data.h"
#include "text/tokenizer_characters.h"
#include "text/tokenizer_test_text.h"
#include "text/tokenizer_utf8.h"

namespace kinora::tokenizer {
namespace {

std::string nfc(std::string_view text) {
  std::string scratch;
  return std::string(to_nfc(text, scratch));
}

std::string nfc_of_utf8proc(const std::string& text) {
  utf8proc_uint8_t* result = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &result,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::string copy(reinterpret_cast<const char*>(result), static_cast<size_t>(length));
  std::free(result);
  return copy;
}

// Characters whose part in NFC is younger than the reference's Unicode 9, and one that utf8proc
// itself gets wrong.
bool differs(char32_t character) {
  if (Characters::table().flags(character) & kNotInert) return false;
  if (character == 0x11a7)
    return true;  // no trailing consonant; utf8proc loses it after a syllable
  const utf8proc_property_t* property =
      utf8proc_get_property(static_cast<utf8proc_int32_t>(character));
  return property->combining_class != 0 || (character >= 0x105c0 && character <= 0x105f3) ||
         (character >= 0x11900 && character <= 0x1195f);
}

TEST(Normalizer, EqualsUtf8procOnRandomText) {
  KINORA_FRESH_RANDOM(random);
  int changed = 0;
  for (int i = 0; i < 50000; ++i) {
    std::string text;
    for (int64_t left = 1 + random.below(20); left > 0; --left) {
      const char32_t character = tokenizer::testing::random_character(random);
      if (!differs(character)) append_utf8(character, text);
    }
    const std::string expected = nfc_of_utf8proc(text);
    changed += expected != text;
    ASSERT_EQ(nfc(text), expected) << text;
  }
  EXPECT_GT(changed, 1000);
}

TEST(Normalizer, EqualsUtf8procOnEveryCharacter) {
  for (char32_t c = 0; c < 0x110000; c += c < 0x40000 ? 1 : 251) {
    if ((c >= 0xd800 && c < 0xe000) || differs(c)) continue;
    for (const char* before : {"", "A", "\xe1\x84\x80"}) {
      std::string text = before;
      append_utf8(c, text);
      text += "\xcc\x81\xcc\xa3";
      ASSERT_EQ(nfc(text), nfc_of_utf8proc(text)) << "U+" << std::hex << static_cast<uint32_t>(c);
    }
  }
}

TEST(Normalizer, LeavesNewerMarksWhereTheyAre) {
  // U+1DF9 (Unicode 10, class 220) would be moved before U+0301 (class 230) by a newer table.
  EXPECT_EQ(nfc("a\xcc\x81\xe1\xb7\xb9"), "\xc3\xa1\xe1\xb7\xb9");
  EXPECT_EQ(nfc("x\xe1\xb7\xb9\xcc\xb4"), "x\xe1\xb7\xb9\xcc\xb4");
  // U+11935 U+11930 are one character only since Unicode 13.
  EXPECT_EQ(nfc("\xf0\x91\xa4\xb5\xf0\x91\xa4\xb0"), "\xf0\x91\xa4\xb5\xf0\x91\xa4\xb0");
}

TEST(Normalizer, KeepsTheCharacterBeforeTheTrailingConsonants) {
  EXPECT_EQ(nfc("\xea\xb0\x80\xe1\x86\xa7"), "\xea\xb0\x80\xe1\x86\xa7");
  EXPECT_EQ(nfc("\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8"), "\xea\xb0\x81");
}

TEST(Normalizer, GivesBackTextThatNeedsNothing) {
  const std::string text = "Plain, é, 中文, Привет 🎬";
  std::string scratch;
  EXPECT_EQ(to_nfc(text, scratch).data(), text.data());
}

TEST(Normalizer, AMillionMarksTakeNoTime) {
  std::string text = "a";
  for (int i = 0; i < 500'000; ++i) text += "\xcc\x81";                       // class 230
  for (int i = 0; i < 500'000; ++i) text += i % 2 ? "\xcc\xa3" : "\xcc\xb4";  // classes 220 and 1
  const std::string result = nfc(text);
  EXPECT_EQ(result.substr(0, 5), "\xe1\xba\xa1\xcc\xb4");  // ạ: class 1 does not block 220
  EXPECT_EQ(result.substr(result.size() - 2), "\xcc\x81");
}

TEST(Utf8, FindsTheFirstBrokenByte) {
  EXPECT_EQ(find_invalid_utf8(""), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("plain text and é中🎬\xf4\x8f\xbf\xbf"), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8(std::string_view("\0x", 2)), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("0123456789\xff"), 10u);
  for (const char* broken : {"\x80", "\xc0\x80", "\xc1\xbf", "\xc3", "\xe0\x9f\xbf", "\xed\xa0\x80",
                             "\xe4\xb8", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5", "\xff"}) {
    EXPECT_EQ(find_invalid_utf8(std::string("ab") + broken), 2u);
    EXPECT_EQ(find_invalid_utf8(std::string("ab") + broken + "c"), 2u);
  }
}

TEST(Utf8, ReplacesMaximalBrokenParts) {
  const auto replaced = [](std::string_view bytes) {
    std::string out;
    append_replacing_broken(bytes, true, out);
    return out;
  };
  const std::string mark = "\xef\xbf\xbd";
  EXPECT_EQ(replaced("a\xf0\x9f\x8e"), "a" + mark);
  EXPECT_EQ(replaced("a\xf0\x9f\x8e"
                     "b"),
            "a" + mark + "b");
  EXPECT_EQ(replaced("\xed\xa0\x80"), mark + mark + mark);
  EXPECT_EQ(replaced("\xe4\xe4\xb8\xad"), mark + "中");
  EXPECT_EQ(replaced("\xc0\xaf"), mark + mark);
  std::string out;
  EXPECT_EQ(append_replacing_broken("long enough text \xf0\x9f", false, out), 17u);
  EXPECT_EQ(out, "long enough text ");
}

}  // namespace
}  // namespace kinora::tokenizer
