// The API over a loopback socket, on a small random model: a fixture for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "server/service.h"
#include "server/test_client.h"
#include "server/test_media.h"
#include "support/temp_dir.h"

namespace kinora::server {

class ServiceOnALoopback : public ::testing::Test {
 protected:
  using json = nlohmann::json;

  ServiceOnALoopback() {
    options_.model = "org/tiny";
    options_.http.spool_directory = options_.media.directory = directory_.path();
    options_.max_row_bytes = 64 << 20;
    options_.log = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      log_.push_back(json::parse(line));
    };
  }
  void start(const SessionOptions& session = {}) {
    service_ = std::make_unique<Service>(engine(), session, options_);
  }

  static const Engine& engine() {
    static const Engine made(
        {.model = KINORA_FIXTURES "/models/qwen2_5_vl_tied_new", .device = "cpu", .threads = 2});
    return made;
  }

  TestReply ask(const std::string& method, const std::string& target, const std::string& body = "",
                const std::string& headers = "") const {
    TestClient client(service_->port());
    return client.ask(method, target, body, headers);
  }
  TestReply chat(const json& body) const {
    return ask("POST", "/v1/chat/completions", body.dump());
  }

  static json question(const json& content) {
    return {{"model", "tiny"},
            {"temperature", 0},
            {"max_tokens", 8},
            {"messages", {{{"role", "user"}, {"content", content}}}}};
  }
  static json film(int frames, int seed) {
    return {{"type", "video_url"}, {"video_url", {{"url", film_url(frames, seed)}}}};
  }
  static json text(const std::string& words) { return {{"type", "text"}, {"text", words}}; }

  void expect_refusal(const json& body, int status, const std::string& code,
                      const std::string& param) const {
    const TestReply reply = chat(body);
    EXPECT_EQ(reply.status, status) << reply.body;
    const json error = reply.json().at("error");
    EXPECT_EQ(error.at("code"), code) << reply.body;
    EXPECT_EQ(error.at("param"), param.empty() ? json() : json(param)) << reply.body;
    EXPECT_FALSE(error.at("message").get<std::string>().empty());
  }

  // The sum of a metric's values, whatever their labels; 0 where there is none.
  double metric(const std::string& name) const {
    double sum = 0;
    std::istringstream lines(ask("GET", "/metrics").body);
    for (std::string line; std::getline(lines, line);) {
      const size_t value = line.rfind(' ');
      if (line.substr(0, std::min(line.find('{'), value)) == name) {
        sum += std::stod(line.substr(value + 1));
      }
    }
    return sum;
  }

  testing::TempDir directory_;
  ServiceOptions options_;
  std::mutex mutex_;
  std::vector<json> log_;
  std::unique_ptr<Service> service_;
};

}  // namespace kinora::server
