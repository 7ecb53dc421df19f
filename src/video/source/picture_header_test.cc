#include "video/source/picture_header.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/random_data.h"

namespace kinora {
namespace {

std::string bytes_of(uint32_t value, int count, bool big) {
  std::string out;
  for (int i = 0; i < count; ++i) {
    out += static_cast<char>(value >> 8 * (big ? count - 1 - i : i) & 0xff);
  }
  return out;
}

// TIFF data with a width and an orientation.
std::string tiff(uint32_t orientation, bool big) {
  const auto entry = [&](uint32_t tag, uint32_t value) {
    return bytes_of(tag, 2, big) + bytes_of(3, 2, big) + bytes_of(1, 4, big) +
           bytes_of(value, 2, big) + bytes_of(0, 2, big);
  };
  return (big ? "MM" : "II") + bytes_of(42, 2, big) + bytes_of(8, 4, big) + bytes_of(2, 2, big) +
         entry(256, 7) + entry(274, orientation) + bytes_of(0, 4, big);
}

const std::string mark("Exif\0\0", 6);

std::string jpeg(const std::string& exif) {
  const std::string body = mark + exif;
  return "\xff\xd8\xff\xe0" + bytes_of(4, 2, true) + "JF\xff\xff\xe1" +
         bytes_of(static_cast<uint32_t>(body.size() + 2), 2, true) + body + "\xff\xda";
}

std::string png(const std::string& exif) {
  return "\x89PNG\r\n\x1a\n" + bytes_of(3, 4, true) + "IHDRabcCRCC" +
         bytes_of(static_cast<uint32_t>(exif.size()), 4, true) + "eXIf" + exif + "CRCC";
}

std::string webp(const std::string& exif) {
  return "RIFFsizeWEBPVP8 " + bytes_of(3, 4, false) + "abc" + std::string(1, '\0') + "EXIF" +
         bytes_of(static_cast<uint32_t>(exif.size()), 4, false) + exif;
}

Orientation orientation_in(const std::string& file) {
  const std::vector<uint8_t> exact(file.begin(),
                                   file.end());  // a reader past its end is seen
  return picture_orientation(exact);
}

std::string_view special_in(const std::string& file) {
  return special_picture({reinterpret_cast<const uint8_t*>(file.data()), file.size()});
}

TEST(PictureHeader, EveryContainerTellsTheOrientation) {
  const Orientation expected[] = {{},
                                  {},
                                  {false, true, false},
                                  {false, true, true},
                                  {false, false, true},
                                  {true, false, false},
                                  Orientation::turned(1),
                                  {true, true, true},
                                  Orientation::turned(3),
                                  {}};
  for (const bool big : {false, true}) {
    for (uint32_t number = 0; number <= 9; ++number) {
      const std::string data = tiff(number, big);
      for (const std::string& file : {data, jpeg(data), png(data), webp(data), webp(mark + data)}) {
        EXPECT_EQ(orientation_in(file), expected[number]) << number;
      }
    }
  }
}

TEST(PictureHeader, OtherPicturesAreUpright) {
  for (const std::string& file : {std::string(), std::string("GIF89a"), jpeg("nonsense"),
                                  std::string("\x89PNG\r\n\x1a\n"), std::string("RIFF")}) {
    EXPECT_EQ(orientation_in(file), Orientation{});
  }
}

TEST(PictureHeader, HostileHeadersAreOnlyRead) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 4000; ++round) {
    const std::string data = tiff(6, round % 2 == 0);
    std::string file = round % 4 == 0   ? data
                       : round % 4 == 1 ? jpeg(data)
                       : round % 4 == 2 ? png(data)
                                        : webp(data);
    for (int64_t flips = random.below(8); flips > 0; --flips) {
      file[static_cast<size_t>(random.below(static_cast<int64_t>(file.size())))] =
          static_cast<char>(random.next());
    }
    file.resize(static_cast<size_t>(random.below(static_cast<int64_t>(file.size()) + 1)));
    orientation_in(file);
    special_in(file);
  }
}

TEST(PictureHeader, KindsThatFfmpegShowsInPartAreKnown) {
  EXPECT_EQ(special_in("RIFFsizeWEBPVP8X" + bytes_of(10, 4, false) + "\x02"), "animated WebP");
  EXPECT_EQ(special_in("RIFFsizeWEBPVP8X" + bytes_of(10, 4, false) + "\x10"), "");
  EXPECT_EQ(special_in(bytes_of(24, 4, true) + "ftypheic"), "HEIC");
  EXPECT_EQ(special_in(bytes_of(24, 4, true) + "ftypmif1"), "HEIC");
  EXPECT_EQ(special_in(bytes_of(24, 4, true) + "ftypavif"), "AVIF");
  EXPECT_EQ(special_in(bytes_of(24, 4, true) + "ftypisom"), "");
}

}  // namespace
}  // namespace kinora
