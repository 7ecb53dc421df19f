// Videos that stay: uploaded, listed, shown in parts, asked about, deleted, and there after a
// restart.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "server/service.h"
#include "server/test_client.h"
#include "server/test_media.h"
#include "support/temp_dir.h"

namespace kinora::server {
namespace {

using nlohmann::json;

class VideosOfAService : public ::testing::Test {
 protected:
  VideosOfAService() { start(); }

  void start() {
    service_.reset();
    ServiceOptions options;
    options.model = "tiny";
    options.http.spool_directory = options.media.directory = directory_.path();
    options.library = directory_.file("library");
    options.max_row_bytes = 64 << 20;
    options.max_upload_bytes = 200000;
    static const Engine engine(
        {.model = KINORA_FIXTURES "/models/qwen2_5_vl_tied_new", .device = "cpu", .threads = 2});
    service_ = std::make_unique<Service>(engine, SessionOptions(), options);
  }
  TestReply ask(const std::string& method, const std::string& target, const std::string& body = "",
                const std::string& headers = "") const {
    TestClient client(service_->port());
    return client.ask(method, target, body, headers);
  }
  json upload(int seed, const std::string& name = "a%20film.png") const {
    const TestReply reply = ask("POST", "/v1/videos?name=" + name, picture_bytes(seed));
    EXPECT_EQ(reply.status, 201) << reply.body;
    return reply.json();
  }
  TestReply chat(const json& part, const json& look = nullptr) const {
    const json body = {
        {"max_tokens", 4},
        {"mm_processor_kwargs", look},
        {"messages",
         {{{"role", "user"}, {"content", {part, {{"type", "text"}, {"text", "What?"}}}}}}}};
    return ask("POST", "/v1/chat/completions", body.dump());
  }

  testing::TempDir directory_;
  std::unique_ptr<Service> service_;
};

TEST_F(VideosOfAService, ComeAndGo) {
  EXPECT_TRUE(ask("GET", "/v1/videos").json()["data"].empty());
  const json video = upload(1);
  EXPECT_EQ(video["name"], "a film.png");
  EXPECT_EQ(video["width"], 56);
  EXPECT_EQ(upload(1, "again")["id"], video["id"]) << "the same content is one video";
  upload(2);
  EXPECT_EQ(ask("GET", "/v1/videos").json()["data"].size(), 2);
  const std::string path = "/v1/videos/" + video["id"].get<std::string>();
  EXPECT_EQ(ask("GET", path).json(), video);
  EXPECT_EQ(ask("DELETE", path).json()["deleted"], true);
  EXPECT_EQ(ask("DELETE", path).json()["error"]["code"], "video_not_found");
  EXPECT_EQ(ask("GET", path).status, 404);
  EXPECT_EQ(ask("GET", "/v1/videos").json()["data"].size(), 1);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_.file("library")), {}), 1);
}

TEST_F(VideosOfAService, AreThereAfterARestart) {
  const json video = upload(3);
  // What was cut off while it was written is not a video.
  std::filesystem::create_directories(directory_.file("library/video-half"));
  std::ofstream(directory_.file("library/video-half/video")) << "half";
  // Nor is one whose description could use up the stack.
  std::filesystem::create_directories(directory_.file("library/video-deep"));
  std::ofstream(directory_.file("library/video-deep/about.json")) << std::string(100'000, '[');
  json deep = video;
  deep["id"] = "video-nested";
  deep["more"] = json::parse(std::string(100, '[') + std::string(100, ']'));
  std::filesystem::create_directories(directory_.file("library/video-nested"));
  std::ofstream(directory_.file("library/video-nested/about.json")) << deep;
  start();
  const json list = ask("GET", "/v1/videos").json()["data"];
  ASSERT_EQ(list.size(), 1);
  EXPECT_EQ(list[0], video);
  EXPECT_EQ(chat({{"type", "image_url"}, {"uuid", video["id"]}}).status, 200);
}

TEST_F(VideosOfAService, AreAskedAboutByTheirId) {
  const json video = upload(4);
  const TestReply reply = chat({{"type", "image_url"}, {"uuid", video["id"]}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(chat({{"type", "image_url"}, {"image_url", {{"url", video["id"]}}}}).status, 200);
  // The same bytes in a request are the same video.
  const json again = chat({{"type", "image_url"}, {"image_url", {{"url", picture_url(4)}}}}).json();
  EXPECT_GT(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(chat({{"type", "image_url"}, {"uuid", "video-none"}}).status, 404);
}

TEST_F(VideosOfAService, AreReadAheadWithProgress) {
  constexpr int frames = 16;
  const json video = ask("POST", "/v1/videos?name=film", film_bytes(frames)).json();
  const TestReply reply = ask("POST", "/v1/videos/" + video["id"].get<std::string>() + "/index",
                              json{{"mm_processor_kwargs", {{"fps", 2}}}}.dump());
  EXPECT_TRUE(reply.has("text/event-stream"));
  // No stage goes back or further than it said that it would.
  std::map<std::string, std::pair<int64_t, int64_t>> stages;
  std::string last;
  std::istringstream lines(reply.body);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("event: ")) last = line.substr(7);
    if (!line.starts_with("data: ")) continue;
    const json data = json::parse(line.substr(6));
    if (last == "done") {
      EXPECT_EQ(data["id"], video["id"]);
      continue;
    }
    ASSERT_EQ(last, "progress") << reply.body;
    auto& [done, total] = stages[data["stage"]];
    EXPECT_GE(data["done"], done) << reply.body;
    done = data["done"];
    total = data["total"];
    EXPECT_LE(done, total) << reply.body;
  }
  EXPECT_EQ(last, "done") << reply.body;
  EXPECT_EQ(stages["decode"], std::pair(int64_t{frames}, int64_t{frames})) << reply.body;
  EXPECT_EQ(stages["vision"].first, stages["vision"].second) << reply.body;
  // What follows the video in a question is not read yet.
  EXPECT_GT(stages["prefill"].first, 0) << reply.body;
  const json answer = chat({{"type", "video_url"}, {"uuid", video["id"]}}, {{"fps", 2}}).json();
  EXPECT_GE(answer["usage"]["prompt_tokens_details"]["cached_tokens"],
            answer["usage"]["prompt_tokens_details"]["visual_tokens"])
      << answer;
  EXPECT_EQ(ask("POST", "/v1/videos/video-none/index", "{}").status, 404);
}

TEST_F(VideosOfAService, AreShownInParts) {
  const json video = upload(6);
  const std::string path = "/v1/videos/" + video["id"].get<std::string>() + "/content";
  const std::string bytes = picture_bytes(6);
  const std::string size = std::to_string(bytes.size());
  EXPECT_EQ(ask("GET", path).body, bytes);
  const auto part = [&](const std::string& range) {
    return ask("GET", path, "", "Range: bytes=" + range + "\r\n");
  };
  EXPECT_EQ(part("0-9").body, bytes.substr(0, 10));
  EXPECT_EQ(part("0-9").status, 206);
  EXPECT_TRUE(part("0-9").has("Content-Range: bytes 0-9/" + size));
  EXPECT_EQ(part("100-").body, bytes.substr(100));
  EXPECT_EQ(part("-7").body, bytes.substr(bytes.size() - 7));
  EXPECT_EQ(part("5-100000000").body, bytes.substr(5));
  EXPECT_EQ(part("100000000-").status, 416);
  EXPECT_EQ(part("9-5").body, bytes) << "a range that makes no sense does not count";
  EXPECT_EQ(part("x").body, bytes);
  EXPECT_EQ(part("99999999999999999999-").body, bytes);
}

TEST_F(VideosOfAService, HavePictures) {
  const json video = upload(7);
  const std::string path = "/v1/videos/" + video["id"].get<std::string>();
  const TestReply picture = ask("GET", path + "/picture?time=0&side=28");
  EXPECT_EQ(picture.status, 200) << picture.body;
  EXPECT_TRUE(picture.body.starts_with("\x89PNG"));
  EXPECT_EQ(ask("GET", path + "/picture?time=abc").status, 400);
  EXPECT_EQ(ask("GET", path + "/picture?side=99999").status, 400);
  EXPECT_EQ(ask("GET", path + "/picture?colour=red").json()["error"]["param"], "colour");
  EXPECT_EQ(ask("GET", path + "/scenes").json()["data"].size(), 1);
}

TEST_F(VideosOfAService, AreRefusedWhenTheyAreNone) {
  const TestReply broken = ask("POST", "/v1/videos?name=broken.mp4", "this is no video");
  EXPECT_EQ(broken.status, 400);
  EXPECT_EQ(broken.json()["error"]["code"], "invalid_media");
  EXPECT_NE(broken.body.find("broken.mp4"), std::string::npos) << broken.body;
  EXPECT_EQ(broken.body.find(directory_.path()), std::string::npos) << "tells where files lie";
  EXPECT_EQ(ask("POST", "/v1/videos", std::string(300000, 'x')).status, 413);
  EXPECT_EQ(ask("POST", "/v1/videos", "x", "Content-Type: multipart/form-data\r\n").status, 415);
  EXPECT_EQ(ask("POST", "/v1/videos").status, 400);
  const std::string type = "Content-Type: application/json\r\n";
  EXPECT_EQ(ask("POST", "/v1/videos", R"({"url": "file:///etc/passwd"})", type).status, 403);
  EXPECT_EQ(ask("POST", "/v1/videos", R"({"link": "x"})", type).status, 400);
  EXPECT_EQ(ask("POST", "/v1/videos", json{{"url", picture_url(8)}, {"name", "sent"}}.dump(), type)
                .json()["name"],
            "sent");
  for (const char* name : {"..", "video-..", "%2e%2e%2f", "video-%2fetc"}) {
    EXPECT_EQ(ask("GET", std::string("/v1/videos/") + name + "/content").status, 404) << name;
  }
  // Nothing but the library and what it keeps is left behind. A body's file goes with its request,
  // which may end a moment after the reply has arrived.
  const auto left = [&] {
    std::string names;
    for (const auto& file : std::filesystem::directory_iterator(directory_.path())) {
      const std::string name = file.path().filename().string();
      if (name != "library" && !name.starts_with("media-")) names += name + " ";
    }
    return names;
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!left().empty() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(left(), "");
}

TEST_F(VideosOfAService, HaveAPage) {
  const TestReply page = ask("GET", "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_TRUE(page.has("text/html"));
  EXPECT_TRUE(page.has("default-src 'none'; script-src 'self'"));
  for (const char* name : {"app.js", "style.css", "icon.svg"}) {
    EXPECT_EQ(ask("GET", std::string("/page/") + name).status, 200) << name;
  }
  EXPECT_EQ(ask("GET", "/page/none.js").status, 404);
  // Nothing comes from elsewhere, and nothing stands in the markup that the policy forbids.
  EXPECT_EQ(page.body.find("http://"), std::string::npos);
  EXPECT_EQ(page.body.find("https://"), std::string::npos);
  EXPECT_EQ(page.body.find(" style="), std::string::npos);
  EXPECT_EQ(page.body.find(" onclick="), std::string::npos);
}

}  // namespace
}  // namespace kinora::server
