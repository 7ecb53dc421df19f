// What answers look like is tested here, what they say is not.
#include "server/service.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "server/test_service.h"

namespace kinora::server {
namespace {

using nlohmann::json;

TEST_F(ServiceOnALoopback, TellsHowItDoes) {
  start();
  EXPECT_EQ(ask("GET", "/healthz").body, "ok\n");
  EXPECT_EQ(ask("GET", "/readyz").status, 200);
  const json models = ask("GET", "/v1/models").json();
  EXPECT_EQ(models["data"][0]["id"], "org/tiny");
  EXPECT_EQ(ask("GET", "/v1/models/tiny").json()["id"], "org/tiny");
  EXPECT_EQ(ask("GET", "/v1/models/other").json()["error"]["code"], "model_not_found");
  chat(question("Hello"));
  // A request is counted once it is answered, a moment after its reply.
  std::string metrics;
  for (int i = 0; i < 1000 && metrics.find("chat/completions") == std::string::npos; ++i) {
    metrics = ask("GET", "/metrics").body;
  }
  for (const char* name :
       {"kinora_first_token_seconds_count 1\n", "kinora_completion_tokens_total",
        "kinora_kv_bytes{tier=\"host\"}", "kinora_queue_waiting 0\n",
        "kinora_requests_total{route=\"/v1/chat/completions\",status=\"200\"} 1"}) {
    EXPECT_NE(metrics.find(name), std::string::npos) << name << "\n" << metrics;
  }
}

// The text format of Prometheus: each family has one type before its samples, and a histogram's
// buckets add up.
struct Scraped {
  std::map<std::string, std::string> types;  // by family
  std::map<std::string, double> samples;     // by name and labels

  void read(const std::string& text) {
    EXPECT_TRUE(text.ends_with('\n'));
    std::istringstream lines(text);
    static const std::regex type(R"(# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram))");
    static const std::regex sample(
        R"RE(([a-zA-Z_:][a-zA-Z0-9_:]*)((?:\{[a-z_]+="[^"\\\n]*"(?:,[a-z_]+="[^"\\\n]*")*\})?) )RE"
        R"RE((-?[0-9][0-9.e+-]*))RE");
    std::string family;
    double before = 0;
    for (std::string line; std::getline(lines, line);) {
      std::smatch parts;
      if (std::regex_match(line, parts, type)) {
        family = parts[1];
        before = 0;
        EXPECT_TRUE(types.emplace(family, parts[2]).second) << "twice: " << line;
        continue;
      }
      ASSERT_TRUE(std::regex_match(line, parts, sample)) << line;
      const std::string name = parts[1];
      const double value = std::stod(parts[3]);
      EXPECT_TRUE(samples.emplace(name + parts[2].str(), value).second) << "twice: " << line;
      if (types[family] != "histogram") {
        EXPECT_EQ(name, family) << line;
      } else if (name == family + "_bucket") {
        EXPECT_GE(value, before) << line;
        before = value;
      } else if (name == family + "_count") {
        EXPECT_EQ(value, before) << line;
      } else {
        EXPECT_EQ(name, family + "_sum") << line;
      }
    }
  }
};

TEST_F(ServiceOnALoopback, HasEveryFigureForPrometheus) {
  SessionOptions session;
  session.draft = "pruned:adapt=0";
  start(session);
  json body = question({film(8, 41), text("What is it?")});
  body["max_tokens"] = 24;
  ASSERT_EQ(chat(body).status, 200);
  ASSERT_EQ(chat(body).status, 200);
  const TestReply reply = ask("GET", "/metrics");
  EXPECT_TRUE(reply.has("Content-Type: text/plain; version=0.0.4"));
  Scraped figures;
  figures.read(reply.body);
  const auto value = [&](const std::string& name) {
    const auto found = figures.samples.find(name);
    EXPECT_NE(found, figures.samples.end()) << name << "\n" << reply.body;
    return found == figures.samples.end() ? -1 : found->second;
  };
  for (const char* name : {"kinora_first_token_seconds", "kinora_tokens_per_second",
                           "kinora_queue_seconds", "kinora_accepted_length"}) {
    EXPECT_EQ(figures.types.at(name), "histogram");
    EXPECT_EQ(value(name + std::string("_count")), 2) << name;
    EXPECT_GE(value(name + std::string("_sum")), 0) << name;
  }
  EXPECT_GT(value("kinora_first_token_seconds_sum"), 0);
  EXPECT_GT(value("kinora_tokens_per_second_sum"), 0);
  EXPECT_EQ(value("kinora_queue_waiting"), 0);
  EXPECT_GE(value("kinora_queue_running"), 0);
  EXPECT_GE(value("kinora_decode_batch_mean"), 1);
  EXPECT_GE(value("kinora_decode_batch_largest"), 1);
  EXPECT_GE(value("kinora_accepted_length_mean"), 1);
  EXPECT_GT(value("kinora_kv_bytes{tier=\"host\"}"), 0);
  EXPECT_EQ(value("kinora_kv_bytes{tier=\"device\"}"), 0);
  EXPECT_EQ(value("kinora_kv_bytes{tier=\"disk\"}"), 0);
  EXPECT_EQ(value("kinora_retrieval_hits_total"), 1);
  EXPECT_EQ(value("kinora_retrieval_misses_total"), 1);
  EXPECT_EQ(value("kinora_retrieval_hit_rate"), 0.5);
  EXPECT_GT(value("kinora_video_decode_fps"), 0);
  EXPECT_EQ(figures.types.at("kinora_retrieval_hits_total"), "counter");
  EXPECT_EQ(figures.types.at("kinora_kv_bytes"), "gauge");
}

TEST_F(ServiceOnALoopback, AnswersInOpenAIsShape) {
  start();
  const TestReply reply = chat(question("Hello"));
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json answer = reply.json();
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["model"], "org/tiny");
  EXPECT_TRUE(answer["id"].get<std::string>().starts_with("chatcmpl-"));
  const json& choice = answer["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_TRUE(choice["finish_reason"] == "stop" || choice["finish_reason"] == "length");
  EXPECT_EQ(answer["usage"]["total_tokens"], answer["usage"]["prompt_tokens"].get<int>() +
                                                 answer["usage"]["completion_tokens"].get<int>());
}

TEST_F(ServiceOnALoopback, StreamsTheSameAnswer) {
  start();
  json body = question({film(6, 1), text("What is it?")});
  const json whole = chat(body).json();
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const TestReply reply = chat(body);
  EXPECT_TRUE(reply.has("text/event-stream"));
  std::string content;
  json last, finish;
  size_t at = 0;
  while (true) {
    const size_t end = reply.body.find("\n\n", at);
    ASSERT_NE(end, std::string::npos) << reply.body;
    const std::string line = reply.body.substr(at, end - at);
    at = end + 2;
    if (line == "data: [DONE]") break;
    if (line.starts_with(":")) continue;
    ASSERT_TRUE(line.starts_with("data: ")) << line;
    last = json::parse(line.substr(6));
    EXPECT_EQ(last["object"], "chat.completion.chunk");
    for (const json& choice : last["choices"]) {
      if (choice["delta"].contains("content"))
        content += choice["delta"]["content"].get<std::string>();
      if (!choice["finish_reason"].is_null()) finish = choice;
    }
  }
  EXPECT_EQ(at, reply.body.size());
  EXPECT_EQ(content, whole["choices"][0]["message"]["content"]);
  EXPECT_EQ(finish["finish_reason"], whole["choices"][0]["finish_reason"]);
  EXPECT_FALSE(finish["evidence"].empty());
  EXPECT_EQ(last["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
}

TEST_F(ServiceOnALoopback, ReadsAVideoOnceForManyConversations) {
  start();
  const json first = chat(question({film(8, 2), text("What is it?")})).json();
  ASSERT_TRUE(first.contains("usage")) << first;
  EXPECT_EQ(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  const int visual = first["usage"]["prompt_tokens_details"]["visual_tokens"];
  EXPECT_GT(visual, 0);
  const json second = chat(question({film(8, 2), text("Who is it, and why?")})).json();
  EXPECT_GE(second["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>(), visual);
  // A conversation goes on from its own memory.
  json body = question({film(8, 2), text("What is it?")});
  body["messages"].push_back(
      {{"role", "assistant"}, {"content", first["choices"][0]["message"]["content"]}});
  body["messages"].push_back({{"role", "user"}, {"content", "And then?"}});
  const json third = chat(body).json();
  EXPECT_GT(third["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>(),
            first["usage"]["prompt_tokens"].get<int>() - 4);
  // What they read of the film they hold together: none has a copy.
  const int64_t rows = visual * engine().describe().row_bytes_per_token;
  EXPECT_GE(metric("kinora_kv_bytes_shared"), 2 * rows);
  // Another way of looking at it is another video.
  body = question({film(8, 2), text("What is it?")});
  body["media_io_kwargs"] = {{"video", {{"fps", 4}}}};
  EXPECT_EQ(chat(body).json()["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

TEST_F(ServiceOnALoopback, AnswersAreThoseOfOneSession) {
  start();
  const json shared = chat(question({film(5, 3), text("What is it?")})).json();
  const json again = chat(question({film(5, 3), text("What is it?")})).json();
  EXPECT_EQ(shared["choices"][0]["message"], again["choices"][0]["message"]);
  // Concurrently as well.
  std::vector<std::thread> threads;
  std::vector<json> answers(6);
  for (json& answer : answers) {
    threads.emplace_back([&] {
      answer = chat(question({film(5, 3), text("What is it?")})).json();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const json& answer : answers) {
    EXPECT_EQ(answer["choices"][0]["message"], shared["choices"][0]["message"]) << answer;
  }
}

TEST_F(ServiceOnALoopback, KnowsMediaByTheirUuid) {
  start();
  json named = film(4, 4);
  named["uuid"] = "my film";
  ASSERT_EQ(chat(question({named, text("What is it?")})).status, 200);
  const json alone = {{"type", "video_url"}, {"uuid", "my film"}};
  const json reply = chat(question({alone, text("And what is that?")})).json();
  EXPECT_GT(reply["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>(), 0) << reply;
  expect_refusal(question({{{"type", "video_url"}, {"uuid", "other"}}, text("?")}), 404,
                 "media_not_found", "messages[0].content[0].video_url");
}

TEST_F(ServiceOnALoopback, ShowsPicturesToo) {
  start();
  const json picture = {{"type", "image_url"}, {"image_url", {{"url", picture_url(7)}}}};
  const TestReply reply = chat(question({picture, text("What is it?")}));
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.json()["kinora"]["inputs"][0]["kind"], "image");
}

TEST_F(ServiceOnALoopback, GivesSeveralChoicesAndTheirLogprobs) {
  start();
  json body = question("Hello");
  body["n"] = 3;
  body["temperature"] = 1;
  body["seed"] = 5;
  body["logprobs"] = true;
  body["top_logprobs"] = 2;
  const json answer = chat(body).json();
  ASSERT_EQ(answer["choices"].size(), 3) << answer;
  std::set<std::string> texts;
  int tokens = 0;
  for (const json& choice : answer["choices"]) {
    texts.insert(choice["message"]["content"]);
    const json& content = choice["logprobs"]["content"];
    tokens += static_cast<int>(content.size());
    std::string joined;
    for (const json& token : content) {
      EXPECT_LE(token["logprob"].get<double>(), 0);
      EXPECT_EQ(token["top_logprobs"].size(), 2);
      EXPECT_GE(token["top_logprobs"][0]["logprob"], token["top_logprobs"][1]["logprob"]);
    }
  }
  EXPECT_EQ(tokens, answer["usage"]["completion_tokens"]);
  EXPECT_GT(texts.size(), 1) << "three choices are alike";
  // The seed decides. Which choices share a step moves scores by rounding, and no token.
  const json again = chat(body).json();
  ASSERT_EQ(again["choices"].size(), answer["choices"].size());
  for (size_t i = 0; i < answer["choices"].size(); ++i) {
    const json &one = answer["choices"][i], &other = again["choices"][i];
    EXPECT_EQ(one["message"], other["message"]);
    for (size_t t = 0; t < one["logprobs"]["content"].size(); ++t) {
      EXPECT_NEAR(one["logprobs"]["content"][t]["logprob"].get<double>(),
                  other["logprobs"]["content"][t]["logprob"].get<double>(), 1e-4);
    }
  }
}

TEST_F(ServiceOnALoopback, AnswersAsLongAsItMayWhereNobodySaysHowLong) {
  options_.max_tokens = 3;
  start();
  json body = question("Hello");
  body.erase("max_tokens");
  body["ignore_eos"] = true;
  const TestReply reply = chat(body);
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.json()["usage"]["completion_tokens"], 3);
  body["max_tokens"] = 4;
  EXPECT_EQ(chat(body).status, 400);
}

TEST_F(ServiceOnALoopback, EndsBeforeAStopString) {
  start();
  json body = question("Hello");
  body["max_tokens"] = 30;
  const std::string all = chat(body).json()["choices"][0]["message"]["content"];
  // Whole characters from the middle on.
  const auto boundary = [&](size_t at) {
    while (at < all.size() && (static_cast<unsigned char>(all[at]) & 0xc0) == 0x80) ++at;
    return at;
  };
  const size_t begin = boundary(all.size() / 2), end = boundary(begin + 1);
  ASSERT_LT(begin, all.size());
  const std::string stop = all.substr(begin, end - begin);
  body["stop"] = {stop};
  const json choice = chat(body).json()["choices"][0];
  EXPECT_EQ(choice["message"]["content"], all.substr(0, all.find(stop)));
  EXPECT_EQ(choice["finish_reason"], "stop");
}

TEST_F(ServiceOnALoopback, RefusesByNameWhatItDoesNotHonour) {
  start();
  const auto with = [](const char* field, const json& value) {
    json body = question("Hello");
    body[field] = value;
    return body;
  };
  expect_refusal(with("frobnicate", 1), 400, "unknown_field", "frobnicate");
  expect_refusal(with("presence_penalty", 0.5), 400, "unsupported_value", "presence_penalty");
  expect_refusal(with("tools", json{{{"type", "function"}}}), 400, "unsupported_value", "tools");
  expect_refusal(with("response_format", {{"type", "json_object"}}), 400, "unsupported_value",
                 "response_format");
  expect_refusal(with("temperature", "hot"), 400, "invalid_type", "temperature");
  expect_refusal(with("temperature", 3), 400, "invalid_value", "temperature");
  expect_refusal(with("max_tokens", 0), 400, "invalid_value", "max_tokens");
  expect_refusal(with("max_tokens", 1 << 19), 400, "invalid_value", "max_completion_tokens");
  expect_refusal(with("max_tokens", 1.5), 400, "invalid_type", "max_tokens");
  expect_refusal(with("n", 1e300), 400, "invalid_value", "n");
  expect_refusal(with("stop", {"a", 1}), 400, "invalid_value", "stop");
  expect_refusal(with("stream_options", {{"include_usage", true}}), 400, "invalid_value",
                 "stream_options");
  expect_refusal(with("top_logprobs", 3), 400, "invalid_value", "top_logprobs");
  expect_refusal(with("model", "gpt-7"), 404, "model_not_found", "model");
  expect_refusal(with("messages", json::array()), 400, "invalid_value", "messages");
  expect_refusal(with("messages", "Hello"), 400, "invalid_type", "messages");
  expect_refusal(with("messages", {{{"role", "tool"}, {"content", "x"}}}), 400, "unsupported_value",
                 "messages[0].role");
  expect_refusal(with("messages", {{{"role", "assistant"}, {"content", "x"}}}), 400,
                 "invalid_value", "messages[0].role");
  expect_refusal(with("messages", {{{"role", "user"}, {"content", "x"}, {"mood", 1}}}), 400,
                 "unknown_field", "messages[0].mood");
  expect_refusal(with("mm_processor_kwargs", {{"size", 1}}), 400, "unknown_field",
                 "mm_processor_kwargs.size");
  expect_refusal(with("mm_processor_kwargs", {{"fps", 1}, {"num_frames", 2}}), 400, "invalid_value",
                 "mm_processor_kwargs.num_frames");
  expect_refusal(question(""), 400, "invalid_request", "");
  expect_refusal(question({text("x"), {{"type", "input_audio"}}}), 400, "unsupported_value",
                 "messages[0].content[1].type");
  // What says nothing may stay.
  json quiet = question("Hello");
  quiet["tools"] = json::array();
  quiet["frobnicate"] = nullptr;
  quiet["presence_penalty"] = 0;
  EXPECT_EQ(chat(quiet).status, 200);
}

TEST_F(ServiceOnALoopback, RefusesBrokenBodiesAndMedia) {
  start();
  const auto refused = [&](const std::string& body, const std::string& code) {
    const TestReply reply = ask("POST", "/v1/chat/completions", body);
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(reply.json()["error"]["code"], code) << reply.body;
  };
  refused("{", "invalid_json");
  refused("[1]", "invalid_json");
  refused("{\"a\":\"\xff\xfe\"}", "invalid_json");
  refused(std::string(10000, '[') + std::string(10000, ']'), "invalid_json");
  const auto with_url = [](const std::string& url) {
    return question({{{"type", "video_url"}, {"video_url", {{"url", url}}}}, text("?")});
  };
  const std::string place = "messages[0].content[0].video_url.url";
  expect_refusal(with_url("data:video/mp4;base64,!!!"), 400, "invalid_media", place);
  expect_refusal(with_url("data:video/mp4,abc"), 400, "invalid_media", place);
  expect_refusal(with_url("data:video/mp4;base64,"), 400, "invalid_media", place);
  expect_refusal(with_url("data:video/jpeg;base64,,"), 400, "invalid_media", place);
  expect_refusal(with_url("ftp://x/y"), 400, "invalid_media", place);
  expect_refusal(with_url("http://x/y"), 403, "media_not_allowed", place);
  expect_refusal(with_url("file:///etc/passwd"), 403, "media_not_allowed", place);
  expect_refusal(with_url("data:video/mp4;base64,bm90IGEgdmlkZW8="), 400, "invalid_media", "");
}

TEST_F(ServiceOnALoopback, ReadsLocalFilesOnlyInsideItsRoots) {
  const std::string root = directory_.file("root"), outside = directory_.file("outside");
  std::filesystem::create_directories(root);
  std::filesystem::create_directories(outside);
  for (const std::string& folder : {root, outside}) {
    std::ofstream(folder + "/a b.png", std::ios::binary) << picture_bytes(3);
  }
  std::filesystem::create_symlink(outside + "/a b.png", root + "/link.png");
  std::filesystem::create_symlink(outside, root + "/folder");
  options_.media.roots = {root};
  start();
  const auto status = [&](const std::string& url) {
    return chat(question({{{"type", "image_url"}, {"image_url", {{"url", url}}}}, text("?")}))
        .status;
  };
  EXPECT_EQ(status("file://" + root + "/a%20b.png"), 200);
  EXPECT_EQ(status(root + "/a b.png"), 200);
  for (const std::string& wrong :
       {outside + "/a b.png", root + "/../outside/a b.png", root + "/link.png",
        root + "/folder/a b.png", root + "/%2e%2e/outside/a b.png", root + "2/a b.png",
        std::string("/etc/passwd"), root + "/no such file.png"}) {
    EXPECT_EQ(status("file://" + wrong), 403) << wrong;
    EXPECT_EQ(status(wrong), 403) << wrong;
  }
  EXPECT_EQ(status("file://" + root), 400);
}

TEST_F(ServiceOnALoopback, WantsAKeyWhereItHasSome) {
  options_.keys = {"one", "two"};
  start();
  EXPECT_EQ(ask("GET", "/healthz").status, 200);
  const TestReply none = ask("GET", "/v1/models");
  EXPECT_EQ(none.status, 401);
  EXPECT_TRUE(none.has("WWW-Authenticate: Bearer"));
  EXPECT_EQ(ask("GET", "/v1/models", "", "Authorization: Bearer three\r\n").status, 401);
  EXPECT_EQ(ask("GET", "/v1/models", "", "Authorization: Bearer \r\n").status, 401);
  EXPECT_EQ(ask("GET", "/v1/models", "", "Authorization: Bearer two\r\n").status, 200);
}

TEST_F(ServiceOnALoopback, DoesNotTalkToPagesOfOthers) {
  start();
  EXPECT_EQ(ask("GET", "/v1/models", "", "Origin: http://localhost\r\n").status, 200);
  EXPECT_EQ(ask("GET", "/v1/models", "", "Origin: http://evil.example\r\n").status, 403);
  EXPECT_EQ(ask("GET", "/v1/models", "", "Origin: null\r\n").status, 403);
  TestClient rebound(service_->port());
  rebound.send("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n");
  EXPECT_EQ(rebound.reply().status, 403);
  EXPECT_FALSE(ask("GET", "/v1/models").has("Access-Control"));
  EXPECT_EQ(ask("OPTIONS", "/v1/models").status, 405);
}

TEST_F(ServiceOnALoopback, SaysWhatIsNotThere) {
  start();
  EXPECT_EQ(ask("GET", "/v1/unknown").status, 404);
  const TestReply wrong = ask("GET", "/v1/chat/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_TRUE(wrong.has("Allow: POST"));
}

TEST_F(ServiceOnALoopback, LogsEveryRequestWithItsId) {
  start();
  const TestReply reply = ask("GET", "/v1/models");
  chat(question("Hello"));
  service_.reset();
  ASSERT_EQ(log_.size(), 2);
  EXPECT_TRUE(reply.has("X-Request-Id: " + log_[0]["request"].get<std::string>()));
  EXPECT_EQ(log_[0]["status"], 200);
  EXPECT_EQ(log_[1]["path"], "/v1/chat/completions");
}

}  // namespace
}  // namespace kinora::server
