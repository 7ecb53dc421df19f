#include <gtest/gtest.h>

#include "server/service.h"
#include "server/test_client.h"
#include "server/test_media.h"
#include "support/temp_dir.h"

namespace kinora::server {
namespace {

using nlohmann::json;

class Responses : public ::testing::Test {
 protected:
  Responses() {
    ServiceOptions options;
    options.model = "tiny";
    options.http.spool_directory = options.media.directory = directory_.path();
    static const Engine engine(
        {.model = KINORA_FIXTURES "/models/qwen2_5_vl_tied_new", .device = "cpu", .threads = 2});
    service_ = std::make_unique<Service>(engine, SessionOptions(), options);
  }
  TestReply respond(const json& body) const {
    TestClient client(service_->port());
    return client.ask("POST", "/v1/responses", body.dump());
  }
  static json question() {
    return {{"temperature", 0},
            {"max_output_tokens", 6},
            {"input",
             {{{"role", "user"},
               {"content",
                {{{"type", "input_video"}, {"input_video", {{"url", film_url(4, 1)}}}},
                 {{"type", "input_text"}, {"text", "What is it?"}}}}}}}};
  }

  testing::TempDir directory_;
  std::unique_ptr<Service> service_;
};

TEST_F(Responses, AnswerAsChatDoes) {
  const TestReply reply = respond(question());
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json response = reply.json();
  EXPECT_EQ(response["object"], "response");
  ASSERT_TRUE(response["output"].is_array());
  const std::string text = response["output"][0]["content"][0]["text"];
  const json chat = {{"temperature", 0},
                     {"max_tokens", 6},
                     {"messages",
                      {{{"role", "user"},
                        {"content",
                         {{{"type", "video_url"}, {"video_url", {{"url", film_url(4, 1)}}}},
                          {{"type", "text"}, {"text", "What is it?"}}}}}}}};
  TestClient client(service_->port());
  const json other = client.ask("POST", "/v1/chat/completions", chat.dump()).json();
  EXPECT_EQ(other["choices"][0]["message"]["content"], text);
  EXPECT_GT(other["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
      << "the film was read again";
}

TEST_F(Responses, StreamEventsInOrder) {
  json body = question();
  const std::string text = respond(body).json()["output"][0]["content"][0]["text"];
  body["stream"] = true;
  const TestReply reply = respond(body);
  std::vector<std::string> names;
  std::string joined;
  int64_t number = 0;
  for (size_t at = 0; at < reply.body.size();) {
    const size_t end = reply.body.find("\n\n", at);
    const std::string block = reply.body.substr(at, end - at);
    at = end + 2;
    if (block.starts_with(":")) continue;
    const json data = json::parse(block.substr(block.find("data: ") + 6));
    EXPECT_EQ(data["sequence_number"], number++);
    const std::string name = data["type"];
    if (name == "response.output_text.delta") joined += data["delta"].get<std::string>();
    if (names.empty() || names.back() != name) names.push_back(name);
  }
  EXPECT_EQ(joined, text);
  ASSERT_GE(names.size(), 9) << reply.body;
  EXPECT_EQ(names.front(), "response.created");
  EXPECT_TRUE(names.back() == "response.completed" || names.back() == "response.incomplete");
}

TEST_F(Responses, TakeInstructionsAndWhatWasSaid) {
  const json body = {{"instructions", "Be brief."},
                     {"max_output_tokens", 3},
                     {"input",
                      {{{"role", "user"}, {"content", "Hello"}},
                       {{"type", "message"},
                        {"id", "msg-1"},
                        {"status", "completed"},
                        {"role", "assistant"},
                        {"content", {{{"type", "output_text"}, {"text", "Hi"}}}}},
                       {{"role", "user"}, {"content", "Again"}}}}};
  EXPECT_EQ(respond(body).status, 200);
  EXPECT_EQ(respond({{"input", "Hello"}, {"max_output_tokens", 2}}).status, 200);
}

TEST_F(Responses, RefuseByNameWhatIsNotHonoured) {
  const auto refused = [&](const char* field, const json& value) {
    json body = question();
    body[field] = value;
    const TestReply reply = respond(body);
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(reply.json()["error"]["param"], field) << reply.body;
  };
  refused("previous_response_id", "resp_1");
  refused("store", true);
  refused("tools", {{{"type", "web_search"}}});
  refused("reasoning", {{"effort", "high"}});
  refused("max_output_tokens", "many");
  refused("input", 7);
}

}  // namespace
}  // namespace kinora::server
