// Hostile requests: each gets a clear refusal, and the next one is answered as if nothing had been.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "server/service.h"
#include "server/test_client.h"
#include "server/test_media.h"
#include "support/png_bomb.h"
#include "support/temp_dir.h"

namespace kinora::server {
namespace {

using nlohmann::json;

class HostileRequests : public ::testing::Test {
 protected:
  HostileRequests() {
    ServiceOptions options;
    options.model = "tiny";
    options.http.spool_directory = options.media.directory = directory_.path();
    options.library = directory_.file("library");
    options.memories = directory_.file("memories");
    options.max_row_bytes = 64 << 20;
    options.max_body_bytes = 8 << 20;
    options.max_upload_bytes = 8 << 20;
    options.http.header_seconds = 2;
    static const Engine engine(
        {.model = KINORA_FIXTURES "/models/qwen2_5_vl_tied_new", .device = "cpu", .threads = 2});
    service_ = std::make_unique<Service>(engine, SessionOptions(), options);
  }
  // Whatever was sent before, others are answered.
  void TearDown() override {
    TestClient client(service_->port());
    const json body = {{"max_tokens", 2}, {"messages", {{{"role", "user"}, {"content", "Hello"}}}}};
    EXPECT_EQ(client.ask("POST", "/v1/chat/completions", body.dump()).status, 200);
  }

  // What shows only when it is decoded may be kept all the same.
  void expect_refused(const std::string& bytes, const std::string& kind, bool kept = false) const {
    const std::string url = "data:" + kind + ";base64," + encode_base64(bytes);
    const json body = {{"max_tokens", 2},
                       {"messages",
                        {{{"role", "user"},
                          {"content",
                           {{{"type", "video_url"}, {"video_url", {{"url", url}}}},
                            {{"type", "text"}, {"text", "?"}}}}}}}};
    TestClient client(service_->port());
    const TestReply reply = client.ask("POST", "/v1/chat/completions", body.dump());
    EXPECT_EQ(reply.status, 400) << reply.body.substr(0, 300);
    EXPECT_FALSE(reply.json()["error"]["message"].get<std::string>().empty());
    TestClient other(service_->port());
    EXPECT_EQ(other.ask("POST", "/v1/videos", bytes).status, kept ? 201 : 400);
  }

  testing::TempDir directory_;
  std::unique_ptr<Service> service_;
};

TEST_F(HostileRequests, PlaylistsThatNameLocalFiles) {
  const std::string film = directory_.file("secret.png");
  std::ofstream(film, std::ios::binary) << picture_bytes(1);
  expect_refused("#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n" + film +
                     "\n#EXT-X-ENDLIST\n",
                 "video/mp4");
  expect_refused("#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "application/x-mpegurl");
  expect_refused("ffconcat version 1.0\nfile '" + film + "'\n", "video/mp4");
  expect_refused(
      "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 9 RTP/AVP "
      "96\na=rtpmap:96 H264/90000\n",
      "application/sdp");
}

TEST_F(HostileRequests, PicturesTooLargeToDecode) {
  testing::write_white_png(directory_.file("bomb.png"), 30000, 30000);
  std::ifstream file(directory_.file("bomb.png"), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  ASSERT_LT(bytes.size(), 1 << 20);
  expect_refused(bytes, "image/png");
}

// 56 × 56 pixels that call themselves a picture wall.
TEST_F(HostileRequests, VideosTooLargeToDecode) {
  expect_refused(film_head({PictureKind::png, 30000, 30000}) + film_picture(picture_bytes(1), 0),
                 "video/x-matroska", true);
  testing::write_white_png(directory_.file("bomb.png"), 30000, 30000);
  std::ifstream file(directory_.file("bomb.png"), std::ios::binary);
  const std::string bomb{std::istreambuf_iterator<char>(file), {}};
  std::string film = film_head({PictureKind::png, 56, 56});
  for (int i = 0; i < 3; ++i) film += film_picture(bomb, 40 * i);
  expect_refused(film, "video/x-matroska", true);
}

// A megabyte that says it is a million frames. It may be kept, since nothing is decoded for that,
// but it is not a video that one could ask about.
TEST_F(HostileRequests, VideosOfAMillionFrames) {
  std::string film = film_head({PictureKind::png, 56, 56});
  std::string laces = std::string(1, '\xff') + std::string(256, 'x');  // 256 frames of a byte
  for (int block = 0; block < 4000; ++block) {
    std::string cluster = film_picture(laces, 40 * block);
    cluster[cluster.size() - laces.size() - 1] = '\x84';  // a keyframe with laces of equal sizes
    film += cluster;
  }
  ASSERT_LT(film.size(), 2u << 20);
  const json body = {
      {"max_tokens", 2},
      {"messages",
       {{{"role", "user"},
         {"content",
          {{{"type", "video_url"},
            {"video_url", {{"url", "data:video/x-matroska;base64," + encode_base64(film)}}}},
           {{"type", "text"}, {"text", "?"}}}}}}}};
  for (const json& look : {json(), json{{"fps", 240}}, json{{"num_frames", 1 << 20}}}) {
    json asked = body;
    if (!look.is_null()) asked["mm_processor_kwargs"] = look;
    TestClient client(service_->port());
    const TestReply reply = client.ask("POST", "/v1/chat/completions", asked.dump());
    EXPECT_EQ(reply.status, 400) << reply.body.substr(0, 300);
  }
}

TEST_F(HostileRequests, BodiesOfAGigabyte) {
  TestClient announced(service_->port());
  announced.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
      "1073741824\r\n\r\n");
  EXPECT_EQ(announced.reply().status, 413);
  TestClient upload(service_->port());
  upload.send("POST /v1/videos HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1073741824\r\n\r\n");
  EXPECT_EQ(upload.reply().status, 413);
  // Without a word about its length: it is cut off where the limit is, not at the end.
  TestClient chunks(service_->port());
  chunks.send("POST /v1/videos HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "100000\r\n" + std::string(1 << 20, 'x') + "\r\n";
  int sent = 0;
  while (sent < 1024 && chunks.send(chunk)) ++sent;
  EXPECT_LT(sent, 64);
  for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
    EXPECT_EQ(entry.path().filename().string().find("kinora-body"), std::string::npos)
        << "a body was left behind";
  }
}

TEST_F(HostileRequests, PathsThatLeadElsewhere) {
  for (const char* target : {"/page/../../../../etc/passwd", "/page/%2e%2e/%2e%2e/etc/passwd",
                             "/page/..%2f..%2fetc%2fpasswd", "/v1/videos/../../etc/passwd",
                             "/v1/videos/..%2f..%2f..%2fetc%2fpasswd/content",
                             "/v1/videos/%2e%2e/content", "/v1/memories/..%2fvideos/content",
                             "/v1/streams/..%2f/picture", "//etc/passwd", "/page//etc/passwd"}) {
    TestClient client(service_->port());
    EXPECT_EQ(client.ask("GET", target).status, 404) << target;
  }
  TestClient null(service_->port());
  EXPECT_EQ(null.ask("GET", "/page/index.html%00.css").status, 400);
  TestClient remove(service_->port());
  EXPECT_EQ(remove.ask("DELETE", "/v1/videos/..%2f..").status, 404);
  EXPECT_TRUE(std::filesystem::exists(directory_.path()));
}

TEST_F(HostileRequests, DeepOrBrokenJsonEverywhere) {
  const std::string deep = std::string(10000, '[') + std::string(10000, ']');
  const std::string nested = R"({"messages": )" + deep + "}";
  for (const char* target :
       {"/v1/chat/completions", "/v1/responses", "/v1/streams", "/v1/memories"}) {
    for (const std::string& body :
         {deep, nested, std::string("{\"url\": \"\xff\xfe\"}"), std::string("{\"url\": 1e999}"),
          std::string("{"), std::string(1 << 20, '{')}) {
      TestClient client(service_->port());
      const TestReply reply = client.ask("POST", target, body);
      EXPECT_EQ(reply.status, 400) << target << " " << body.substr(0, 40);
    }
  }
}

TEST_F(HostileRequests, BytesThatAreNothing) {
  Random random(3);
  std::string noise;
  for (int i = 0; i < 5000; ++i) noise += static_cast<char>(random.next());
  expect_refused(noise, "video/mp4");
  expect_refused(picture_bytes(1).substr(0, 40), "image/png");
  expect_refused(std::string(5000, '\0'), "video/mp4");
}

TEST_F(HostileRequests, ManyWhoDripTheirRequests) {
  std::vector<std::unique_ptr<TestClient>> slow;
  for (int i = 0; i < 200; ++i) {
    slow.push_back(std::make_unique<TestClient>(service_->port()));
    slow.back()->send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: ");
  }
  TestClient client(service_->port());
  EXPECT_EQ(client.ask("GET", "/healthz").status, 200);
  EXPECT_EQ(slow.back()->read_until(""), "") << "it is let hang on for ever";
}

TEST_F(HostileRequests, ConnectionsThatBreakOffAnywhere) {
  const json body = {{"max_tokens", 50},
                     {"stream", true},
                     {"messages", {{{"role", "user"}, {"content", "Hello"}}}}};
  const std::string text = body.dump();
  const std::string whole =
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
      std::to_string(text.size()) + "\r\n\r\n" + text;
  for (size_t cut = 1; cut < whole.size(); cut += 17) {
    TestClient client(service_->port());
    client.send(whole.substr(0, cut));
    if (cut % 2 == 0) client.half_close();
  }
  for (int i = 0; i < 10; ++i) {
    TestClient client(service_->port());
    client.send(whole);
    client.read_bytes(static_cast<size_t>(20 * i));
  }
}

TEST_F(HostileRequests, WrongTypesEverywhere) {
  const std::vector<json> values = {nullptr, true, -1, 1e308, "x", json::array({1}), {{"a", 1}}};
  const json good = {{"model", "tiny"},
                     {"max_tokens", 1},
                     {"temperature", 0},
                     {"top_p", 1},
                     {"n", 1},
                     {"stop", "x"},
                     {"seed", 1},
                     {"stream", false},
                     {"logprobs", false},
                     {"mm_processor_kwargs", {{"fps", 1}}},
                     {"media_io_kwargs", {{"video", {{"fps", 1}}}}},
                     {"messages", {{{"role", "user"}, {"content", "x"}}}}};
  TestClient client(service_->port());
  for (const auto& [name, unused] : good.items()) {
    for (const json& value : values) {
      json body = good;
      body[name] = value;
      const TestReply reply = client.ask("POST", "/v1/chat/completions", body.dump());
      EXPECT_TRUE(reply.status == 200 || reply.status == 400 || reply.status == 404)
          << name << " " << value << ": " << reply.status << " " << reply.body;
    }
  }
}

TEST_F(HostileRequests, SmuggledRequests) {
  // Two lengths, or a length and chunks, mean different things to different readers.
  TestClient both(service_->port());
  both.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
      "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\n");
  EXPECT_EQ(both.reply().status, 400);
  TestClient two(service_->port());
  two.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
      "Content-Length: 5\r\n\r\nabcde");
  EXPECT_EQ(two.reply().status, 400);
}

}  // namespace
}  // namespace kinora::server
