// Streams as clients use them: started, fed, asked about and stopped.
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "server/service.h"
#include "server/test_client.h"
#include "server/test_media.h"
#include "support/temp_dir.h"

namespace kinora::server {
namespace {

using nlohmann::json;

class StreamsOfAService : public ::testing::Test {
 protected:
  StreamsOfAService() {
    options_.model = "tiny";
    options_.http.spool_directory = options_.media.directory = directory_.path();
    options_.media.roots = {directory_.path()};
    options_.max_row_bytes = 64 << 20;
    options_.max_streams = 3;
  }
  void start() {
    static const Engine engine(
        {.model = KINORA_FIXTURES "/models/qwen2_5_vl_tied_new", .device = "cpu", .threads = 2});
    service_ = std::make_unique<Service>(engine, SessionOptions(), options_);
  }

  TestReply ask(const std::string& method, const std::string& target, const json& body = nullptr) {
    TestClient client(service_->port());
    return client.ask(method, target, body.is_null() ? "" : body.dump());
  }
  std::string begin(const json& body) {
    const TestReply reply = ask("POST", "/v1/streams", body);
    EXPECT_EQ(reply.status, 201) << reply.body;
    return reply.status == 201 ? reply.json()["id"].get<std::string>() : "";
  }
  json status(const std::string& id) { return ask("GET", "/v1/streams/" + id).json(); }
  // Waits until this is so, or for 20 s.
  template <typename Condition>
  json wait(const std::string& id, const Condition& condition) {
    json now = status(id);
    for (int i = 0; i < 400 && !condition(now); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      now = status(id);
    }
    EXPECT_TRUE(condition(now)) << now;
    return now;
  }
  json wait_for_end(const std::string& id) {
    return wait(id, [](const json& now) { return now["state"] == "ended"; });
  }
  static json question(const std::string& id, const std::string& text) {
    return {{"max_tokens", 4},
            {"temperature", 0},
            {"messages",
             {{{"role", "user"},
               {"content",
                {{{"type", "video_url"}, {"uuid", id}}, {{"type", "text"}, {"text", text}}}}}}}};
  }

  testing::TempDir directory_;
  ServiceOptions options_;
  std::unique_ptr<Service> service_;
};

TEST_F(StreamsOfAService, TakeFramesOverAWebSocketAndAnswerMeanwhile) {
  start();
  const std::string id = begin({{"name", "door"}, {"mm_processor_kwargs", {{"fps", 2}}}});
  EXPECT_EQ(status(id)["state"], "waiting");
  EXPECT_EQ(status(id)["kind"], "push");
  TestClient pushing(service_->port());
  ASSERT_EQ(pushing.upgrade("/v1/streams/" + id + "/frames").status, 101);
  const auto push = [&](int from, int to) {
    for (int i = from; i < to; ++i) {
      pushing.send_frame(1, json{{"time", 0.5 * i}}.dump());
      pushing.send_frame(2, picture_bytes(i));
    }
  };
  push(0, 24);
  wait(id, [](const json& now) { return now["frames"] >= 16; });
  const TestReply first = ask("POST", "/v1/chat/completions", question(id, "What is it?"));
  ASSERT_EQ(first.status, 200) << first.body;
  const int64_t seen = first.json()["usage"]["prompt_tokens_details"]["visual_tokens"];
  EXPECT_GT(seen, 0);
  push(24, 40);
  wait(id, [](const json& now) { return now["frames"] >= 36; });
  // The conversation goes on about more than there was, and the video is not read again.
  json again = question(id, "What is it?");
  again["messages"].push_back(
      {{"role", "assistant"}, {"content", first.json()["choices"][0]["message"]["content"]}});
  again["messages"].push_back({{"role", "user"}, {"content", "And now?"}});
  const TestReply second = ask("POST", "/v1/chat/completions", again);
  ASSERT_EQ(second.status, 200) << second.body;
  const json details = second.json()["usage"]["prompt_tokens_details"];
  EXPECT_GT(details["visual_tokens"], seen);
  EXPECT_GE(details["cached_tokens"], details["visual_tokens"]);
  const TestReply picture = ask("GET", "/v1/streams/" + id + "/picture");
  EXPECT_EQ(picture.status, 200);
  EXPECT_TRUE(picture.body.starts_with("\x89PNG"));

  pushing.send_frame(8, std::string("\x03\xe8", 2));
  pushing.close();
  EXPECT_NEAR(wait_for_end(id)["until"].get<double>(), 19.5, 0.6);
  // What has ended can still be asked about, until it is stopped.
  EXPECT_EQ(ask("POST", "/v1/chat/completions", question(id, "Is it over?")).status, 200);
  EXPECT_EQ(ask("DELETE", "/v1/streams/" + id).status, 200);
  EXPECT_EQ(ask("GET", "/v1/streams/" + id).status, 404);
  EXPECT_EQ(ask("POST", "/v1/chat/completions", question(id, "?")).status, 404);
}

TEST_F(StreamsOfAService, TakeTheBytesOfAContainerToo) {
  start();
  const std::string id = begin({{"mm_processor_kwargs", {{"fps", 2}}}});
  TestClient pushing(service_->port());
  ASSERT_EQ(pushing.upgrade("/v1/streams/" + id + "/frames").status, 101);
  const std::string bytes = film_bytes(12);
  for (size_t at = 0; at < bytes.size(); at += 1000) {
    pushing.send_frame(2, std::string_view(bytes).substr(at, 1000));
  }
  pushing.send_frame(8, std::string("\x03\xe8", 2));
  EXPECT_EQ(wait_for_end(id)["frames"], 12);
}

TEST_F(StreamsOfAService, SayWhatIsWrongWithAMessage) {
  start();
  const auto refused = [&](const std::vector<std::pair<int, std::string>>& messages) {
    const std::string id = begin(json::object());
    TestClient pushing(service_->port());
    EXPECT_EQ(pushing.upgrade("/v1/streams/" + id + "/frames").status, 101);
    for (const auto& [opcode, text] : messages) pushing.send_frame(opcode, text);
    const int code = pushing.read_close();
    EXPECT_EQ(ask("DELETE", "/v1/streams/" + id).status, 200);
    return code;
  };
  EXPECT_EQ(refused({{1, "no JSON"}}), 1008);
  EXPECT_EQ(refused({{1, R"({"tim": 1})"}}), 1008);
  EXPECT_EQ(refused({{1, std::string(20000, '[')}}), 1008);
  EXPECT_EQ(refused({{2, picture_bytes(1)}, {2, "no picture"}}), 1008);
  EXPECT_EQ(refused({{1, R"({"time": 5})"},
                     {2, picture_bytes(1)},
                     {1, R"({"time": 5})"},
                     {2, picture_bytes(2)}}),
            1008);
  std::string large = picture_bytes(1);
  large[17] = 1;  // 65536 and more wide
  EXPECT_EQ(refused({{2, large}}), 1008);
  EXPECT_EQ(refused({{2, std::string(3 << 20, 'x')}}), 1011) << "no container";
}

TEST_F(StreamsOfAService, RefuseAMessageOfAGigabyte) {
  start();
  const std::string id = begin(json::object());
  TestClient pushing(service_->port());
  ASSERT_EQ(pushing.upgrade("/v1/streams/" + id + "/frames").status, 101);
  pushing.send_frame_head(2, uint64_t{1} << 30);
  EXPECT_EQ(pushing.read_close(), 1009);
}

TEST_F(StreamsOfAService, AreFedByOne) {
  start();
  const std::string id = begin(json::object());
  EXPECT_EQ(ask("GET", "/v1/streams/" + id + "/frames").status, 426);
  TestClient pushing(service_->port()), other(service_->port());
  ASSERT_EQ(pushing.upgrade("/v1/streams/" + id + "/frames").status, 101);
  pushing.send_frame(2, picture_bytes(1));
  EXPECT_EQ(other.upgrade("/v1/streams/" + id + "/frames").status, 409);
  TestClient foreign(service_->port());
  EXPECT_EQ(
      foreign.upgrade("/v1/streams/" + id + "/frames", "Origin: http://evil.example\r\n").status,
      403);
  EXPECT_EQ(ask("DELETE", "/v1/streams/" + id).status, 200);
  EXPECT_EQ(pushing.read_close(), 1001);
}

TEST_F(StreamsOfAService, PlayFilesAsIfTheyWereFilmedNow) {
  start();
  const std::string path = directory_.file("film.mkv");
  std::ofstream(path, std::ios::binary) << film_bytes(8);
  const std::string id = begin({{"url", "file://" + path}, {"speed", 50}});
  EXPECT_EQ(wait_for_end(id)["kind"], "file");
  EXPECT_EQ(ask("POST", "/v1/chat/completions", question(id, "What?")).status, 200);
  EXPECT_EQ(ask("POST", "/v1/streams", {{"url", "/etc/passwd"}}).status, 403);
  EXPECT_EQ(ask("POST", "/v1/streams", {{"url", "file:///etc/../etc/passwd"}}).status, 403);
}

TEST_F(StreamsOfAService, ComeFromAddressesThatMayBeReached) {
  if (make_fetcher({}) == nullptr) GTEST_SKIP() << "built without libcurl";
  HttpServer::Callbacks callbacks;
  callbacks.rule = [](const HttpRequest&) { return BodyRule{}; };
  callbacks.refuse = [](int code, const std::string&) { return HttpRefusal{code, {}, ""}; };
  callbacks.handle = [](const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
    if (request.path == "/film") return reply->send(200, {}, film_bytes(10));
    if (request.path == "/list") return reply->send(200, {}, "#EXTM3U\n#EXTINF:1,\n/etc/passwd\n");
    reply->send(302, {{"Location", "http://169.254.169.254/"}}, "");
  };
  HttpServer camera({.spool_directory = directory_.path()}, callbacks);
  camera.start();
  const std::string here = "127.0.0.1:" + std::to_string(camera.port());
  options_.fetch = true;
  options_.fetching.allowed = {here};
  start();
  const std::string id =
      begin({{"url", "http://" + here + "/film"}, {"mm_processor_kwargs", {{"fps", 2}}}});
  EXPECT_EQ(wait_for_end(id)["frames"], 10);
  const auto code_of = [&](const std::string& url) {
    const TestReply reply = ask("POST", "/v1/streams", {{"url", url}});
    return reply.json()["error"]["code"].get<std::string>();
  };
  EXPECT_EQ(code_of("http://" + here + "/away"), "media_not_allowed");
  EXPECT_EQ(code_of("http://localhost:" + std::to_string(service_->port()) + "/"),
            "media_not_allowed");
  EXPECT_EQ(code_of("http://" + here + "/list"), "invalid_media");
  EXPECT_EQ(code_of("rtsp://" + here + "/"), "media_not_allowed");
  EXPECT_EQ(code_of("concat:/etc/passwd"), "invalid_media");
}

TEST_F(StreamsOfAService, RefuseByNameWhatTheyDoNotHonour) {
  start();
  const auto refused = [&](const json& body, const std::string& param) {
    const TestReply reply = ask("POST", "/v1/streams", body);
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(reply.json()["error"]["param"], param);
  };
  refused({{"adress", "x"}}, "adress");
  refused({{"url", 5}}, "url");
  refused({{"speed", 2}}, "speed");
  refused({{"mm_processor_kwargs", {{"num_frames", 5}}}}, "mm_processor_kwargs.num_frames");
  refused({{"name", std::string(300, 'x')}}, "name");
  const std::string id = begin(json::object());
  json body = question(id, "?");
  EXPECT_EQ(ask("POST", "/v1/chat/completions", body).status, 409) << "nothing has come";
  body["mm_processor_kwargs"] = {{"fps", 1}};
  EXPECT_EQ(ask("POST", "/v1/chat/completions", body).json()["error"]["param"],
            "mm_processor_kwargs");
  begin(json::object());
  begin(json::object());
  const TestReply full = ask("POST", "/v1/streams", json::object());
  EXPECT_EQ(full.status, 429);
  EXPECT_TRUE(full.has("Retry-After"));
  EXPECT_EQ(ask("GET", "/v1/streams").json()["data"].size(), 3u);
}

}  // namespace
}  // namespace kinora::server
