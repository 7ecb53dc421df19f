// Where videos and pictures of requests come from, and in what forms they are named.
#include <gtest/gtest.h>

#include <atomic>

#include "server/test_service.h"

namespace kinora::server {
namespace {

class MediaOfAService : public ServiceOnALoopback {
 protected:
  MediaOfAService() { options_.library = directory_.file("library"); }

  std::string upload(const std::string& bytes) const {
    const TestReply reply = ask("POST", "/v1/videos", bytes);
    EXPECT_EQ(reply.status, 201) << reply.body;
    return reply.json()["id"];
  }
  json respond(const json& part) const {
    const json body = {
        {"max_output_tokens", 4},
        {"input",
         {{{"role", "user"}, {"content", {part, {{"type", "input_text"}, {"text", "What?"}}}}}}}};
    const TestReply reply = ask("POST", "/v1/responses", body.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json();
  }
};

TEST_F(MediaOfAService, ComeFromAddressesWhereThatIsAllowed) {
  if (make_fetcher({}) == nullptr) GTEST_SKIP() << "built without libcurl";
  std::atomic<int> asked = 0;
  HttpServer::Callbacks callbacks;
  callbacks.rule = [](const HttpRequest&) { return BodyRule(); };
  callbacks.refuse = [](int status, const std::string&) { return HttpRefusal{status, {}, ""}; };
  callbacks.handle = [&](const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
    ++asked;
    if (request.path == "/moved") {
      return reply->send(302, {{"Location", "/film.mkv"}}, "");
    }
    reply->send(200, {}, request.path == "/film.mkv" ? film_bytes(6) : picture_bytes(1));
  };
  HttpServer elsewhere({.spool_directory = directory_.path()}, callbacks);
  elsewhere.start();
  const std::string here = "127.0.0.1:" + std::to_string(elsewhere.port());
  options_.fetch = true;
  options_.fetching.allowed = {here};
  start();
  const std::string film = "http://" + here + "/film.mkv", moved = "http://" + here + "/moved";
  const auto by_url = [](const std::string& kind, const std::string& url) {
    return question({{{"type", kind}, {kind, {{"url", url}}}}, text("What is it?")});
  };
  const TestReply first = chat(by_url("video_url", film));
  ASSERT_EQ(first.status, 200) << first.body;
  EXPECT_EQ(first.json()["kinora"]["inputs"][0]["kind"], "video");
  EXPECT_EQ(asked, 1);
  // By another way, it is the same film.
  const TestReply again = chat(by_url("video_url", moved));
  ASSERT_EQ(again.status, 200) << again.body;
  EXPECT_EQ(asked, 3);
  EXPECT_GT(again.json()["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  const TestReply picture = chat(by_url("image_url", "http://" + here + "/picture.png"));
  ASSERT_EQ(picture.status, 200) << picture.body;
  EXPECT_EQ(picture.json()["kinora"]["inputs"][0]["kind"], "image");

  const TestReply kept = ask("POST", "/v1/videos", json{{"url", film}, {"name", "kept"}}.dump(),
                             "Content-Type: application/json\r\n");
  ASSERT_EQ(kept.status, 201) << kept.body;
  EXPECT_EQ(kept.json()["frames"], 6);
  EXPECT_EQ(kept.json()["name"], "kept");
  EXPECT_EQ(ask("GET", "/v1/videos/" + kept.json()["id"].get<std::string>() + "/content").body,
            film_bytes(6));
  expect_refusal(by_url("video_url", "http://localhost:" + std::to_string(service_->port()) + "/"),
                 403, "media_not_allowed", "");
}

TEST_F(MediaOfAService, MayBeReadyFramesWithTheirTimes) {
  start();
  const auto look = [&](const json& video) {
    json body = question({film(6, 31), text("When is it?")});
    body["media_io_kwargs"] = {{"video", video}};
    const TestReply reply = chat(body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json();
  };
  const auto expect_times = [](const json& answer, double from, double until) {
    const json input = answer["kinora"]["inputs"][0];
    EXPECT_EQ(input["frames"], 6);
    EXPECT_NEAR(input["from"].get<double>(), from, 1e-6);
    EXPECT_NEAR(input["until"].get<double>(), until, 1e-6);
    // Evidence speaks of the same times; a frame lasts until the next.
    const double step = (until - from) / 5;
    ASSERT_FALSE(answer["choices"][0]["evidence"].empty());
    for (const json& span : answer["choices"][0]["evidence"]) {
      EXPECT_GE(span["start"].get<double>(), from - 1e-6) << span;
      EXPECT_LE(span["end"].get<double>(), until + 2 * step + 1e-6) << span;
    }
  };
  expect_times(look({}), 0, 5);
  expect_times(look({{"fps", 4}}), 0, 1.25);
  expect_times(look({{"duration", 3}}), 0, 2.5);
  expect_times(look({{"fps", 30}, {"frames_indices", {0, 15, 30, 45, 60, 75}}}), 0, 2.5);
  // From the middle of their video.
  expect_times(look({{"fps", 30}, {"frames_indices", {300, 315, 330, 345, 360, 375}}}), 10, 12.5);
  json body = question({film(6, 31), text("When is it?")});
  body["media_io_kwargs"] = {{"video", {{"fps", 4}, {"do_sample_frames", true}}}};
  body["mm_processor_kwargs"] = {{"num_frames", 2}};
  EXPECT_EQ(chat(body).json()["kinora"]["inputs"][0]["frames"], 2);
}

TEST_F(MediaOfAService, AreNamedByTheIdOfAFile) {
  start();
  const std::string film = upload(film_bytes(6)), picture = upload(picture_bytes(9));
  const json chat_part = {{"type", "input_video"}, {"input_video", {{"file_id", film}}}};
  const TestReply reply = chat(question({chat_part, text("What?")}));
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.json()["kinora"]["inputs"][0]["kind"], "video");
  EXPECT_GT(respond(chat_part)["usage"]["input_tokens_details"]["cached_tokens"], 0);
  EXPECT_GT(respond({{"type", "input_video"},
                     {"file_id", film}})["usage"]["input_tokens_details"]["cached_tokens"],
            0);
  EXPECT_EQ(respond({{"type", "input_image"}, {"file_id", picture}})["kinora"]["inputs"][0]["kind"],
            "image");
  expect_refusal(question({{{"type", "input_video"}, {"input_video", {{"file_id", "video-none"}}}},
                           text("What?")}),
                 404, "media_not_found", "messages[0].content[0].input_video.url");
}

TEST_F(MediaOfAService, MayBePicturesInResponses) {
  start();
  const json whole = respond({{"type", "input_image"}, {"image_url", picture_url(5)}});
  EXPECT_EQ(whole["kinora"]["inputs"][0]["kind"], "image");
  EXPECT_GT(whole["usage"]["input_tokens_details"]["visual_tokens"], 0);
  // As an object, as chat has it.
  const json part = {{"type", "input_image"}, {"image_url", {{"url", picture_url(5)}}}};
  EXPECT_GT(respond(part)["usage"]["input_tokens_details"]["cached_tokens"], 0);
}

}  // namespace
}  // namespace kinora::server
