#include "engine/subtitles.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/random_data.h"

namespace kinora {
namespace {

TEST(Subtitles, ReadsSubRip) {
  const auto found = parse_subtitles(
      "\xef\xbb\xbf"
      "1\r\n00:00:01,500 --> 00:00:03,000\r\n<i>Hello</i>,\r\n{\\an8}world & all\r\n\r\n"
      "2\r\n01:00:00,000 --> 01:00:02,250\r\n2 < 3\r\n",
      "a.srt");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].begin, 1.5);
  EXPECT_EQ(found[0].end, 3.0);
  EXPECT_EQ(found[0].text, "Hello, world & all");
  EXPECT_EQ(found[1].begin, 3600.0);
  EXPECT_EQ(found[1].text, "2 < 3");
}

TEST(Subtitles, ReadsWebVttAndSorts) {
  const auto found = parse_subtitles(
      "WEBVTT - a title\n\nNOTE nothing\n\nSTYLE\n::cue { color: red }\n\n"
      "intro\n00:05.000 --> 00:07.000 align:start position:10%\n<v Ann>Second\n\n"
      "00:00:01.000 --> 00:00:02.000\nFirst\n",
      "a.vtt");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].text, "First");
  EXPECT_EQ(found[1].text, "Second");
  EXPECT_EQ(found[1].begin, 5.0);
}

TEST(Subtitles, RefusesWhatIsNone) {
  for (const char* wrong :
       {"", "just text\n", "1\n00:00:01 -> 00:00:02\nx\n", "1\n00:00:xx,000 --> 00:00:02,000\nx\n",
        "5 --> 6\nx\n", "1\n00:00:03,000 --> 00:00:02,000\nx\n", "00:01.0 --> 00:02.0\n\n",
        "1\n1:2:3:4 --> 1:2:3:5\nx\n", "-00:01.0 --> 00:02.0\nx"}) {
    try {
      parse_subtitles(wrong, "x.srt");
      ADD_FAILURE() << "accepted: " << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input);
      EXPECT_NE(std::string(error.what()).find("x.srt"), std::string::npos);
    }
  }
}

TEST(Subtitles, RandomBytesNeverCrash) {
  KINORA_FRESH_RANDOM(random);
  const std::string letters = "0123456789:,.->\n \r<{\\}>aW";
  for (int round = 0; round < 500; ++round) {
    std::string content;
    for (int64_t i = random.below(200); i > 0; --i) {
      content += letters[static_cast<size_t>(random.below(static_cast<int64_t>(letters.size())))];
    }
    try {
      parse_subtitles(content, "x");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input) << content;
    }
  }
}

}  // namespace
}  // namespace kinora
