// Damaged files, failing workers and cancelled reads: frames outside the damage stay exact, nothing
// crashes and nothing hangs.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/random_data.h"
#include "video/convert/convert.h"
#include "video/decode/frame_stream.h"
#include "video/test_media.h"
#include "video/video.h"

namespace kinora {
namespace {

const std::string source = "-f lavfi -i testsrc2=size=128x96:rate=24:duration=5 ";

std::vector<std::vector<uint8_t>> convert_plainly(const std::string& path) {
  FrameConverter converter({128, 96});
  std::vector<std::vector<uint8_t>> pictures;
  for_each_plain_frame(path, [&](const AVFrame& frame) {
    Tensor out(DType::u8, {96, 128, 3});
    converter.convert(frame, out);
    pictures.emplace_back(out.data<uint8_t>(), out.data<uint8_t>() + out.elements());
  });
  return pictures;
}

// A stretch in the middle overwritten with noise, in containers that know where packets begin.
void check_damage(const std::string& name, const std::string& arguments) {
  const std::string clip = make_media(name, source + arguments);
  const auto healthy = convert_plainly(clip);
  std::string bytes = read_whole(clip);
  std::mt19937 random(11);
  const size_t from = bytes.size() / 2;
  for (size_t i = from; i < from + bytes.size() / 40; ++i) {
    bytes[i] = static_cast<char>(random());
  }
  const std::string path = scratch_directory() + "/" + name;
  write_file(path, bytes);

  const auto video = open_video(path);
  ReadOptions options;
  options.threads = 2;
  FrameStream stream = video->read(FrameChoice::all(), options);
  std::vector<bool> same(healthy.size());
  int64_t delivered = 0;
  while (const auto group = stream.next()) {
    for (int64_t i = 0; i < group->frames(); ++i) {
      ++delivered;
      // By time, since a lost packet moves the ranks behind it.
      const double time = group->times[static_cast<size_t>(i)];
      const size_t frame = static_cast<size_t>(time * 24 + 0.5);
      const ConstTensorView pixels = std::as_const(group->pixels).view()[i];
      same.at(frame) = std::memcmp(pixels.raw(), healthy[frame].data(), healthy[frame].size()) == 0;
    }
  }
  const ReadReport report = stream.report();
  EXPECT_EQ(report.delivered, delivered);
  const auto good = std::count(same.begin(), same.end(), true);
  EXPECT_LT(good, 120) << "the damage hit nothing";
  // Two of ten groups at most: the stretch is a fortieth of the file.
  EXPECT_GE(good, 96);
  ASSERT_FALSE(report.damaged.empty());
  for (size_t i = 0; i < same.size(); ++i) {
    if (same[i]) continue;
    const double time = static_cast<double>(i) / 24;
    EXPECT_TRUE(std::any_of(report.damaged.begin(), report.damaged.end(),
                            [&](const DamagedSpan& span) {
                              return time >= span.from - 1e-6 && time <= span.to + 1e-6;
                            }))
        << "the damage at " << time << " s was not reported";
  }
}

TEST(DamageTest, CostsOnlyItsOwnFrames) {
  check_damage("damaged.mp4", "-c:v libx264 -preset veryfast -g 12 -b:v 800k");
}

TEST(DamageTest, CostsOnlyItsOwnFramesHevc) {
  check_damage("damaged_hevc.mp4",
               "-c:v libx265 -preset veryfast -x265-params "
               "log-level=none:keyint=12:min-keyint=12:open-gop=0 -b:v 800k");
}

TEST(DamageTest, NothingLeftIsAnError) {
  std::string bytes = read_whole(small_clip());
  const size_t data = bytes.find("mdat") + 4;
  const size_t end = bytes.find("moov") > data ? bytes.find("moov") - 4 : bytes.size();
  std::fill(bytes.begin() + static_cast<ptrdiff_t>(data),
            bytes.begin() + static_cast<ptrdiff_t>(end), '\x55');
  const std::string path = scratch_directory() + "/nothing.mp4";
  write_file(path, bytes);
  try {
    const auto video = open_video(path);
    FrameStream stream = video->read(FrameChoice::rate(2), {});
    while (stream.next()) {
    }
    ADD_FAILURE() << "frames came from nothing";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input) << error.what();
  }
}

// Every frame of the small clip, four to a group; the caller says how frames are converted.
ParallelRead read_small_clip(int threads) {
  Origin origin;
  origin.name = small_clip();
  origin.url = "file:" + origin.name;
  const OpenDemuxer open = [origin] {
    return std::make_unique<Demuxer>(origin, OpenOptions(), CancelToken(), CancelToken(), true);
  };
  const auto index = std::make_shared<VideoIndex>(make_index(*open(), 0, {}, open));
  ParallelRead read;
  read.index = index;
  read.samples = sample_frames(FrameChoice::all(), index->times, index->duration, {});
  read.size = {8, 8};
  read.options.threads = threads;
  read.options.frames_per_group = 4;
  read.open_feed = [index, open](const CancelToken&) {
    return std::make_unique<StreamFeed>(*index, open);
  };
  return read;
}

TEST(DamageTest, AWorkersFailureReachesTheConsumer) {
  for (const int threads : {1, 3}) {
    ParallelRead read = read_small_clip(threads);
    read.make_convert = [] {
      return [count = 0](const AVFrame&, TensorView) mutable {
        if (++count == 20) throw Error(ErrorKind::unsupported, "the twentieth frame");
      };
    };
    const auto job = start_parallel_read(std::move(read));
    try {
      while (job->next()) {
      }
      ADD_FAILURE() << "the failure was lost";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    }
  }
}

template <typename Action>
void expect_cancelled(const Action& action) {
  try {
    action();
    ADD_FAILURE() << "it went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::cancelled) << error.what();
  }
}

TEST(DamageTest, CancellingEndsARead) {
  const auto video = open_video(small_clip());
  ReadOptions options;
  options.queue_groups = 1;
  options.frames_per_group = 4;
  FrameStream stream = video->read(FrameChoice::all(), options);
  EXPECT_TRUE(stream.next().has_value());
  options.cancel.cancel();
  expect_cancelled([&] { stream.next(); });
  expect_cancelled([&] { stream.next(); });
}

// The workers are busy and no group will be complete before the flag is up.
TEST(DamageTest, CancellingEndsAWait) {
  ParallelRead read = read_small_clip(2);
  const CancelToken cancel;
  read.options.cancel = cancel;
  read.make_convert = [cancel] {
    return [cancel](const AVFrame&, TensorView) {
      while (!cancel.cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
  };
  const auto job = start_parallel_read(std::move(read));
  std::thread canceller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    cancel.cancel();
  });
  expect_cancelled([&] { job->next(); });
  canceller.join();
}

// Opens, indexes and reads whatever is there; any Error is fine, anything else is not.
void exercise(const std::string& path) {
  OpenOptions open;
  open.limits.max_pixels = 1 << 20;
  open.limits.max_side = 4096;
  try {
    const auto video = open_video(path, open);
    ReadOptions options;
    options.threads = 2;
    options.frames_per_group = 3;
    options.target_size = [](FrameSize, int64_t) { return FrameSize{16, 16}; };
    FrameStream stream = video->read(FrameChoice::evenly(8), options);
    while (const auto group = stream.next()) {
      ASSERT_EQ(group->times.size(), static_cast<size_t>(group->frames()));
    }
  } catch (const Error& error) {
    EXPECT_NE(error.kind(), ErrorKind::internal) << error.what();
  }
}

// KINORA_MUTATIONS raises the number, for instance to 10000.
TEST(DamageTest, RandomCutsAndFlips) {
  const char* wanted = std::getenv("KINORA_MUTATIONS");
  const int mutations = wanted != nullptr ? std::atoi(wanted) : 240;
  const std::string tiny = "-f lavfi -i testsrc2=size=64x48:rate=8:duration=2 ";
  const std::vector<std::string> seeds = {
      read_whole(make_media("m.mp4", tiny + "-c:v libx264 -preset veryfast -g 6")),
      read_whole(make_media("m.mkv", tiny + "-c:v libx264 -preset veryfast -g 6")),
      read_whole(make_media("m.ts", tiny + "-c:v mpeg2video -bf 2 -g 6")),
      read_whole(make_media("m.avi", tiny + "-c:v mpeg4 -bf 1 -g 6")),
      read_whole(make_media("m.h264", tiny + "-c:v libx264 -preset veryfast -g 6")),
      read_whole(make_media("m.webm", tiny + "-c:v libvpx -g 6 -auto-alt-ref 1")),
      read_whole(make_media("m5.mp4", tiny + "-c:v libx265 -preset ultrafast -x265-params "
                                             "log-level=none:keyint=6")),
      read_whole(make_media("m.gif", tiny)),
      read_whole(make_media("m.png", tiny + "-frames:v 1 -update 1")),
      read_whole(make_media("m.jpg", tiny + "-frames:v 1 -update 1")),
  };
  KINORA_FRESH_RANDOM(random);
  const auto below = [&](size_t bound) {
    return static_cast<size_t>(random.below(static_cast<int64_t>(bound)));
  };
  const std::string path = scratch_directory() + "/mutant";
  for (int i = 0; i < mutations; ++i) {
    std::string bytes = seeds[static_cast<size_t>(i) % seeds.size()];
    if (below(3) == 0) {
      bytes.resize(below(bytes.size()));
    } else {
      // Half of the flips in the headers, where they hurt.
      const size_t reach = below(2) == 0 ? std::min<size_t>(bytes.size(), 600) : bytes.size();
      for (size_t flips = 1 + below(8); flips > 0; --flips) {
        const size_t place = below(4) == 0 ? bytes.size() - 1 - below(reach) : below(reach);
        bytes[place] = static_cast<char>(bytes[place] ^ (1 << below(8)));
      }
    }
    write_file(path, bytes);
    exercise(path);
    if (::testing::Test::HasFailure()) {
      write_file("mutant-" + std::to_string(random_seed) + "-" + std::to_string(i), bytes);
      break;
    }
  }
}

}  // namespace
}  // namespace kinora
