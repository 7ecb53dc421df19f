// Sources other than healthy files: pipes, HTTP, silence, limits and things that are no videos.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "video/decode/frame_stream.h"
#include "video/test_media.h"
#include "video/video.h"

namespace kinora {
namespace {

template <typename Action>
std::string error_of(ErrorKind kind, const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

// All frames at a small size.
std::vector<uint8_t> read_all(Video& video, const FrameChoice& choice) {
  ReadOptions options;
  options.frames_per_group = 7;
  options.target_size = [](FrameSize, int64_t) { return FrameSize{16, 12}; };
  FrameStream stream = video.read(choice, options);
  std::vector<uint8_t> bytes;
  while (const auto group = stream.next()) {
    const auto* begin = group->pixels.data<uint8_t>();
    bytes.insert(bytes.end(), begin, begin + group->pixels.elements());
  }
  return bytes;
}

// Writes a file into a FIFO from a thread of its own.
class FifoWriter {
 public:
  FifoWriter(const std::string& path, std::string bytes)
      : thread_([path, bytes = std::move(bytes)] {
          const int fifo = open(path.c_str(), O_WRONLY);
          size_t at = 0;
          while (at < bytes.size()) {
            const ssize_t done = write(fifo, bytes.data() + at, bytes.size() - at);
            if (done <= 0) break;
            at += static_cast<size_t>(done);
          }
          close(fifo);
        }) {}
  ~FifoWriter() { thread_.join(); }

 private:
  std::thread thread_;
};

std::string make_fifo() {
  const std::string path = scratch_directory() + "/fifo";
  EXPECT_EQ(mkfifo(path.c_str(), 0600), 0);
  return path;
}

TEST(SourceTest, PipesAreKeptAndIndexed) {
  const std::string clip = small_clip();
  const auto expected = read_all(*open_video(clip), FrameChoice::evenly(14));
  const std::string fifo = make_fifo();
  const FifoWriter writer(fifo, read_whole(clip));
  const auto video = open_video(fifo);
  EXPECT_FALSE(video->live());
  EXPECT_EQ(video->info().frames, 120);
  EXPECT_EQ(read_all(*video, FrameChoice::evenly(14)), expected);
}

TEST(SourceTest, LivePipesAreReadAsTheyCome) {
  const std::string clip =
      make_media("live.ts",
                 "-f lavfi -i testsrc2=size=128x96:rate=24:duration=3 -c:v libx264 -preset "
                 "veryfast -g 12");
  for (const FrameChoice& choice :
       {FrameChoice::rate(4), FrameChoice::all(), FrameChoice::at_indices({3, 40}),
        FrameChoice::rate(2).within(1, 2)}) {
    const auto expected = read_all(*open_video(clip), choice);
    const std::string fifo = make_fifo();
    const FifoWriter writer(fifo, read_whole(clip));
    OpenOptions options;
    options.live = true;
    const auto video = open_video(fifo, options);
    EXPECT_TRUE(video->live());
    EXPECT_EQ(video->info().size, (FrameSize{128, 96}));
    EXPECT_EQ(read_all(*video, choice), expected);
    error_of(ErrorKind::usage, [&] { read_all(*video, choice); });
  }
}

TEST(SourceTest, LiveSourcesHaveNoLength) {
  const std::string clip =
      make_media("live.ts",
                 "-f lavfi -i testsrc2=size=128x96:rate=24:duration=3 -c:v libx264 -preset "
                 "veryfast -g 12");
  const std::string fifo = make_fifo();
  const FifoWriter writer(fifo, read_whole(clip));
  OpenOptions options;
  options.live = true;
  const auto video = open_video(fifo, options);
  error_of(ErrorKind::usage, [&] { video->sample(FrameChoice::rate(1)); });
  error_of(ErrorKind::usage, [&] { read_all(*video, FrameChoice::evenly(4)); });
  error_of(ErrorKind::usage, [&] { read_all(*video, FrameChoice{}); });
  EXPECT_FALSE(read_all(*video, FrameChoice::rate(1)).empty());
}

TEST(SourceTest, SilentPipesAreGivenUp) {
  for (const bool live : {false, true}) {
    const std::string fifo = make_fifo();
    const int writer = open(fifo.c_str(), O_RDWR);  // open, and never a byte
    OpenOptions options;
    options.live = live;
    options.stall_timeout = 0.2;
    options.open_timeout = 0.2;
    error_of(ErrorKind::network, [&] { open_video(fifo, options); });
    close(writer);
  }
}

TEST(SourceTest, WaitingEndsWithCancelling) {
  const std::string fifo = make_fifo();
  const int writer = open(fifo.c_str(), O_RDWR);
  OpenOptions options;
  options.stall_timeout = 3600;
  options.open_timeout = 3600;
  std::thread canceller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    options.cancel.cancel();
  });
  error_of(ErrorKind::cancelled, [&] { open_video(fifo, options); });
  canceller.join();
  close(writer);
}

// Answers every request with the same bytes, all of them or the first `sent` and then silence.
class TinyServer {
 public:
  TinyServer(std::string bytes, size_t sent) : bytes_(std::move(bytes)), sent_(sent) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_, generic, size), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    getsockname(listener_, generic, &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~TinyServer() {
    stop_ = true;
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  std::string url(const std::string& name) const {
    return "http://127.0.0.1:" + std::to_string(port_) + "/" + name;
  }

 private:
  void serve() {
    std::vector<int> open_ends;
    while (!stop_) {
      const int client = accept(listener_, nullptr, nullptr);
      if (client < 0) break;
      open_ends.push_back(client);
      char request[4096];
      if (recv(client, request, sizeof request, 0) <= 0) continue;
      const std::string head =
          "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(bytes_.size()) +
          "\r\nConnection: close\r\n\r\n";
      send(client, head.data(), head.size(), MSG_NOSIGNAL);
      send(client, bytes_.data(), std::min(sent_, bytes_.size()), MSG_NOSIGNAL);
      if (sent_ >= bytes_.size()) shutdown(client, SHUT_RDWR);
    }
    for (const int client : open_ends) close(client);
  }

  std::string bytes_;
  size_t sent_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

TEST(SourceTest, DownloadsAreKeptAndIndexed) {
  const std::string clip = small_clip();
  const auto expected = read_all(*open_video(clip), FrameChoice::evenly(9));
  const TinyServer server(read_whole(clip), SIZE_MAX);
  const auto video = open_video(server.url("clip.mp4"));
  EXPECT_EQ(video->info().frames, 120);
  EXPECT_EQ(read_all(*video, FrameChoice::evenly(9)), expected);
}

TEST(SourceTest, StalledDownloadsAreGivenUp) {
  const TinyServer server(read_whole(small_clip()), 1000);
  OpenOptions options;
  options.stall_timeout = 0.2;
  const std::string message =
      error_of(ErrorKind::network, [&] { open_video(server.url("clip.mp4"), options); });
  EXPECT_NE(message.find("silent"), std::string::npos) << message;
}

TEST(SourceTest, NobodyListens) {
  OpenOptions options;
  options.open_timeout = 2;
  error_of(ErrorKind::network, [&] { open_video("http://127.0.0.1:9/clip.mp4", options); });
  error_of(ErrorKind::network, [&] { open_video("rtsp://127.0.0.1:9/camera", options); });
  error_of(ErrorKind::usage, [&] { open_video("gopher://127.0.0.1/clip.mp4", options); });
}

TEST(SourceTest, ThingsThatAreNoVideos) {
  const std::string folder = scratch_directory();
  error_of(ErrorKind::not_found, [&] { open_video(folder + "/missing.mp4"); });
  error_of(ErrorKind::bad_input, [&] { open_video(folder); });
  error_of(ErrorKind::usage, [&] { open_video(""); });

  write_file(folder + "/empty.mp4", "");
  error_of(ErrorKind::bad_input, [&] { open_video(folder + "/empty.mp4"); });

  std::string text;
  for (int i = 0; i < 2000; ++i) text += "Some lines of text, by no means a film.\n";
  write_file(folder + "/text.mp4", text);
  error_of(ErrorKind::bad_input, [&] { open_video(folder + "/text.mp4")->info(); });

  write_file(folder + "/list.mp4", "ffconcat version 1.0\nfile '/etc/passwd'\n");
  error_of(ErrorKind::bad_input, [&] { open_video(folder + "/list.mp4")->info(); });

  const std::string sound = make_media("sound.m4a", "-f lavfi -i sine=duration=1 -c:a aac");
  const std::string message = error_of(ErrorKind::bad_input, [&] { open_video(sound); });
  EXPECT_NE(message.find("only sound"), std::string::npos) << message;
}

TEST(SourceTest, NamesAreNoPatterns) {
  const std::string folder = scratch_directory();
  for (const char* name : {"a%03d.png", "b*.png", "c:d.png", "-e.png", "f g'.png"}) {
    const std::string path = folder + "/" + name;
    std::filesystem::copy_file(
        make_media("picture.png",
                   "-f lavfi -i testsrc2=size=50x30:rate=1:duration=1 -frames:v 1 -update 1"),
        path);
    EXPECT_EQ(open_video(path)->info().frames, 1) << name;
  }
}

TEST(SourceTest, SmallestAndLargestPictures) {
  const std::string tiny =
      make_media("tiny.png",
                 "-f lavfi -i color=red:size=2x2:rate=1:duration=1 -vf format=rgb24,crop=1:1 "
                 "-frames:v 1 -update 1");
  const auto video = open_video(tiny);
  EXPECT_EQ(video->info().size, (FrameSize{1, 1}));
  ReadOptions options;
  options.target_size = [](FrameSize, int64_t) { return FrameSize{28, 28}; };
  EXPECT_EQ(read_packed(*video, video->sample(FrameChoice::all()), options).frames(), 1);

  // Width and height stand at bytes 16 to 23 of a PNG.
  std::string bytes = read_whole(tiny);
  bytes.replace(16, 8, std::string("\0\0\x4e\x20\0\0\x4e\x20", 8));
  const std::string huge = scratch_directory() + "/huge.png";
  write_file(huge, bytes);
  const std::string message = error_of(ErrorKind::resource, [&] { open_video(huge); });
  EXPECT_NE(message.find("20000 × 20000"), std::string::npos) << message;
}

TEST(SourceTest, LimitsNameTheirNumbers) {
  OpenOptions options;
  options.limits.max_packets = 100;
  const std::string packets =
      error_of(ErrorKind::resource, [&] { open_video(small_clip(), options)->info(); });
  EXPECT_NE(packets.find("100"), std::string::npos);

  options = {};
  options.limits.max_pixels = 1000;
  const std::string pixels =
      error_of(ErrorKind::resource, [&] { open_video(small_clip(), options); });
  EXPECT_NE(pixels.find("128 × 96"), std::string::npos);

  options = {};
  options.limits.max_spool_bytes = 1000;
  const std::string fifo = make_fifo();
  {
    const FifoWriter writer(fifo, read_whole(small_clip()).substr(0, 60000));
    error_of(ErrorKind::resource, [&] { open_video(fifo, options); });
  }

  options = {};
  options.limits.max_samples = 10;
  error_of(ErrorKind::resource,
           [&] { open_video(small_clip(), options)->sample(FrameChoice::all()); });
}

TEST(SourceTest, NonsenseInReadOptions) {
  const auto video = open_video(small_clip());
  ReadOptions options;
  options.target_size = [](FrameSize, int64_t) { return FrameSize{0, 10}; };
  const std::string message =
      error_of(ErrorKind::usage, [&] { video->read(FrameChoice::rate(1), options); });
  EXPECT_NE(message.find("0 × 10"), std::string::npos);
  options = {};
  options.frames_per_group = 0;
  error_of(ErrorKind::usage, [&] { video->read(FrameChoice::rate(1), options); });
  options = {};
  options.threads = -1;
  error_of(ErrorKind::usage, [&] { video->read(FrameChoice::rate(1), options); });
}

TEST(SourceTest, AFileNeverOpensOthers) {
  const std::string folder = scratch_directory();
  std::filesystem::copy_file(small_clip(), folder + "/clip.mp4");
  const std::pair<const char*, std::string> lists[] = {
      {"list.m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\nclip.mp4\n#EXT-X-ENDLIST\n"},
      {"master.m3u8", "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\nlist.m3u8\n"},
      {"away.m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\nhttp://127.0.0.1:1/a.ts\n"},
      {"list.txt", "ffconcat version 1.0\nfile clip.mp4\n"},
      {"list.mpd",
       "<?xml version=\"1.0\"?>\n<MPD xmlns=\"urn:mpeg:dash:schema:mpd:2011\" "
       "profiles=\"urn:mpeg:dash:profile:isoff-on-demand:2011\"></MPD>\n"},
      {"camera.mp4",
       "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 9 "
       "RTP/AVP 96\n"}};
  for (const auto& [name, content] : lists) {
    SCOPED_TRACE(name);
    const std::string path = folder + "/" + name;
    write_file(path, content);
    const std::string text = error_of(ErrorKind::bad_input, [&] { open_video(path)->info(); });
    EXPECT_NE(text.find("a list of other files"), std::string::npos) << text;
    // Through a pipe nothing is opened either.
    const std::string fifo = make_fifo();
    const FifoWriter writer(fifo, content);
    error_of(ErrorKind::bad_input, [&] { open_video(fifo)->info(); });
  }
}

TEST(SourceTest, PipesAmongPicturesAreNotWaitedFor) {
  const std::string folder = scratch_directory();
  ASSERT_EQ(mkfifo((folder + "/a.png").c_str(), 0600), 0);
  const std::string text = error_of(ErrorKind::bad_input, [&] { open_video(folder)->info(); });
  EXPECT_NE(text.find("a pipe or device"), std::string::npos) << text;
}

TEST(SourceTest, FramesThatWaitAreBoundedInBytes) {
  VideoLimits limits;
  for (const int64_t side : {1, 17, 448, 2048, 8192, 16384}) {
    for (const int64_t frames : {1, 2, 16, 4096}) {
      for (const int64_t groups : {1, 2, 4, 1000}) {
        const GroupRoom room = choose_group_room(frames, groups, {side, side}, limits);
        const int64_t bytes = room.frames * room.groups * side * side * 3;
        EXPECT_TRUE(bytes <= limits.max_queue_bytes || room.frames * room.groups == 1);
        EXPECT_LE(room.frames, frames);
        EXPECT_LE(room.groups, groups);
        EXPECT_GE(std::min(room.frames, room.groups), 1);
        if (frames * groups * side * side * 3 * 2 <= limits.max_queue_bytes) {
          EXPECT_EQ(room.frames, frames);
          EXPECT_EQ(room.groups, groups);
        }
      }
    }
  }
}

// Bytes that this process has held at once since the last call.
int64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  int64_t kib = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) kib = std::stoll(line.substr(6));
  }
  std::ofstream("/proc/self/clear_refs") << 5;
  return kib << 10;
}

// Forty frames of 12 MiB for a reader who takes his time: what waits stays within the limit.
// Besides it there is what decoders hold.
TEST(SourceTest, LargeFramesDoNotPileUp) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep what was given back";
#endif
  const std::string clip =
      make_media("large.mp4",
                 "-f lavfi -i testsrc2=size=2048x2048:rate=8:duration=5 -c:v libx264 -preset "
                 "ultrafast -pix_fmt yuv420p -g 8");
  const auto peak = [&](int64_t queue_bytes) {
    OpenOptions open;
    open.limits.max_queue_bytes = queue_bytes;
    const auto video = open_video(clip, open);
    ReadOptions options;
    options.threads = 2;
    options.frames_per_group = 40;
    peak_bytes();
    FrameStream stream = video->read(FrameChoice::all(), options);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    int64_t frames = 0;
    while (const auto group = stream.next()) frames += group->frames();
    EXPECT_EQ(frames, 40);
    return peak_bytes();
  };
  constexpr int64_t frame = int64_t{2048} * 2048 * 3;
  const int64_t tight = peak(2 * frame), wide = peak(80 * frame);
  // All frames at once, or two: 38 between them, of which some may be decoders' work.
  EXPECT_GT(wide - tight, 24 * frame) << tight << " and " << wide;
}

TEST(SourceTest, SmallGroupsHoldTheSameFrames) {
  const auto video = open_video(small_clip());
  const auto expected = read_all(*video, FrameChoice::evenly(30));
  OpenOptions tight;
  tight.limits.max_queue_bytes = 3 * 16 * 12 * 3;  // three frames
  EXPECT_EQ(read_all(*open_video(small_clip(), tight), FrameChoice::evenly(30)), expected);
}

}  // namespace
}  // namespace kinora
