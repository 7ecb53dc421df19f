// FFmpeg as it is found at run time.
#include "video/ffmpeg_functions.h"

#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <string>

#include "base/error.h"

namespace kinora {
namespace {

TEST(FfmpegFunctions, AreThoseOfTheHeaders) {
  EXPECT_EQ(avformat_version() >> 16, static_cast<unsigned>(LIBAVFORMAT_VERSION_MAJOR));
  EXPECT_EQ(find_ffmpeg(FfmpegLibrary::format, "av_packet_alloc"),
            reinterpret_cast<void*>(&::av_packet_alloc));
  // Of a library that comes along.
  EXPECT_EQ(find_ffmpeg(FfmpegLibrary::format, "av_strerror"),
            reinterpret_cast<void*>(&::av_strerror));
  EXPECT_EQ(find_ffmpeg(FfmpegLibrary::scale, "sws_scale"), reinterpret_cast<void*>(&::sws_scale));
}

// One that a header only defines inline would be found missing when a rare path calls it.
TEST(FfmpegFunctions, EveryOneOfTheListIsThere) {
  std::ifstream header(KINORA_SOURCE "/src/video/ffmpeg_functions.h");
  const std::regex entry(R"(^KINORA_FFMPEG\((format|scale), (\w+)\);$)");
  int64_t found = 0;
  bool choice = false;  // one of several versions
  for (std::string line; std::getline(header, line);) {
    if (line.starts_with("#if")) choice = true;
    if (line.starts_with("#endif")) choice = false;
    std::smatch match;
    if (choice || !std::regex_match(line, match, entry)) continue;
    const auto library = match[1] == "format" ? FfmpegLibrary::format : FfmpegLibrary::scale;
    EXPECT_NO_THROW(find_ffmpeg(library, match[2].str().c_str())) << line;
    ++found;
  }
  EXPECT_GT(found, 50);
}

TEST(FfmpegFunctions, OneThatIsMissingIsNamed) {
  try {
    find_ffmpeg(FfmpegLibrary::format, "av_make_coffee");
    FAIL() << "it was found";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    EXPECT_NE(std::string(error.what()).find("av_make_coffee"), std::string::npos);
  }
}

}  // namespace
}  // namespace kinora
