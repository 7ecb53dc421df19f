// Hostile requests: each gets a clear refusal, and the next one is answered as if nothing had been.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "server/service.h"
#include "server/test_client.h"
#include "server/test_media.h"
#include "support/png_bomb.h"
#include "support/repeated_film.h"
#include "support/temp_dir.h"

namespace kinora::server {
namespace {

using nlohmann::json;

TestReply say_hello(uint16_t port) {
  const json body = {{"max_tokens", 2}, {"messages", {{{"role", "user"}, {"content", "Hello"}}}}};
  TestClient client(port);
  return client.ask("POST", "/v1/chat/completions", body.dump());
}

// Somebody who asks all the while, and is to be answered every time.
class Bystander {
 public:
  explicit Bystander(uint16_t port) : thread_([this, port] { ask(port); }) {}
  ~Bystander() {
    over_ = true;
    thread_.join();
    EXPECT_GT(answered_, 0);
    EXPECT_EQ(refused_, "");
  }
  Bystander(const Bystander&) = delete;
  Bystander& operator=(const Bystander&) = delete;

 private:
  void ask(uint16_t port) {
    do {
      const TestReply reply = say_hello(port);
      ++answered_;
      if (reply.status != 200) refused_ = reply.head + reply.body;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // there are others, too
    } while (!over_);
  }

  std::atomic<bool> over_ = false;
  int answered_ = 0;
  std::string refused_;
  std::thread thread_;  // last: it uses the others
};

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
    bystander_ = std::make_unique<Bystander>(service_->port());
  }
  // Whatever was sent, others were answered meanwhile, and are afterwards.
  void TearDown() override {
    bystander_.reset();
    EXPECT_EQ(say_hello(service_->port()).status, 200);
  }

  TestReply ask(const std::string& method, const std::string& target, const std::string& body = "",
                const std::string& headers = "") const {
    TestClient client(service_->port());
    return client.ask(method, target, body, headers);
  }
  TestReply ask_about(const json& part, const json& look = nullptr) const {
    const json body = {
        {"max_tokens", 2},
        {"mm_processor_kwargs", look},
        {"messages", {{{"role", "user"}, {"content", {part, {{"type", "text"}, {"text", "?"}}}}}}}};
    return ask("POST", "/v1/chat/completions", body.dump());
  }

  // Says so in words, and why.
  static void expect_clear(const TestReply& reply, const std::string& words,
                           const std::string& code = "invalid_media") {
    ASSERT_EQ(reply.status, 400) << reply.body.substr(0, 300);
    const json error = reply.json()["error"];
    EXPECT_EQ(error["code"], code);
    EXPECT_NE(error["message"].get<std::string>().find(words), std::string::npos) << error;
  }
  // In a request and as an upload.
  void expect_refused(const std::string& bytes, const std::string& kind, const std::string& words,
                      const std::string& code = "invalid_media") const {
    const std::string url = "data:" + kind + ";base64," + encode_base64(bytes);
    expect_clear(ask_about({{"type", "video_url"}, {"video_url", {{"url", url}}}}), words, code);
    expect_clear(ask("POST", "/v1/videos", bytes), words, code);
  }
  // What shows only when it is decoded may be kept all the same, but nobody gets to see it.
  void expect_kept_unseen(const std::string& bytes, const std::string& words) const {
    const std::string url = "data:video/x-matroska;base64," + encode_base64(bytes);
    expect_clear(ask_about({{"type", "video_url"}, {"video_url", {{"url", url}}}}), words);
    const TestReply kept = ask("POST", "/v1/videos", bytes);
    ASSERT_EQ(kept.status, 201) << kept.body;
    const std::string id = kept.json()["id"], path = "/v1/videos/" + id;
    expect_clear(ask_about({{"type", "video_url"}, {"uuid", id}}), words);
    expect_clear(ask("GET", path + "/picture"), words);
    expect_clear(ask("GET", path + "/scenes"), words);
    expect_clear(ask("POST", "/v1/memories", json{{"video", id}}.dump()), words);
    // Its progress has begun by then, and ends with the error.
    const std::string progress = ask("POST", path + "/index", "{}").body;
    EXPECT_NE(progress.find("invalid_media"), std::string::npos) << progress;
    EXPECT_EQ(progress.find("event: done"), std::string::npos) << progress;
    // A stream of it begins and fails.
    const TestReply started = ask("POST", "/v1/streams", json{{"url", id}, {"speed", 100}}.dump());
    if (started.status != 201) return expect_clear(started, words);
    const std::string stream = "/v1/streams/" + started.json()["id"].get<std::string>();
    json now = ask("GET", stream).json();
    for (int i = 0; i < 400 && now["state"] != "failed"; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      now = ask("GET", stream).json();
    }
    EXPECT_EQ(now["state"], "failed") << now;
    EXPECT_EQ(now["frames"], 0) << now;
    EXPECT_EQ(ask("DELETE", stream).status, 200);
  }

  testing::TempDir directory_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<Bystander> bystander_;
};

TEST_F(HostileRequests, PlaylistsThatNameLocalFiles) {
  const std::string film = directory_.file("secret.png");
  std::ofstream(film, std::ios::binary) << picture_bytes(1);
  const std::string words = "a list of other files";
  expect_refused("#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n" + film +
                     "\n#EXT-X-ENDLIST\n",
                 "video/mp4", words);
  expect_refused("#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "application/x-mpegurl",
                 "not a video");
  expect_refused("ffconcat version 1.0\nfile '" + film + "'\n", "video/mp4", words);
  expect_refused(
      "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 9 RTP/AVP "
      "96\na=rtpmap:96 H264/90000\n",
      "application/sdp", words);
}

std::string picture_wall(const testing::TempDir& directory) {
  testing::write_white_png(directory.file("bomb.png"), 30000, 30000);
  std::ifstream file(directory.file("bomb.png"), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(HostileRequests, PicturesTooLargeToDecode) {
  const std::string bytes = picture_wall(directory_);
  ASSERT_LT(bytes.size(), 1 << 20);
  expect_refused(bytes, "image/png", "pictures of 30000 × 30000", "media_too_large");
}

// 56 × 56 pixels that call themselves a picture wall.
TEST_F(HostileRequests, VideosThatCallThemselvesTooLarge) {
  std::string film = film_head({PictureKind::png, 30000, 30000});
  for (int i = 0; i < 3; ++i) film += film_picture(picture_bytes(i), 40 * i);
  expect_kept_unseen(film, "decoder");
}

// And the other way round.
TEST_F(HostileRequests, VideosOfPicturesTooLargeToDecode) {
  const std::string bomb = picture_wall(directory_);
  std::string film = film_head({PictureKind::png, 56, 56});
  for (int i = 0; i < 3; ++i) film += film_picture(bomb, 40 * i);
  expect_kept_unseen(film, "");
}

// Four megabytes that can be decoded a million times. Whoever asks for more than there is room for
// is refused before that.
TEST_F(HostileRequests, VideosOfAMillionFrames) {
  const std::string film = testing::repeated_film(picture_bytes(1), 56, 56, 1'000'000, 25'000);
  const TestReply kept = ask("POST", "/v1/videos?name=long.mov", film);
  ASSERT_EQ(kept.status, 201) << kept.body;
  EXPECT_EQ(kept.json()["frames"], 1'000'000);
  const std::string id = kept.json()["id"], path = "/v1/videos/" + id;
  const json part = {{"type", "video_url"}, {"uuid", id}};
  expect_clear(ask_about(part, {{"num_frames", 1 << 20}}), "fewer", "context_length_exceeded");
  const TestReply usual = ask_about(part);  // two frames of every second
  ASSERT_EQ(usual.status, 200) << usual.body;
  const json input = usual.json()["kinora"]["inputs"][0];
  EXPECT_EQ(input["frames"], 80) << input;
  EXPECT_GT(input["until"], 39) << input;
  EXPECT_NE(ask("GET", "/metrics").body.find("kinora_decoded_frames_total 80\n"),
            std::string::npos);
  EXPECT_EQ(ask("GET", path + "/picture?time=39").status, 200);
  EXPECT_EQ(ask("GET", path + "/scenes").json()["data"].size(), 1u);
}

// A megabyte that says it is a million frames, none of which is one.
TEST_F(HostileRequests, VideosOfAMillionFramesThatAreNone) {
  std::string film = film_head({PictureKind::png, 56, 56});
  std::string laces = std::string(1, '\xff') + std::string(256, 'x');  // 256 frames of a byte
  for (int block = 0; block < 4000; ++block) {
    std::string cluster = film_picture(laces, 40 * block);
    cluster[cluster.size() - laces.size() - 1] = '\x84';  // a keyframe with laces of equal sizes
    film += cluster;
  }
  ASSERT_LT(film.size(), 2u << 20);
  const std::string url = "data:video/x-matroska;base64," + encode_base64(film);
  const json part = {{"type", "video_url"}, {"video_url", {{"url", url}}}};
  for (const json& look : {json(), json{{"fps", 240}}, json{{"num_frames", 1 << 20}}}) {
    expect_clear(ask_about(part, look), "");
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
  const std::string index =
      "/v1/videos/" + ask("POST", "/v1/videos", film_bytes(2)).json()["id"].get<std::string>() +
      "/index";
  const std::string type = "Content-Type: application/json\r\n";
  for (const std::string& target :
       {std::string("/v1/chat/completions"), std::string("/v1/responses"),
        std::string("/v1/videos"), std::string("/v1/streams"), std::string("/v1/memories"),
        index}) {
    for (const std::string& body :
         {deep, nested, std::string("{\"url\": \"\xff\xfe\"}"), std::string("{\"url\": 1e999}"),
          std::string("{"), std::string(1 << 20, '{')}) {
      const TestReply reply = ask("POST", target, body, type);
      EXPECT_EQ(reply.status, 400) << target << " " << body.substr(0, 40);
      EXPECT_FALSE(reply.json()["error"]["message"].get<std::string>().empty());
    }
  }
}

TEST_F(HostileRequests, BytesThatAreNothing) {
  Random random(3);
  std::string noise;
  for (int i = 0; i < 5000; ++i) noise += static_cast<char>(random.next());
  expect_refused(noise, "video/mp4", "");
  expect_refused(picture_bytes(1).substr(0, 40), "image/png", "");
  expect_refused(std::string(5000, '\0'), "video/mp4", "");
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

// Every field of a good request in turn, however deep it lies, holds what does not belong there.
TEST_F(HostileRequests, WrongTypesEverywhere) {
  const std::string video = ask("POST", "/v1/videos", film_bytes(4)).json()["id"];
  const std::vector<json> values = {nullptr, true, -1, 1e308, "x", json::array({1}), {{"a", 1}}};
  const json look = {{"fps", 1}, {"min_pixels", 784}, {"max_pixels", 3136}};
  const json frames = {{"video", {{"fps", 2}, {"frames_indices", {0, 1, 2}}, {"duration", 2}}}};
  const json ready = {
      {"type", "video_url"}, {"uuid", "a"}, {"video_url", {{"url", film_url(3, 1)}}}};
  const json text = {{"type", "input_text"}, {"text", "x"}};
  const std::vector<std::pair<std::string, json>> requests = {
      {"/v1/chat/completions",
       {{"model", "tiny"},
        {"max_tokens", 1},
        {"temperature", 0},
        {"top_p", 1},
        {"top_k", 1},
        {"min_p", 0},
        {"repetition_penalty", 1},
        {"n", 1},
        {"stop", {"x"}},
        {"seed", 1},
        {"stream", true},
        {"stream_options", {{"include_usage", true}}},
        {"logprobs", true},
        {"top_logprobs", 1},
        {"evidence", true},
        {"metadata", {{"a", "b"}}},
        {"media_io_kwargs", frames},
        {"messages", {{{"role", "user"}, {"content", {ready, text}}}}}}},
      {"/v1/responses",
       {{"model", "tiny"},
        {"instructions", "x"},
        {"max_output_tokens", 1},
        {"temperature", 0},
        {"seed", 1},
        {"stream", false},
        {"text", {{"format", {{"type", "text"}}}}},
        {"mm_processor_kwargs", look},
        {"input",
         {{{"role", "user"},
           {"content",
            {{{"type", "input_image"}, {"image_url", picture_url(1)}, {"detail", "auto"}},
             {{"type", "input_video"}, {"input_video", {{"file_id", video}}}},
             text}}}}}}},
      {"/v1/videos", {{"url", picture_url(2)}, {"name", "x"}}},
      {"/v1/videos/" + video + "/index", {{"system", "x"}, {"mm_processor_kwargs", look}}},
      {"/v1/streams",
       {{"url", video},
        {"name", "x"},
        {"system", "x"},
        {"speed", 100},
        {"mm_processor_kwargs", look}}},
      {"/v1/memories",
       {{"video", video}, {"name", "x"}, {"system", "x"}, {"mm_processor_kwargs", look}}}};
  TestClient client(service_->port());
  for (const auto& [target, good] : requests) {
    const auto send = [&, &path = target](const json& body, bool as_it_is) {
      const TestReply reply =
          client.ask("POST", path, body.dump(), "Content-Type: application/json\r\n");
      const std::string said = path + " " + body.dump().substr(0, 500) + "\n" + reply.body;
      if (as_it_is) {
        EXPECT_LT(reply.status, 300) << said;
      }
      EXPECT_TRUE(reply.status == 200 || reply.status == 201 || reply.status == 400 ||
                  reply.status == 403 || reply.status == 404)
          << reply.status << " " << said;
      if (reply.status >= 400) {
        EXPECT_FALSE(reply.json()["error"]["message"].get<std::string>().empty()) << said;
      }
      if (path == "/v1/streams" && reply.status == 201) {
        client.ask("DELETE", path + "/" + reply.json()["id"].get<std::string>());
      }
    };
    send(good, true);
    // Lists and objects, too, not only what they hold.
    std::set<std::string> places;
    const json flat = good.flatten();
    for (const auto& [place, unused] : flat.items()) {
      for (json::json_pointer at(place); !at.empty(); at.pop_back()) places.insert(at.to_string());
    }
    for (const std::string& place : places) {
      for (const json& value : values) {
        json body = good;
        body[json::json_pointer(place)] = value;
        send(body, false);
      }
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
