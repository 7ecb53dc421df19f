// The public interface of video/, with real conversion.
#include "video/video.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "video/convert/convert.h"
#include "video/test_media.h"

namespace kinora {
namespace {

const std::string source = "-f lavfi -i testsrc2=size=128x96:rate=24:duration=5 ";

std::vector<uint8_t> bytes_of(const FrameGroup& group, int64_t frame) {
  const ConstTensorView view = group.pixels.view();
  const ConstTensorView one = view[frame];
  const auto* begin = reinterpret_cast<const uint8_t*>(one.raw());
  return std::vector<uint8_t>(begin, begin + one.bytes());
}

std::vector<std::vector<uint8_t>> convert_plainly(const std::string& path, FrameSize size,
                                                  const Orientation& orientation) {
  FrameConverter converter({static_cast<int>(size.width), static_cast<int>(size.height)},
                           orientation);
  std::vector<std::vector<uint8_t>> pictures;
  for_each_plain_frame(path, [&](const AVFrame& frame) {
    Tensor out(DType::u8, {size.height, size.width, 3});
    converter.convert(frame, out);
    pictures.emplace_back(out.data<uint8_t>(), out.data<uint8_t>() + out.elements());
  });
  return pictures;
}

void check_pixels(const std::string& path, const Orientation& orientation, FrameSize upright) {
  const FrameSize size{42, 28};
  const auto plain = convert_plainly(path, size, orientation);
  const auto video = open_video(path);
  EXPECT_EQ(video->info().size, upright);
  const auto samples = video->sample(FrameChoice::rate(3));
  ReadOptions options;
  options.threads = 2;
  options.frames_per_group = 4;
  options.target_size = [&](FrameSize from, int64_t frames) {
    EXPECT_EQ(from, upright);
    EXPECT_EQ(frames, static_cast<int64_t>(samples.size()));
    return size;
  };
  FrameStream stream = video->read(samples, options);
  size_t at = 0;
  while (const auto group = stream.next()) {
    ASSERT_EQ(group->pixels.shape(), (Shape{group->frames(), size.height, size.width, 3}));
    for (int64_t i = 0; i < group->frames(); ++i, ++at) {
      EXPECT_EQ(group->index[static_cast<size_t>(i)], samples[at].index);
      EXPECT_EQ(bytes_of(*group, i), plain[static_cast<size_t>(samples[at].index)]);
    }
  }
  EXPECT_EQ(at, samples.size());
  EXPECT_FALSE(stream.next().has_value());
  const ReadReport report = stream.report();
  EXPECT_EQ(report.delivered, static_cast<int64_t>(samples.size()));
  EXPECT_EQ(report.lost, 0);
  EXPECT_GT(report.skipped_packets, 0);
  EXPECT_GT(report.decode_cpu_seconds, 0);
}

TEST(VideoTest, DeliversConvertedFramesInOrder) { check_pixels(small_clip(), {}, {128, 96}); }

TEST(VideoTest, RotationIsApplied) {
  small_clip();
  for (const int turns : {1, 2, 3}) {
    // The tag counts anticlockwise turns in FFmpeg 5 and is written as asked.
    const std::string path = make_media(
        "turned_" + std::to_string(turns) + ".mp4",
        "-i {small_clip.mp4} -c copy -metadata:s:v:0 rotate=" + std::to_string(90 * turns));
    const auto video = open_video(path);
    const int found = video->info().rotation;
    if (found == 0) GTEST_SKIP() << "this ffmpeg does not write rotations from metadata";
    EXPECT_EQ(found % 180, 90 * turns % 180);
    const FrameSize upright = turns % 2 == 1 ? FrameSize{96, 128} : FrameSize{128, 96};
    check_pixels(path, Orientation::turned(found / 90), upright);
  }
}

TEST(VideoTest, Info) {
  const auto video = open_video(small_clip());
  const VideoInfo& info = video->info();
  EXPECT_EQ(info.codec, "h264");
  EXPECT_EQ(info.frames, 120);
  EXPECT_NEAR(info.duration, 5, 1e-9);
  EXPECT_NEAR(info.fps, 24, 1e-9);
  EXPECT_EQ(info.keyframes, 10);
  EXPECT_NEAR(info.keyframe_gap, 0.5, 1e-9);
  EXPECT_EQ(info.bit_depth, 8);
  EXPECT_EQ(info.pixel_format, "yuv420p");
  EXPECT_GT(info.disposable, 0);
  EXPECT_FALSE(info.variable_rate);
  EXPECT_FALSE(info.still);
  EXPECT_FALSE(info.has_audio);
  EXPECT_FALSE(video->live());
}

TEST(VideoTest, TimesAreExactAndBeginAtZero) {
  const std::string path =
      make_media("times.mkv", source +
                                  "-vf \"select='not(mod(n,3))+gt(n,60)'\" -vsync vfr -c:v libx264 "
                                  "-preset veryfast -g 20 -output_ts_offset 7.3");
  const auto plain = decode_plainly(path);
  const auto video = open_video(path);
  ASSERT_EQ(video->times().size(), plain.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    const double expected = static_cast<double>(plain[i].pts - plain[0].pts) / 1000;
    EXPECT_NEAR(video->times()[i], expected, 1e-9);
  }
  EXPECT_NEAR(video->info().start_offset, 7.3, 0.1);
  EXPECT_TRUE(video->info().variable_rate);
}

TEST(VideoTest, RangeAndDepthAreReported) {
  const std::string path = make_media(
      "full.mp4", source +
                      "-c:v libx264 -preset veryfast -pix_fmt yuv420p10le -color_range pc "
                      "-colorspace bt709 -g 24");
  const VideoInfo info = open_video(path)->info();
  EXPECT_EQ(info.color_range, "full");
  EXPECT_EQ(info.color_matrix, "bt709");
  EXPECT_EQ(info.bit_depth, 10);
}

// swscale turns frames into RGB for PyAV, torchvision and decord, which decode for the references.
// Its fast path cuts each of up to three products off instead of rounding their sum, so that a
// level may be three lower; the matrix that HD usually has would be tens of levels away.
TEST(VideoTest, UntaggedHdHasTheColoursOfTheReferences) {
  const std::string source_720 =
      "-f lavfi -i testsrc2=size=1280x720:rate=4:duration=1 -c:v libx264 ";
  const std::string plain = make_media("hd.mp4", source_720 + "-preset veryfast -pix_fmt yuv420p");
  ASSERT_EQ(open_video(plain)->info().color_matrix, "unknown");
  const std::string raw = make_media("hd.rgb", "-i " + plain + " -f rawvideo -pix_fmt rgb24");
  const std::string expected = read_whole(raw);
  const auto video = open_video(plain);
  FrameStream stream = video->read(FrameChoice::all(), {});
  size_t at = 0;
  int most = 0;
  double sum = 0;
  while (const auto group = stream.next()) {
    const auto* pixels = group->pixels.data<uint8_t>();
    ASSERT_LE(at + static_cast<size_t>(group->pixels.elements()), expected.size());
    for (int64_t i = 0; i < group->pixels.elements(); ++i, ++at) {
      const int level = static_cast<unsigned char>(expected[at]);
      const int difference = std::abs(int{pixels[i]} - level);
      most = std::max(most, difference);
      sum += difference;
    }
  }
  EXPECT_EQ(at, expected.size());
  EXPECT_LE(most, 3);
  EXPECT_LE(sum / static_cast<double>(at), 1);
}

TEST(VideoTest, OneGroupOfAllFrames) {
  const auto video = open_video(small_clip());
  const auto samples = video->sample(FrameChoice::evenly(20));
  ReadOptions options;
  options.target_size = [](FrameSize, int64_t) { return FrameSize{32, 24}; };
  const FrameGroup packed = read_packed(*video, samples, options);
  EXPECT_EQ(packed.frames(), static_cast<int64_t>(samples.size()));
}

// The same frame many times, in groups of which only one exists at a time.
TEST(VideoTest, RepeatedSamplesInATightQueue) {
  const auto video = open_video(small_clip());
  ReadOptions options;
  options.frames_per_group = 3;
  options.queue_groups = 1;
  options.threads = 3;
  const FrameChoice choice = FrameChoice::at_indices({5, 5, 5, 5, 5, 5, 5, 70, 70, 119, 119});
  FrameStream stream = video->read(choice, options);
  std::vector<int64_t> got;
  std::vector<uint8_t> fifth;
  while (const auto group = stream.next()) {
    for (int64_t i = 0; i < group->frames(); ++i) {
      got.push_back(group->index[static_cast<size_t>(i)]);
      if (got.back() != 5) continue;
      if (fifth.empty()) fifth = bytes_of(*group, i);
      EXPECT_EQ(bytes_of(*group, i), fifth);
    }
  }
  EXPECT_EQ(got, choice.indices);
}

TEST(VideoTest, SeveralStreamsAtOnceOutliveTheVideo) {
  auto video = open_video(small_clip());
  ReadOptions options;
  options.threads = 2;
  options.target_size = [](FrameSize, int64_t) { return FrameSize{16, 12}; };
  std::vector<FrameStream> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(video->read(FrameChoice::rate(6), options));
  video.reset();
  std::vector<std::thread> readers;
  std::vector<int64_t> counts(streams.size());
  for (size_t i = 0; i < streams.size(); ++i) {
    readers.emplace_back([&, i] {
      while (const auto group = streams[i].next()) counts[i] += group->frames();
    });
  }
  for (std::thread& reader : readers) reader.join();
  for (const int64_t count : counts) EXPECT_EQ(count, 30);
}

TEST(VideoTest, AbandonedStreamsStop) {
  const auto video = open_video(small_clip());
  ReadOptions options;
  options.queue_groups = 1;
  options.frames_per_group = 2;
  for (int i = 0; i < 20; ++i) {
    FrameStream stream = video->read(FrameChoice::all(), options);
    if (i % 2 == 0) {
      EXPECT_TRUE(stream.next().has_value());
    }
  }
}

TEST(VideoTest, StillPictures) {
  for (const char* name : {"picture.png", "picture.jpg", "picture.bmp", "picture.webp"}) {
    if (std::string(name).ends_with("webp") && !has_encoder("libwebp")) continue;
    const std::string path =
        make_media(name, "-f lavfi -i testsrc2=size=50x30:rate=1:duration=1 -frames:v 1 -update 1");
    const auto video = open_video(path);
    EXPECT_TRUE(video->info().still) << name;
    EXPECT_EQ(video->info().size, (FrameSize{50, 30})) << name;
    for (const FrameChoice& choice :
         {FrameChoice::rate(2), FrameChoice::rate(1), FrameChoice::evenly(8), FrameChoice::all()}) {
      const FrameGroup group = read_packed(*video, video->sample(choice), {});
      EXPECT_EQ(group.frames(), 1) << name;
      EXPECT_EQ(group.height(), 30) << name;
    }
  }
}

// A photograph that says it lies on its side.
TEST(VideoTest, PhotographsAreTurnedUpright) {
  const std::string plain = read_whole(make_media(
      "photograph.jpg", "-f lavfi -i testsrc2=size=50x30:rate=1:duration=1 -frames:v 1 -update 1"));
  // An APP1 segment with one directory entry: orientation (0x0112) = 6, a quarter turn clockwise.
  const std::string exif(
      "\xff\xe1\x00\x22"
      "Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0",
      36);
  const std::string path = scratch_directory() + "/turned.jpg";
  write_file(path, plain.substr(0, 2) + exif + plain.substr(2));
  const auto video = open_video(path);
  EXPECT_EQ(video->info().size, (FrameSize{30, 50}));
  EXPECT_EQ(video->info().rotation, 90);
  const auto samples = video->sample(FrameChoice::all());
  const FrameGroup alone = read_packed(*video, samples, {});

  // In a folder every picture is turned for itself.
  const std::string folder = scratch_directory();
  write_file(folder + "/1.jpg", read_whole(path));
  write_file(folder + "/2.jpg", plain);
  const auto both = open_video(folder);
  EXPECT_EQ(both->info().size, (FrameSize{30, 50}));
  const FrameGroup group = read_packed(*both, both->sample(FrameChoice::all()), {});
  ASSERT_EQ(group.frames(), 2);
  EXPECT_EQ(bytes_of(group, 0), bytes_of(alone, 0));
  EXPECT_NE(bytes_of(group, 1), bytes_of(alone, 0));
}

TEST(VideoTest, FoldersOfPictures) {
  const std::string folder = scratch_directory();
  const std::vector<std::string> names = {"shot2.png", "shot10.jpg", "shot1.png"};
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string made = make_media(
        "folder_" + names[i], "-f lavfi -i color=c=0x" + std::to_string(20 + 30 * i) +
                                  "0000:size=40x20:rate=1:duration=1 -frames:v 1 -update 1");
    std::filesystem::copy_file(made, folder + "/" + names[i]);
  }
  write_file(folder + "/notes.txt", "not a picture");
  OpenOptions options;
  options.folder_fps = 2;
  const auto video = open_video(folder, options);
  EXPECT_EQ(video->info().frames, 3);
  EXPECT_NEAR(video->info().duration, 1.5, 1e-9);
  const FrameGroup group = read_packed(*video, video->sample(FrameChoice::all()), {});
  ASSERT_EQ(group.frames(), 3);
  std::vector<int> reds;
  for (int64_t i = 0; i < 3; ++i) reds.push_back(bytes_of(group, i)[0]);
  // shot1, shot2, shot10: 80, 20, 50 in hexadecimal.
  EXPECT_NEAR(reds[0], 0x80, 6);
  EXPECT_NEAR(reds[1], 0x20, 6);
  EXPECT_NEAR(reds[2], 0x50, 6);
}

}  // namespace
}  // namespace kinora
