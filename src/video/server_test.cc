// Network sources against real servers: nginx and GStreamer's RTSP server, where they are
// installed.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
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

TEST(ServerTest, Rtsp) {
  // No B pictures: RTP carries presentation times only.
  const std::string clip =
      make_media("camera.mp4",
                 "-f lavfi -i testsrc2=size=128x96:rate=24:duration=3 -c:v libx264 -preset "
                 "veryfast -bf 0 -g 12");
  const int port = free_port();
  Server server({"/usr/bin/python3", KINORA_SOURCE "/tests/support/rtsp_server.py",
                 std::to_string(port), clip},
                port);
  if (!server.listens()) GTEST_SKIP() << "no GStreamer RTSP server here";
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

}  // namespace
}  // namespace kinora
