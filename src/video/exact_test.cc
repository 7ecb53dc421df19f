// The promise of video/: whatever the file and the choice, every frame is bit for bit the one that
// plain sequential decoding gives for its index.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "video/decode/frame_stream.h"
#include "video/decode/packet_feed.h"
#include "video/index/index.h"
#include "video/test_media.h"
#include "video/video.h"

namespace kinora {
namespace {

struct Medium {
  std::string name;
  std::string arguments;
  // Media that this one is made from, made first.
  std::vector<std::pair<std::string, std::string>> parents = {};
  std::string encoder = {};
};

const std::string source = "-f lavfi -i testsrc2=size=128x96:rate=24:duration=5 ";
const std::string short_source = "-f lavfi -i testsrc2=size=96x64:rate=12:duration=4 ";
const std::string x264 = "-c:v libx264 -preset veryfast ";
const std::string x264_open = source + x264 +
                              "-x264-params "
                              "open-gop=1:keyint=24:min-keyint=24:scenecut=0:bframes=3:"
                              "b-pyramid=normal:b-adapt=0 ";
const std::string x265 = source + "-c:v libx265 -preset veryfast -x265-params log-level=none:";

std::vector<Medium> media() {
  std::vector<Medium> all;
  const auto add = [&](Medium medium) { all.push_back(std::move(medium)); };
  // H.264
  add({"h264_defaults.mp4", source + "-c:v libx264"});
  add({"h264_short_gop.mp4", source + x264 + "-g 12"});
  add({"h264_no_b.mp4", source + x264 + "-bf 0 -g 30"});
  add({"h264_open_gop.mp4", x264_open});
  add({"h264_open_gop.mkv", x264_open});
  add({"h264_open_gop.ts", x264_open});
  add({"h264_strict_pyramid.mp4",
       source + x264 + "-x264-params keyint=40:bframes=7:b-pyramid=strict:b-adapt=2"});
  add({"h264_intra_refresh.mp4", source + x264 + "-x264-params intra-refresh=1:keyint=24"});
  add({"h264_ten_bit.mp4", source + x264 + "-pix_fmt yuv420p10le -g 24"});
  add({"h264_full_range.mp4",
       source + x264 + "-pix_fmt yuvj420p -color_range pc -colorspace bt709 -g 24"});
  add({"h264_444.mkv", source + x264 + "-pix_fmt yuv444p -g 24"});
  add({"h264_interlaced.ts", source + x264 + "-flags +ildct+ilme -g 24"});
  add({"h264_variable_rate.mp4",
       source + "-vf \"select='not(mod(n,3))+gt(n,60)'\" -vsync vfr " + x264 + "-g 20"});
  add({"h264_offset.mkv", source + x264 + "-g 24 -output_ts_offset 7.3"});
  add({"h264_offset.ts", source + x264 + "-g 24 -output_ts_offset 100000"});
  add({"h264_fragments.mp4", source + x264 + "-g 24 -movflags frag_keyframe+empty_moov"});
  add({"h264_no_counts.mkv", source + x264 + "-g 24 -f matroska -live 1"});
  add({"h264.avi", source + x264 + "-g 24"});
  add({"h264_raw.h264", source + x264 + "-g 24"});
  add({"h264_raw_open.h264", x264_open});
  add({"h264_rotated.mp4",
       "-i {h264_short_gop.mp4} -c copy -metadata:s:v:0 rotate=90",
       {{"h264_short_gop.mp4", source + x264 + "-g 12"}}});
  add({"h264_edit_list.mp4",
       "-ss 1.7 -i {h264_defaults.mp4} -c copy",
       {{"h264_defaults.mp4", source + "-c:v libx264"}}});
  add({"h264_cut_open.mkv",
       "-ss 1.6 -i {h264_open_gop.mp4} -c copy",
       {{"h264_open_gop.mp4", x264_open}}});
  add({"h264_cut_open.mp4",
       "-ss 2.2 -i {h264_open_gop.mp4} -c copy",
       {{"h264_open_gop.mp4", x264_open}}});
  add({"h264_with_sound.mp4",
       source + "-f lavfi -i sine=duration=5 " + x264 + "-g 24 -c:a aac -shortest"});
  // HEVC
  add({"hevc_defaults.mp4", x265 + "keyint=48"});
  add({"hevc_open.mkv", x265 + "keyint=24:min-keyint=24:bframes=4:open-gop=1"});
  add({"hevc_closed.mp4", x265 + "keyint=24:open-gop=0"});
  add({"hevc_layers.mp4", x265 + "keyint=24:temporal-layers=3:bframes=7:b-adapt=0"});
  add({"hevc_ten_bit.mkv", x265 + "keyint=24 -pix_fmt yuv420p10le"});
  add({"hevc.ts", x265 + "keyint=24"});
  add({"hevc_raw.hevc", x265 + "keyint=24"});
  add({"hevc_radl.mp4", x265 + "keyint=24:open-gop=0:radl=2:bframes=4"});
  add({"hevc_cut.mkv",
       "-ss 1.6 -i {hevc_open.mkv} -c copy",
       {{"hevc_open.mkv", x265 + "keyint=24:min-keyint=24:bframes=4:open-gop=1"}}});
  // VP8, VP9, AV1
  add({"vp8.webm",
       source + "-c:v libvpx -b:v 200k -g 24 -auto-alt-ref 1 -lag-in-frames 12",
       {},
       "libvpx"});
  add({"vp9.webm",
       source + "-c:v libvpx-vp9 -b:v 200k -g 24 -auto-alt-ref 1 -lag-in-frames 12 -cpu-used 8 "
                "-deadline realtime",
       {},
       "libvpx-vp9"});
  add({"vp9_alternate.webm",
       short_source + "-c:v libvpx-vp9 -b:v 100k -g 20 -auto-alt-ref 1 -lag-in-frames 16 "
                      "-cpu-used 4",
       {},
       "libvpx-vp9"});
  add({"av1.mkv",
       short_source + "-c:v libaom-av1 -cpu-used 8 -g 16 -lag-in-frames 12",
       {},
       "libaom-av1"});
  add({"av1_pyramid.mp4", short_source + "-c:v libsvtav1 -preset 10 -g 24", {}, "libsvtav1"});
  // MPEG-2, MPEG-4 part 2
  add({"mpeg2.mpg", source + "-c:v mpeg2video -bf 2 -g 12 -b:v 500k"});
  add({"mpeg2.ts", source + "-c:v mpeg2video -bf 2 -g 15 -b:v 500k"});
  add({"mpeg2_closed.mkv", source + "-c:v mpeg2video -bf 2 -g 12 -flags +cgop -b:v 500k "
                                    "-sc_threshold 1000000000"});
  add({"mpeg4.avi", source + "-c:v mpeg4 -bf 2 -g 24 -b:v 500k"});
  add({"mpeg4.mp4", source + "-c:v mpeg4 -bf 2 -g 24 -b:v 500k"});
  add({"mpeg4_no_b.avi", source + "-c:v mpeg4 -bf 0 -g 24 -b:v 500k"});
  // Every picture for itself, and pictures that build on each other
  add({"mjpeg.avi", short_source + "-c:v mjpeg -q:v 3"});
  add({"mjpeg.mov", short_source + "-c:v mjpeg -q:v 3"});
  add({"prores.mov", short_source + "-c:v prores"});
  add({"ffv1.mkv", short_source + "-c:v ffv1 -g 5"});
  add({"animated.gif", short_source});
  add({"still.png", short_source + "-frames:v 1 -update 1"});
  add({"still.jpg", short_source + "-frames:v 1 -update 1"});
  return all;
}

// Reads samples with the machinery of video/, hashing the decoded planes instead of converting.
class HashReader {
 public:
  explicit HashReader(const std::string& path) {
    origin_.name = path;
    origin_.url = "file:" + path;
    // As FileVideo does it.
    auto demuxer = std::make_unique<Demuxer>(origin_, options_, CancelToken(), CancelToken(), true);
    const double rate = nominal_rate(demuxer->stream());
    if (demuxer->needs_no_parser()) demuxer = open();
    index_ = std::make_shared<VideoIndex>(
        make_index(*demuxer, rate, options_, [this] { return open(); }));
  }

  const VideoIndex& index() const { return *index_; }

  std::vector<SampledFrame> sample(const FrameChoice& choice) const {
    return sample_frames(choice, index_->times, index_->duration, {});
  }

  std::vector<uint64_t> read(const std::vector<SampledFrame>& samples, int threads,
                             int64_t group = 5, int64_t queue = 0) {
    ParallelRead read;
    read.index = index_;
    read.samples = samples;
    read.size = {8, 1};
    read.options.threads = threads;
    read.options.frames_per_group = group;
    read.options.queue_groups = queue;
    read.make_convert = [] {
      return [](const AVFrame& frame, TensorView out) {
        const uint64_t hash = hash_frame(frame);
        std::memcpy(out.raw(), &hash, sizeof hash);
      };
    };
    read.open_feed = [this](const CancelToken&) {
      auto feed = std::make_unique<StreamFeed>(
          *index_, [this] { return open(); }, policy_);
      feed_ = feed.get();
      return feed;
    };
    const auto job = start_parallel_read(std::move(read));
    std::vector<uint64_t> hashes;
    int64_t sequence = 0;
    while (const auto one = job->next()) {
      EXPECT_EQ(one->sequence, sequence++);
      for (int64_t i = 0; i < one->frames(); ++i) {
        uint64_t hash = 0;
        std::memcpy(&hash, one->pixels.view()[i].raw(), sizeof hash);
        hashes.push_back(hash);
        const SampledFrame& wanted = samples[hashes.size() - 1];
        EXPECT_EQ(one->index[static_cast<size_t>(i)], wanted.index);
        EXPECT_EQ(one->times[static_cast<size_t>(i)], wanted.time);
      }
    }
    report_ = job->report();
    gave_up_seeking_ = feed_->gave_up_seeking();
    return hashes;
  }

  const ReadReport& report() const { return report_; }
  bool gave_up_seeking() const { return gave_up_seeking_; }
  void seek_always() { policy_ = {0, 1}; }

 private:
  std::unique_ptr<Demuxer> open() const {
    return std::make_unique<Demuxer>(origin_, options_, CancelToken(), CancelToken(), false);
  }

  Origin origin_;
  OpenOptions options_;
  std::shared_ptr<VideoIndex> index_;
  ReadReport report_;
  SeekPolicy policy_;
  const StreamFeed* feed_ = nullptr;
  bool gave_up_seeking_ = false;
};

void compare(const std::string& path, HashReader& reader, const std::vector<PlainFrame>& plain,
             const std::vector<SampledFrame>& samples, int threads) {
  const std::vector<uint64_t> hashes = reader.read(samples, threads);
  ASSERT_EQ(hashes.size(), samples.size()) << path;
  int wrong = 0;
  for (size_t i = 0; i < samples.size() && wrong < 5; ++i) {
    const uint64_t expected = plain[static_cast<size_t>(samples[i].index)].hash;
    if (hashes[i] == expected) continue;
    ++wrong;
    const auto same = std::find_if(plain.begin(), plain.end(), [&](const PlainFrame& frame) {
      return frame.hash == hashes[i];
    });
    ADD_FAILURE() << path << ": sample " << i << " is not frame " << samples[i].index
                  << (same != plain.end() ? " but frame " + std::to_string(same - plain.begin())
                                          : " nor any other");
  }
  EXPECT_EQ(reader.report().lost, 0) << path;
  EXPECT_TRUE(reader.report().damaged.empty()) << path;
}

void check_file(const std::string& path) {
  const std::vector<PlainFrame> plain = decode_plainly(path);
  ASSERT_FALSE(plain.empty()) << path;
  HashReader reader(path);
  ASSERT_EQ(reader.index().frames(), static_cast<int64_t>(plain.size())) << path;
  for (const int threads : {1, 2, 5}) {
    SCOPED_TRACE(threads);
    compare(path, reader, plain, reader.sample(FrameChoice::all()), threads);
    compare(path, reader, plain, reader.sample(FrameChoice::rate(2)), threads);
  }
  compare(path, reader, plain, reader.sample(FrameChoice::rate(0.7)), 2);
  compare(path, reader, plain, reader.sample(FrameChoice::evenly(10)), 2);
  compare(path, reader, plain, reader.sample(FrameChoice::evenly(7)), 2);
  compare(path, reader, plain, reader.sample(FrameChoice::all().within(1.1, 2.3)), 2);
  std::mt19937 random(static_cast<unsigned>(plain.size()));
  for (int round = 0; round < 6; ++round) {
    std::vector<int64_t> picks;
    for (size_t i = 0; i < plain.size(); ++i) {
      if (random() % 7 == 0) picks.push_back(static_cast<int64_t>(i));
    }
    if (picks.empty()) picks.push_back(0);
    compare(path, reader, plain, reader.sample(FrameChoice::at_indices(picks)), 1 + round % 3);
  }
  // Single frames, those around keyframes first: the leading pictures.
  std::vector<int64_t> singles;
  for (const IndexedPacket& packet : reader.index().packets) {
    if (packet.key && packet.frame >= 0 && singles.size() < 40) {
      for (int64_t near = packet.frame - 3; near <= packet.frame + 1; ++near) {
        if (near >= 0 && near < reader.index().frames()) singles.push_back(near);
      }
    }
  }
  // From here on every gap is a seek.
  reader.seek_always();
  compare(path, reader, plain, reader.sample(FrameChoice::rate(0.9)), 2);
  const bool indexed = path.ends_with(".mp4") || path.ends_with(".mkv") || path.ends_with(".mov");
  if (indexed) {
    EXPECT_FALSE(reader.gave_up_seeking()) << path;
  }
  for (const int64_t single : singles) {
    compare(path, reader, plain, reader.sample(FrameChoice::at_indices({single})), 1);
  }
}

class ExactTest : public testing::TestWithParam<Medium> {};

TEST_P(ExactTest, EqualsSequentialDecoding) {
  const Medium& medium = GetParam();
  if (!medium.encoder.empty() && !has_encoder(medium.encoder)) {
    GTEST_SKIP() << "this FFmpeg cannot make " << medium.name;
  }
  for (const auto& [name, arguments] : medium.parents) make_media(name, arguments);
  check_file(make_media(medium.name, medium.arguments));
}

INSTANTIATE_TEST_SUITE_P(Media, ExactTest, testing::ValuesIn(media()),
                         [](const testing::TestParamInfo<Medium>& test) {
                           std::string name = test.param.name;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

// A stream that begins in the middle of a GOP, as a recording of a broadcast does.
TEST(ExactFileTest, StreamThatBeginsInTheMiddle) {
  for (const char* name : {"h264_open_gop.ts"}) {
    const std::string whole = read_whole(make_media(name, x264_open));
    const std::string path = scratch_directory() + "/middle.ts";
    write_file(path, whole.substr(0, 188 * 2) + whole.substr(188 * (whole.size() / 188 / 5)));
    check_file(path);
  }
}

// Two recordings joined end to end: the clock jumps back.
TEST(ExactFileTest, ClockThatJumpsBack) {
  const std::string one = read_whole(make_media("h264_jump.ts", source + x264 + "-g 24"));
  const std::string path = scratch_directory() + "/joined.ts";
  write_file(path, one + one);
  check_file(path);
}

TEST(ExactFileTest, SampleVideos) {
  const char* folder = std::getenv("KINORA_VIDEO_SAMPLES");
  if (folder == nullptr) GTEST_SKIP() << "KINORA_VIDEO_SAMPLES names no folder";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string path = entry.path().string();
    const std::vector<PlainFrame> plain = decode_plainly(path);
    HashReader reader(path);
    ASSERT_EQ(reader.index().frames(), static_cast<int64_t>(plain.size())) << path;
    for (const FrameChoice& choice :
         {FrameChoice::rate(2), FrameChoice::rate(1), FrameChoice::evenly(16),
          FrameChoice::rate(0.1), FrameChoice::all().within(3, 6)}) {
      compare(path, reader, plain, reader.sample(choice), 2);
    }
  }
}

}  // namespace
}  // namespace kinora
