// Remote playlists and where they may lead: parts on their own host are read, other hosts and local
// files are refused, also by way of a redirection. Every refused list is one that would play if
// nobody looked at what FFmpeg opens.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "video/test_media.h"
#include "video/video.h"

namespace kinora {
namespace {

// Serves named files, and sends whoever asks for other names on to where they lead.
class RouteServer {
 public:
  RouteServer() {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_, generic, size), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    getsockname(listener_, generic, &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~RouteServer() {
    stop_ = true;
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  RouteServer(const RouteServer&) = delete;
  RouteServer& operator=(const RouteServer&) = delete;

  void put(const std::string& name, std::string content) {
    const std::scoped_lock lock(mutex_);
    files_[name] = std::move(content);
  }
  void redirect(const std::string& name, std::string place) {
    const std::scoped_lock lock(mutex_);
    places_[name] = std::move(place);
  }
  // The same machine under two names, which are two hosts.
  std::string url(const std::string& name, const char* host = "127.0.0.1") const {
    return std::string("http://") + host + ":" + std::to_string(port_) + "/" + name;
  }
  int requests() const { return requests_; }

 private:
  void serve() {
    while (!stop_) {
      const int client = accept(listener_, nullptr, nullptr);
      if (client < 0) break;
      char request[4096];
      const ssize_t got = recv(client, request, sizeof request, 0);
      if (got > 0) answer(client, std::string(request, static_cast<size_t>(got)));
      shutdown(client, SHUT_RDWR);
      close(client);
    }
  }
  void answer(int client, const std::string& request) {
    ++requests_;
    const size_t begin = request.find('/') + 1;
    const std::string name = request.substr(begin, request.find(' ', begin) - begin);
    const std::scoped_lock lock(mutex_);
    std::string reply = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    if (const auto place = places_.find(name); place != places_.end()) {
      reply = "HTTP/1.1 302 Found\r\nLocation: " + place->second + "\r\nContent-Length: 0\r\n\r\n";
    } else if (const auto file = files_.find(name); file != files_.end()) {
      reply = "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(file->second.size()) +
              "\r\nConnection: close\r\n\r\n" + file->second;
    }
    for (size_t at = 0; at < reply.size();) {
      const ssize_t sent = send(client, reply.data() + at, reply.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) return;
      at += static_cast<size_t>(sent);
    }
  }

  std::mutex mutex_;
  std::map<std::string, std::string> files_;
  std::map<std::string, std::string> places_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stop_ = false;
  std::atomic<int> requests_ = 0;
  std::thread thread_;
};

std::string list_of(const std::string& part) {
  return "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:5\n#EXTINF:4.8,\n" + part +
         "\n#EXT-X-ENDLIST\n";
}

class Playlists : public ::testing::Test {
 protected:
  Playlists() {
    part_ = make_media("part.ts", "-i " + small_clip() + " -c copy");
    own_.put("part.ts", read_whole(part_));
    other_.put("part.ts", read_whole(part_));
  }
  // How many frames are seen; throws as reading does.
  int64_t frames(const std::string& url, bool other_hosts = false) const {
    OpenOptions options;
    options.open_timeout = options.stall_timeout = 10;
    options.limits.other_hosts = other_hosts;
    const auto video = open_video(url, options);
    ReadOptions reading;
    reading.target_size = [](FrameSize, int64_t) { return FrameSize{16, 12}; };
    FrameStream stream = video->read(FrameChoice::all(), reading);
    int64_t count = 0;
    while (const auto group = stream.next()) count += group->frames();
    return count;
  }
  void refused(const std::string& url, const std::string& place) const {
    try {
      ADD_FAILURE() << frames(url) << " frames of " << url;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input) << error.what();
      EXPECT_NE(std::string(error.what()).find(place), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("must stay on its own host"), std::string::npos)
          << error.what();
    }
  }

  RouteServer own_, other_;
  std::string part_;
};

TEST_F(Playlists, OfTheirOwnHostAreRead) {
  own_.put("list.m3u8", list_of("part.ts"));
  EXPECT_EQ(frames(own_.url("list.m3u8")), 120);
  own_.redirect("moved.ts", own_.url("part.ts"));
  own_.put("moved.m3u8", list_of("moved.ts"));
  EXPECT_EQ(frames(own_.url("moved.m3u8")), 120);
}

TEST_F(Playlists, NeverLeadToLocalFiles) {
  for (const std::string& place : {"file://" + part_, part_, "file:" + part_}) {
    SCOPED_TRACE(place);
    own_.put("list.m3u8", list_of(place));
    EXPECT_THROW(frames(own_.url("list.m3u8")), Error);
    EXPECT_THROW(frames(own_.url("list.m3u8"), true), Error);
    own_.redirect("away.ts", place);
    own_.put("list.m3u8", list_of("away.ts"));
    EXPECT_THROW(frames(own_.url("list.m3u8")), Error);
    EXPECT_THROW(frames(own_.url("list.m3u8"), true), Error);
    own_.redirect("away.m3u8", place);
    EXPECT_THROW(frames(own_.url("away.m3u8")), Error);
  }
}

TEST_F(Playlists, LeadToOtherHostsWhereThatIsAllowed) {
  const std::string place = other_.url("part.ts", "localhost");
  own_.put("list.m3u8", list_of(place));
  refused(own_.url("list.m3u8"), "localhost");
  other_.put("list.m3u8", list_of("part.ts"));
  own_.put("master.m3u8", "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n" +
                              other_.url("list.m3u8", "localhost") + "\n");
  refused(own_.url("master.m3u8"), "localhost");
  EXPECT_EQ(other_.requests(), 0);  // not even asked
  EXPECT_EQ(frames(own_.url("list.m3u8"), true), 120);
  EXPECT_EQ(frames(own_.url("master.m3u8"), true), 120);
}

TEST_F(Playlists, DoNotLeaveByARedirection) {
  own_.redirect("away.ts", other_.url("part.ts", "localhost"));
  own_.put("list.m3u8", list_of("away.ts"));
  refused(own_.url("list.m3u8"), "localhost");
  EXPECT_EQ(frames(own_.url("list.m3u8"), true), 120);
  // Every part, and not the first alone.
  own_.put("two.m3u8",
           "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:5\n#EXTINF:4.8,\n"
           "part.ts\n#EXTINF:4.8,\naway.ts\n#EXT-X-ENDLIST\n");
  refused(own_.url("two.m3u8"), "localhost");
  // The address that a person gave may move: it leads to where its parts are.
  other_.put("list.m3u8", list_of("part.ts"));
  own_.redirect("moved.m3u8", other_.url("list.m3u8", "localhost"));
  EXPECT_EQ(frames(own_.url("moved.m3u8")), 120);
}

}  // namespace
}  // namespace kinora
