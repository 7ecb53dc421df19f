// Network sources against real servers: nginx, a camera of our own, and GStreamer's RTSP server
// where it is installed.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "video/test_media.h"
#include "video/video.h"

namespace kinora {
namespace {

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

int free_port() {
  const int probe = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(probe, generic, size), 0);
  getsockname(probe, generic, &size);
  close(probe);
  return ntohs(address.sin_port);
}

// A server program that is killed at the end.
class Server {
 public:
  Server(std::vector<std::string> command, int port) : port_(port) {
    std::vector<char*> arguments;
    for (std::string& argument : command) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    child_ = fork();
    if (child_ == 0) {
      setpgid(0, 0);
      const int null = open("/dev/null", O_RDWR);
      for (int stream = 0; stream < 3; ++stream) dup2(null, stream);
      execvp(arguments[0], arguments.data());
      _exit(127);
    }
  }
  ~Server() { stop(); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // False when the program ended instead: it is not installed, or not whole.
  bool listens() {
    for (int tries = 0; tries < 500; ++tries) {
      int status = 0;
      if (waitpid(child_, &status, WNOHANG) == child_) {
        child_ = -1;
        return false;
      }
      const int client = socket(AF_INET, SOCK_STREAM, 0);
      const sockaddr_in address = loopback(port_);
      const bool connected =
          connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
      close(client);
      if (connected) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  }
  void stop() {
    if (child_ <= 0) return;
    kill(-child_, SIGKILL);
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = -1;
  }

 private:
  pid_t child_ = -1;
  int port_;
};

// Frames at a small size, and their indices.
struct Frames {
  std::vector<uint8_t> pixels;
  std::vector<int64_t> index;
};
Frames read_all(Video& video, const FrameChoice& choice) {
  ReadOptions options;
  options.target_size = [](FrameSize, int64_t) { return FrameSize{16, 12}; };
  FrameStream stream = video.read(choice, options);
  Frames frames;
  while (const auto group = stream.next()) {
    const auto* begin = group->pixels.data<uint8_t>();
    frames.pixels.insert(frames.pixels.end(), begin, begin + group->pixels.elements());
    frames.index.insert(frames.index.end(), group->index.begin(), group->index.end());
  }
  return frames;
}

std::string nginx_settings(const std::string& folder, int port) {
  // By default nginx drops root's rights, and could then no longer read our folder.
  const std::string user = geteuid() == 0 ? "user root; " : "";
  return user + "daemon off; worker_processes 1; pid " + folder + "/pid; error_log " + folder +
         "/errors;\nevents {}\nhttp { access_log off; client_body_temp_path " + folder +
         "/t1; proxy_temp_path " + folder + "/t2; fastcgi_temp_path " + folder +
         "/t3; uwsgi_temp_path " + folder + "/t4; scgi_temp_path " + folder +
         "/t5;\nserver { listen 127.0.0.1:" + std::to_string(port) + "; root " + folder +
         "/root; location /slow/ { alias " + folder + "/root/; limit_rate 20k; } } }\n";
}

std::string served_folder() {
  const std::string folder = scratch_directory();
  std::filesystem::create_directory(folder + "/root");
  std::filesystem::copy_file(small_clip(), folder + "/root/clip.mp4");
  return folder;
}

TEST(ServerTest, Http) {
  const std::string folder = served_folder();
  const int port = free_port();
  write_file(folder + "/settings", nginx_settings(folder, port));
  Server server({"nginx", "-p", folder, "-e", folder + "/errors", "-c", folder + "/settings"},
                port);
  if (!server.listens()) GTEST_SKIP() << "no nginx here";
  const std::string url = "http://127.0.0.1:" + std::to_string(port) + "/";

  const Frames expected = read_all(*open_video(small_clip()), FrameChoice::rate(3));
  const auto kept = open_video(url + "clip.mp4");
  EXPECT_FALSE(kept->live());
  EXPECT_EQ(kept->info().frames, 120);
  EXPECT_EQ(read_all(*kept, FrameChoice::rate(3)).pixels, expected.pixels);

  OpenOptions as_it_comes;
  as_it_comes.live = true;
  const auto live = open_video(url + "clip.mp4", as_it_comes);
  EXPECT_TRUE(live->live());
  EXPECT_EQ(read_all(*live, FrameChoice::rate(3)).pixels, expected.pixels);

  try {
    open_video(url + "missing.mp4");
    ADD_FAILURE() << "a missing file was opened";
  } catch (const Error& error) {
    EXPECT_TRUE(error.kind() == ErrorKind::network || error.kind() == ErrorKind::not_found);
    EXPECT_NE(std::string(error.what()).find("404"), std::string::npos) << error.what();
  }

  // A slow download is no silence; cancelling ends it.
  OpenOptions impatient;
  impatient.stall_timeout = 5;
  std::thread canceller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    impatient.cancel.cancel();
  });
  try {
    open_video(url + "slow/clip.mp4", impatient);
    ADD_FAILURE() << "it was there before it was cancelled";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::cancelled) << error.what();
  }
  canceller.join();
}

// Segments of a second each and their list, as `arguments` say.
std::string segmented_folder(const std::string& arguments) {
  const std::string folder = served_folder();
  const std::string root = folder + "/root/";
  const std::string command = "ffmpeg -v error -i " + small_clip() +
                              " -c copy -f hls -hls_time 1 " + arguments +
                              " -hls_segment_filename " + root + "part%d.ts " + root + "list.m3u8";
  EXPECT_EQ(std::system(command.c_str()), 0);
  return folder;
}

TEST(ServerTest, Hls) {
  const std::string folder = segmented_folder("-hls_playlist_type vod");
  const int port = free_port();
  write_file(folder + "/settings", nginx_settings(folder, port));
  Server server({"nginx", "-p", folder, "-e", folder + "/errors", "-c", folder + "/settings"},
                port);
  if (!server.listens()) GTEST_SKIP() << "no nginx here";
  const std::string url = "http://127.0.0.1:" + std::to_string(port) + "/";
  const Frames expected = read_all(*open_video(small_clip()), FrameChoice::all());
  EXPECT_EQ(read_all(*open_video(url + "list.m3u8"), FrameChoice::all()).pixels, expected.pixels);

  // A broadcast: its list grows while it is read, and says at last that it has ended.
  const std::string root = folder + "/root/";
  const std::string whole = read_whole(root + "list.m3u8");
  const size_t third = whole.find("part2.ts") + 9;
  write_file(root + "now.m3u8", whole.substr(0, third));
  std::thread broadcaster([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    write_file(root + "next.m3u8", whole);
    std::filesystem::rename(root + "next.m3u8", root + "now.m3u8");
  });
  OpenOptions as_it_comes;
  as_it_comes.live = true;
  const auto live = open_video(url + "now.m3u8", as_it_comes);
  EXPECT_TRUE(live->live());
  const Frames seen = read_all(*live, FrameChoice::all());
  broadcaster.join();
  // A player begins near the newest segment, so the first ones may be missing, and no others.
  ASSERT_GE(seen.index.size(), expected.index.size() - 36);
  EXPECT_TRUE(std::equal(seen.pixels.rbegin(), seen.pixels.rend(), expected.pixels.rbegin()));

  // A segment that is gone is an end or an error that names the list, never a wait.
  std::filesystem::remove(root + "part3.ts");
  OpenOptions impatient;
  impatient.stall_timeout = 3;
  try {
    const Frames rest = read_all(*open_video(url + "list.m3u8", impatient), FrameChoice::all());
    EXPECT_LT(rest.index.size(), expected.index.size());
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("list.m3u8"), std::string::npos) << error.what();
  }
}

// A camera that is served by a script of tests/support/.
void watch_camera(const std::string& script, bool there) {
  // No B pictures: RTP carries presentation times only.
  const std::string clip =
      make_media("camera.mp4",
                 "-f lavfi -i testsrc2=size=128x96:rate=24:duration=3 -c:v libx264 -preset "
                 "veryfast -bf 0 -g 12");
  const int port = free_port();
  Server server({"python3", KINORA_SOURCE "/tests/support/" + script, std::to_string(port), clip},
                port);
  const bool listens = server.listens();
  if (!there && !listens) GTEST_SKIP() << "no GStreamer RTSP server here";
  ASSERT_TRUE(listens);
  const std::string url = "rtsp://127.0.0.1:" + std::to_string(port) + "/clip";

  const auto camera = open_video(url);
  EXPECT_TRUE(camera->live());
  EXPECT_EQ(camera->info().size, (FrameSize{128, 96}));
  const Frames live = read_all(*camera, FrameChoice::all());
  const Frames expected = read_all(*open_video(clip), FrameChoice::all());
  EXPECT_EQ(live.index, expected.index);
  EXPECT_EQ(live.pixels, expected.pixels);

  // A camera that goes away is an end or an error, never a wait.
  OpenOptions options;
  options.stall_timeout = 2;
  const auto second = open_video(url, options);
  ReadOptions small;
  small.frames_per_group = 4;
  small.target_size = [](FrameSize, int64_t) { return FrameSize{16, 12}; };
  FrameStream stream = second->read(FrameChoice::all(), small);
  ASSERT_TRUE(stream.next());
  server.stop();
  try {
    while (stream.next()) {
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::network) << error.what();
  }
}

TEST(ServerTest, Rtsp) { watch_camera("plain_rtsp_server.py", true); }
TEST(ServerTest, RtspOfGStreamer) { watch_camera("rtsp_server.py", false); }

}  // namespace
}  // namespace kinora
