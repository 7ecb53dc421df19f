#include "video/source/embedded_subtitles.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "video/test_media.h"

namespace kinora {
namespace {

constexpr const char* english =
    "1\n00:00:00,500 --> 00:00:01,250\n<i>Hello</i>,\nworld\n\n"
    "2\n00:00:02,000 --> 00:00:03,000\nand again\n";
constexpr const char* german = "1\n00:00:01,000 --> 00:00:02,000\nGuten Tag\n";

// A clip of four seconds with sound and two tracks of subtitles, the second of them the one to
// show.
std::string clip(const std::string& name, const std::string& output) {
  const std::string folder = scratch_directory();
  write_file(folder + "/en.srt", english);
  write_file(folder + "/de.srt", german);
  return make_media(name,
                    "-f lavfi -i testsrc2=size=64x48:rate=8:duration=4 -f lavfi -i "
                    "sine=duration=4 -i " +
                        folder + "/de.srt -i " + folder +
                        "/en.srt -map 0 -map 1 -map 2 -map 3 -metadata:s:s:0 language=ger "
                        "-metadata:s:s:1 language=eng -disposition:s:0 0 "
                        "-disposition:s:1 default -pix_fmt yuv420p " +
                        output);
}

void expect_english(const std::vector<Subtitle>& found) {
  ASSERT_EQ(found.size(), 2u);
  EXPECT_NEAR(found[0].begin, 0.5, 0.01);
  EXPECT_NEAR(found[0].end, 1.25, 0.01);
  EXPECT_EQ(found[0].text, "Hello, world");
  EXPECT_NEAR(found[1].begin, 2, 0.01);
  EXPECT_EQ(found[1].text, "and again");
}

TEST(EmbeddedSubtitles, AreListedAndRead) {
  for (const auto& [name, output] : {std::pair("subtitles.mkv", "-c:s srt"),
                                     {"subtitles.mp4", "-c:s mov_text"},
                                     {"subtitles_ass.mkv", "-c:s ass"}}) {
    SCOPED_TRACE(name);
    const auto video = open_video(clip(name, output));
    EXPECT_TRUE(video->info().has_audio);
    ASSERT_EQ(video->info().subtitles.size(), 2u);
    EXPECT_EQ(video->info().subtitles[0].language, "ger");
    EXPECT_TRUE(video->info().subtitles[0].text);
    expect_english(video->subtitles(""));  // the default, though it comes second
    expect_english(video->subtitles("eng"));
    const auto other = video->subtitles("ger");
    ASSERT_EQ(other.size(), 1u);
    EXPECT_EQ(other[0].text, "Guten Tag");
    // Frames are read as before.
    EXPECT_EQ(video->sample(FrameChoice::all()).size(), 32u);
  }
}

TEST(EmbeddedSubtitles, TimesCountFromTheFirstFrame) {
  const auto video = open_video(clip("subtitles_late.mkv", "-c:s srt -output_ts_offset 7"));
  ASSERT_NEAR(video->info().start_offset, 7, 0.1);
  expect_english(video->subtitles(""));
}

TEST(EmbeddedSubtitles, SayWhatIsMissing) {
  const auto error_of = [](const auto& work) {
    try {
      work();
    } catch (const Error& error) {
      return std::pair(error.kind(), std::string(error.what()));
    }
    return std::pair(ErrorKind::internal, std::string("no error"));
  };
  const auto plain =
      open_video(make_media("plain.mp4", "-f lavfi -i testsrc2=size=64x48:rate=8:duration=1"));
  const auto [kind, text] = error_of([&] { plain->subtitles(""); });
  EXPECT_EQ(kind, ErrorKind::bad_input) << text;
  EXPECT_NE(text.find("no subtitles inside it"), std::string::npos) << text;

  const std::vector<SubtitleTrack> tracks = {{2, "eng", "dvd_subtitle", false, 0},
                                             {3, "ger", "subrip", true, 3}};
  EXPECT_EQ(choose_subtitles(tracks, "", "x").language, "ger");  // text before pictures
  EXPECT_EQ(error_of([&] { choose_subtitles(tracks, "eng", "x"); }).first, ErrorKind::unsupported);
  const auto [none, names] = error_of([&] { choose_subtitles(tracks, "fre", "x"); });
  EXPECT_EQ(none, ErrorKind::bad_input);
  EXPECT_NE(names.find("eng (dvd_subtitle), ger (subrip)"), std::string::npos) << names;
}

TEST(EmbeddedSubtitles, ACutFileGivesWhatItHas) {
  const std::string whole = read_whole(clip("subtitles.mkv", "-c:s srt"));
  const std::string path = scratch_directory() + "/cut.mkv";
  for (const size_t size : {whole.size() / 2, whole.size() * 3 / 4}) {
    write_file(path, whole.substr(0, size));
    const auto video = open_video(path);
    EXPECT_LE(video->subtitles("").size(), 2u);
  }
}

}  // namespace
}  // namespace kinora
