// How the server divides its work: who waits, who is refused before anything is done for them, what
// is done once for all, and what is no longer done for those who have gone.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "server/test_service.h"

namespace kinora::server {
namespace {

class WorkOfAService : public ServiceOnALoopback {
 protected:
  // An answer that does not end by itself for as long as any test takes.
  json endless() const {
    json body = question("Hello");
    body["ignore_eos"] = true;
    body["max_tokens"] = options_.max_tokens;
    return body;
  }
  // Waits until this is so, or for a minute.
  template <typename Condition>
  bool soon(const Condition& condition) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return true;
  }
  int64_t row_bytes() const { return engine().describe().row_bytes_per_token; }
  // As many tokens as there is memory for, less what prompts take.
  void allow_endless_answers() { options_.max_tokens = options_.max_row_bytes / row_bytes() / 2; }
};

TEST_F(WorkOfAService, LimitsWhatWaitsAndSaysWhenToComeBack) {
  options_.max_running = 1;
  options_.max_waiting = 2;
  start();
  json body = question("Hello");
  body["max_tokens"] = 2000;
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::map<int, int> statuses;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const TestReply reply = chat(body);
      const std::lock_guard lock(mutex);
      ++statuses[reply.status];
      if (reply.status == 429) {
        EXPECT_TRUE(reply.has("Retry-After: "));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // One client has one place to wait in: more get through only if the first has begun by then.
  EXPECT_GE(statuses[200], 1);
  EXPECT_GT(statuses[429], 0);
  EXPECT_EQ(statuses[200] + statuses[429], 8);
}

TEST_F(WorkOfAService, GivesUpAtTheDeadline) {
  options_.request_seconds = 0.05;
  allow_endless_answers();
  start();
  const TestReply reply = chat(endless());
  EXPECT_EQ(reply.status, 503) << reply.body;
  EXPECT_EQ(reply.json()["error"]["code"], "deadline_exceeded");
  EXPECT_TRUE(reply.has("Retry-After: "));
  EXPECT_EQ(metric("kinora_completion_tokens_total"), 0) << "it was answered all the same";
}

TEST_F(WorkOfAService, IsNotDoneForThoseWhoHaveGone) {
  allow_endless_answers();
  start();
  json body = endless();
  body["stream"] = true;
  {
    TestClient client(service_->port());
    client.request("POST", "/v1/chat/completions", body.dump());
    client.read_until("\n\n");
    EXPECT_EQ(metric("kinora_queue_running"), 1);
  }
  EXPECT_TRUE(soon([&] { return metric("kinora_queue_running") == 0; }))
      << "it still works for someone who has gone";
  // Nor was it done by then: what is answered to the end is counted.
  EXPECT_EQ(metric("kinora_completion_tokens_total"), 0);
}

// Of those who wait their turn, too.
TEST_F(WorkOfAService, IsNotBegunForThoseWhoHaveGone) {
  options_.max_running = 1;
  allow_endless_answers();
  start();
  json body = endless();
  body["stream"] = true;
  TestClient first(service_->port());
  first.request("POST", "/v1/chat/completions", body.dump());
  first.read_until("\n\n");
  {
    TestClient second(service_->port());
    second.request("POST", "/v1/chat/completions", body.dump());
    EXPECT_TRUE(soon([&] { return metric("kinora_queue_waiting") == 1; }));
  }
  first.close();
  EXPECT_TRUE(
      soon([&] { return metric("kinora_queue_waiting") + metric("kinora_queue_running") == 0; }));
  EXPECT_EQ(metric("kinora_completion_tokens_total"), 0);
}

TEST_F(WorkOfAService, IsRefusedBeforeAnyFrameIsDecodedWhereItWouldNotFit) {
  options_.max_row_bytes = 20000;
  start();
  expect_refusal(question({film(30, 5), text("What is it?")}), 400, "context_length_exceeded", "");
  // Whoever decodes one of these frames finds that it is none.
  std::string picture = picture_bytes(1);
  std::fill_n(picture.begin() + 60, 1000, '\0');  // within its pixels
  std::string bytes = film_head({PictureKind::png, 56, 56});
  for (int i = 0; i < 30; ++i) bytes += film_picture(picture, 500 * i);
  const std::string url = "data:video/x-matroska;base64," + encode_base64(bytes);
  const json broken = {{"type", "video_url"}, {"video_url", {{"url", url}}}};
  json body = question({broken, text("What is it?")});
  body["mm_processor_kwargs"] = {{"num_frames", 30}};
  expect_refusal(body, 400, "context_length_exceeded", "");
  body["mm_processor_kwargs"] = {{"num_frames", 2}};
  expect_refusal(body, 400, "invalid_media", "");
}

TEST_F(WorkOfAService, GivesUpOldVideosWhenMemoryIsShort) {
  start();
  const int64_t one =
      chat(question({film(8, 10), text("?")})).json()["usage"]["prompt_tokens"].get<int64_t>();
  service_.reset();
  options_.max_row_bytes = 3 * (one + 16) * row_bytes();
  start();
  for (int round = 0; round < 2; ++round) {
    for (int seed = 10; seed < 16; ++seed) {
      EXPECT_EQ(chat(question({film(8, seed), text("?")})).status, 200);
    }
  }
  EXPECT_LE(metric("kinora_kv_bytes"), metric("kinora_kv_bytes_limit"));
  EXPECT_GT(metric("kinora_retrieval_misses_total"), 6) << "nothing was given up";
}

TEST_F(WorkOfAService, SaysSoWhenOthersUseTheMemoryForTooLong) {
  options_.max_row_bytes = 4096 * row_bytes();
  options_.memory_seconds = 0.2;
  options_.max_tokens = 3000;
  start();
  json body = endless();
  body["stream"] = true;
  TestClient first(service_->port());
  first.request("POST", "/v1/chat/completions", body.dump());
  first.read_until("\n\n");
  const TestReply second = chat(endless());
  EXPECT_EQ(second.status, 503) << second.body;
  EXPECT_EQ(second.json()["error"]["code"], "memory_busy");
  EXPECT_TRUE(second.has("Retry-After: "));
  EXPECT_EQ(chat(question("Hello")).status, 200) << "a small one fits beside it";
  first.close();
  EXPECT_TRUE(soon([&] { return metric("kinora_queue_running") == 0; }));
  EXPECT_EQ(chat(question("Hello")).status, 200);
}

TEST_F(WorkOfAService, IsDoneOnceForAllWhoAskAboutAVideoAtTheSameTime) {
  start();
  constexpr int clients = 6, frames = 12;
  std::vector<std::thread> threads;
  std::vector<json> answers(clients);
  for (json& answer : answers) {
    threads.emplace_back([&] {
      answer = chat(question({film(frames, 21), text("What is it?")})).json();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const json& answer : answers) {
    EXPECT_EQ(answer["choices"][0]["message"], answers[0]["choices"][0]["message"]) << answer;
  }
  EXPECT_EQ(metric("kinora_retrieval_misses_total"), 1);
  EXPECT_EQ(metric("kinora_retrieval_hits_total"), clients - 1);
  EXPECT_EQ(metric("kinora_decoded_frames_total"), frames);
}

TEST_F(WorkOfAService, IsFinishedBeforeTheEndWhileOthersAreToldOfIt) {
  start();
  json body = question("Hello");
  body["ignore_eos"] = true;
  body["max_tokens"] = 4000;
  body["stream"] = true;
  TestClient client(service_->port());
  client.request("POST", "/v1/chat/completions", body.dump());
  client.read_until("\n\n");
  EXPECT_EQ(ask("GET", "/readyz").status, 200);
  std::thread ending([&] { service_->drain(120); });
  EXPECT_TRUE(soon([&] { return ask("GET", "/readyz").status == 503; }));
  EXPECT_EQ(ask("GET", "/healthz").status, 200);
  const TestReply late = chat(question("Hello"));
  EXPECT_EQ(late.status, 503) << late.body;
  EXPECT_EQ(late.json()["error"]["code"], "draining");
  EXPECT_TRUE(late.has("Retry-After: "));
  const std::string rest = client.read_until("");
  EXPECT_NE(rest.find("\"finish_reason\":\"length\""), std::string::npos);
  EXPECT_NE(rest.find("data: [DONE]\n\n"), std::string::npos);
  ending.join();
  EXPECT_FALSE(TestClient(service_->port()).open());
}

}  // namespace
}  // namespace kinora::server
