#include "video/source/subtitles.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

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

std::string error_of(ErrorKind kind, const std::string& content) {
  try {
    parse_subtitles(content, "x.srt");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << content.substr(0, 200);
  return "";
}

const char* const ass_header =
    "[Script Info]\nScriptType: v4.00+\n\n[Events]\n"
    "Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\n";

TEST(Subtitles, ReadsAss) {
  const auto found = parse_subtitles(
      std::string(ass_header) +
          "Comment: 0,0:00:00.00,0:00:01.00,Default,,0,0,0,,not shown\n"
          "Dialogue: 0,1:00:05.50,1:00:07.00,Default,Ann,0,0,0,,Well, {\\i1}second{\\i0}\n"
          "Dialogue: 0,0:00:01.25,0:00:02.00,Default,,0,0,0,,{a note}First\\Nline,\\hand\\n{x\n",
      "a.ass");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].begin, 1.25);
  EXPECT_EQ(found[0].end, 2.0);
  EXPECT_EQ(found[0].text, "First line, and {x");
  EXPECT_EQ(found[1].begin, 3605.5);
  EXPECT_EQ(found[1].text, "Well, second");
}

TEST(Subtitles, ReadsOtherFormats) {
  const auto sami = parse_subtitles(
      "<SAMI><BODY>\n<SYNC Start=1000><P Class=ENCC>Hello\n<SYNC Start=2500><P "
      "Class=ENCC>&nbsp;\n<SYNC Start=3000><P Class=ENCC>there\n</BODY></SAMI>\n",
      "a.smi");
  ASSERT_GE(sami.size(), 2u);
  EXPECT_EQ(sami.front().begin, 1.0);
  EXPECT_EQ(sami.front().text, "Hello");
  EXPECT_EQ(sami.back().text, "there");
  const auto lyrics = parse_subtitles("[00:01.00]One\n[00:02.50]Two\n", "a.lrc");
  ASSERT_EQ(lyrics.size(), 2u);
  EXPECT_EQ(lyrics[0].end, 2.5);
  EXPECT_EQ(lyrics[1].begin, 2.5);
  EXPECT_GE(lyrics[1].end, 2.5);
}

// Files as people have them.
TEST(Subtitles, IsLenientWhereNothingIsLost) {
  // No numbers, or odd ones; points for commas; coordinates; blank lines; no end of line.
  const auto plain = parse_subtitles(
      "00:00:01.000 --> 00:00:02.000 X1:1 X2:2 Y1:3 Y2:4\nat 12\n\n1984\n\n\n"
      "00:00:03,000 --> 00:00:04,000\nends here",
      "a.srt");
  ASSERT_EQ(plain.size(), 2u);
  EXPECT_EQ(plain[0].text, "at 12");
  EXPECT_EQ(plain[1].begin, 3.0);
  EXPECT_EQ(plain[1].text, "ends here");
  // UTF-16, as some editors write it.
  const std::string narrow = "1\n00:00:01,000 --> 00:00:02,000\nwide\n";
  std::string wide = "\xff\xfe";
  for (const char c : narrow) wide += {c, '\0'};
  EXPECT_EQ(parse_subtitles(wide, "a.srt").front().text, "wide");
  // Cues without text, and the same cue twice.
  const auto empty = parse_subtitles(
      "1\n00:00:01,000 --> 00:00:02,000\n\n2\n00:00:03,000 --> 00:00:04,000\nsaid\n", "a.srt");
  ASSERT_EQ(empty.size(), 1u);
  EXPECT_EQ(empty[0].text, "said");
  const std::string cue = "00:01.000 --> 00:02.000\n";
  const auto webvtt =
      parse_subtitles("WEBVTT\r\n\r\n" + cue + "\n" + cue + "said\n\n" + cue + "said\n", "a.vtt");
  ASSERT_EQ(webvtt.size(), 1u);
  EXPECT_EQ(webvtt[0].text, "said");
}

TEST(Subtitles, LeavesOutMarkupOnly) {
  const std::string srt = "1\n00:00:01,000 --> 00:00:02,000\n";
  const auto text = [](const std::string& content) {
    return parse_subtitles(content, "x").front().text;
  };
  EXPECT_EQ(text(srt + "<font color=\"red\" size=5>a</font> <b>b"), "a b");
  EXPECT_EQ(text(srt + "{sighs} a {\\an8}{\\fs10}b { c"), "{sighs} a b { c");
  EXPECT_EQ(text(srt + "1 << 2 and 3 > 2, a & b"), "1 << 2 and 3 > 2, a & b");
  EXPECT_EQ(text(srt + "C:\\new\\Windows \xe2\x99\xaa na\xc3\xafve"),
            "C:\\new\\Windows \xe2\x99\xaa na\xc3\xafve");
  const std::string vtt = "WEBVTT\n\nSTYLE\n::cue {}\n\nREGION\nid:x\n\n00:01.000 --> 00:02.000\n";
  EXPECT_EQ(text(vtt + "<c.loud>a</c> &lt;b&gt; &amp; {c}\nd"), "a <b> & {c} d");
}

// A time that cannot be read is named, wherever it stands.
TEST(Subtitles, NamesBrokenTimes) {
  const std::string good = "1\n00:00:01,000 --> 00:00:02,000\na\n\n";
  const std::string bad = "2\n00:00:xx,000 --> 00:00:04,000\nb\n\n";
  for (const std::string& content : {good + bad, good + bad + good, bad + good}) {
    EXPECT_NE(error_of(ErrorKind::bad_input, content).find("is not a time"), std::string::npos);
  }
  EXPECT_NE(error_of(ErrorKind::bad_input, bad + good).find("line 2: '00:00:xx"),
            std::string::npos);
  const std::string first = "WEBVTT\n\n00:01.000 --> 00:02.000\na\n\n";
  const std::string broken = "00:03.000 --> 00:x4.000\nb\n\n";
  const std::string last = "00:05.000 --> 00:06.000\nc\n";
  for (const std::string& content : {first + broken, first + broken + last}) {
    EXPECT_NE(error_of(ErrorKind::bad_input, content).find("line 6: '00:03.000 --> 00:x4.000'"),
              std::string::npos)
        << error_of(ErrorKind::bad_input, content);
  }
  EXPECT_NE(error_of(ErrorKind::bad_input, first.substr(0, first.size() - 1) + last)
                .find("line 5: an empty line"),
            std::string::npos);
  EXPECT_NE(error_of(ErrorKind::bad_input, first + "WHAT\nis this\n\n" + last).find("line"),
            std::string::npos);
  error_of(ErrorKind::bad_input, "1\n-01:00:00,000 --> 00:00:02,000\nx\n");
  // An arrow is no time where times are written otherwise.
  const auto arrow = parse_subtitles(
      std::string(ass_header) + "Dialogue: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,a --> b\n", "x");
  EXPECT_EQ(arrow.front().text, "a --> b");
}

TEST(Subtitles, RefusesOtherFiles) {
  // Text that is not UTF-8.
  EXPECT_NE(
      error_of(ErrorKind::bad_input, "1\n00:00:01,000 --> 00:00:02,000\nna\xefve\n").find("UTF-8"),
      std::string::npos);
  // Files that name other files, videos and pictures.
  error_of(ErrorKind::bad_input, "ffconcat version 1.0\nfile /etc/passwd\n");
  error_of(ErrorKind::bad_input, "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\nhttp://x/a.ts\n");
  error_of(ErrorKind::bad_input, std::string("\0\0\0\x18"
                                             "ftypisom\0\0\2\0isomiso2",
                                             24));
  error_of(ErrorKind::bad_input, "\x89PNG\r\n\x1a\n");
  error_of(ErrorKind::bad_input, std::string(100000, '\0'));
  error_of(ErrorKind::resource, std::string(17 << 20, ' '));
}

// Every extreme in one place: many cues, one long cue, unclosed markup without end.
TEST(Subtitles, LongFiles) {
  std::string many;
  for (int i = 0; i < 20000; ++i)
    many += "1\n00:00:01,000 --> 00:00:02,000\n" + std::to_string(i) + " says\n\n";
  EXPECT_EQ(parse_subtitles(many, "x").size(), 20000u);
  std::string too_many;
  for (int i = 0; i < 300000; ++i) too_many += "0:0:0,0 --> 0:0:1,0\n" + std::to_string(i) + "a\n";
  EXPECT_NE(error_of(ErrorKind::resource, too_many).find("262144"), std::string::npos);
  for (const char* piece : {"{\\", "{", "<", "<i>", "\\", "&amp;", "a\n", "{\\i1}"}) {
    std::string content = "1\n00:00:01,000 --> 00:00:02,000\nx";
    while (content.size() < 1 << 20) content += piece;
    EXPECT_EQ(parse_subtitles(content, "x").size(), 1u) << piece;
    content.replace(0, 2, "WEBVTT\n\n");
    content.replace(content.find(','), 1, ".");
    content.replace(content.find(','), 1, ".");
    EXPECT_EQ(parse_subtitles(content, "x").size(), 1u) << piece;
  }
}

// Counted, not timed: each kind of file, and one twice as long.
TEST(Subtitles, WorkIsLinearInTheFile) {
  struct Kind {
    const char* name;
    std::string begin;
    std::string piece;
  };
  const std::string srt = "1\n00:00:01,000 --> 00:00:02,000\nx";
  const std::string vtt = "WEBVTT\n\n00:01.000 --> 00:02.000\nx";
  const std::string ass =
      std::string(ass_header) + "Dialogue: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,x";
  std::vector<Kind> kinds = {
      {"cues", "", "1\n00:00:01,000 --> 00:00:02,000\n# said\n\n"},
      {"WebVTT's cues", "WEBVTT\n\n", "00:01.000 --> 00:02.000\n<v Ann># said\n\n"},
      {"cues without text", srt + "\n\n", "1\n00:00:01,000 --> 00:00:02,000\n\n"},
      {"text before the first cue", "", "not a cue\n"},
      {"notes", "WEBVTT\n\n", "NOTE nothing\n\nSTYLE\n::cue {}\n\n"}};
  for (const char* piece : {"<", "<i>", "{", "{\\", "{\\i1}", "}", "\\", "&amp;", "\nx"}) {
    kinds.push_back({piece, srt, piece});
    kinds.push_back({piece, vtt, piece});
    if (piece[0] != '\n') kinds.push_back({piece, ass, piece});
  }
  for (const Kind& kind : kinds) {
    SCOPED_TRACE(std::string(kind.name) + " after " + kind.begin);
    const auto turns = [&](size_t count) {
      std::string content = kind.begin;
      // The same cue twice is read once.
      const size_t mark = kind.piece.find('#');
      for (size_t i = 0; i < count; ++i) {
        content += mark == std::string::npos
                       ? kind.piece
                       : std::string(kind.piece).replace(mark, 1, std::to_string(i));
      }
      if (kind.begin.empty() || kind.begin.size() < 10) content += "\n" + srt.substr(2) + "\n";
      LoopGuard guard;
      try {
        parse_subtitles(content, "x", guard);
      } catch (const Error&) {  // what makes no sense is refused in linear time as well
      }
      return static_cast<double>(guard.turns());
    };
    const double once = turns(40'000);
    EXPECT_LE(turns(80'000), 2.2 * once + 100);
  }
}

TEST(Subtitles, EndWhenCancelled) {
  std::string many;
  for (int i = 0; i < 20000; ++i) {
    many += "1\n00:00:01,000 --> 00:00:02,000\n" + std::to_string(i) + " said\n\n";
  }
  const CancelToken cancel;
  cancel.cancel();
  LoopGuard guard(cancel);
  EXPECT_THROW(parse_subtitles(many, "x", guard), Error);
  EXPECT_LE(guard.turns(), 4096 + 64);
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

// Valid files with a few bytes changed, cut or doubled.
TEST(Subtitles, DamagedFilesNeverCrash) {
  KINORA_FRESH_RANDOM(random);
  const std::vector<std::string> files = {
      "1\n00:00:01,500 --> 00:00:03,000\n<i>Hello</i>, {\\an8}world\n\n2\n00:00:04,000 --> "
      "00:00:05,000\n<font color=\"red\">x</font>\n",
      "WEBVTT\n\nSTYLE\n::cue {}\n\nid\n00:05.000 --> 00:07.000 align:start\n<v Ann>a &amp; b\n",
      std::string(ass_header) + "Dialogue: 0,0:00:01.25,0:00:02.00,Default,,0,0,0,,{\\b1}a\\Nb\n",
      "{10}{25}{y:i}a|b\n{30}{40}c\n",
      "[10][25]a|b\n[30][40]c\n",
      "[00:01.00]a\n[00:02.00]b\n",
      "<SAMI><BODY><SYNC Start=1000><P>Hello<SYNC Start=2500><P>x</BODY></SAMI>\n"};
  for (int round = 0; round < 2000; ++round) {
    std::string content = files[static_cast<size_t>(round) % files.size()];
    for (int64_t change = random.below(4); change >= 0; --change) {
      const auto at = static_cast<size_t>(random.below(static_cast<int64_t>(content.size())));
      const int64_t how = random.below(3);
      if (how == 0) content[at] = static_cast<char>(random.below(256));
      if (how == 1) content.erase(at, 1 + static_cast<size_t>(random.below(5)));
      if (how == 2) content.insert(at, content.substr(at, 20));
      if (content.empty()) content = "x";
    }
    try {
      for (const Subtitle& subtitle : parse_subtitles(content, "x")) {
        EXPECT_GE(subtitle.begin, 0) << content;
        EXPECT_GE(subtitle.end, subtitle.begin) << content;
        EXPECT_FALSE(subtitle.text.empty()) << content;
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input) << content;
    }
  }
}

}  // namespace
}  // namespace kinora
