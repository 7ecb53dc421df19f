// A reply as server-sent events. It begins with the first thing to say, so that what fails before
// that is still a plain answer with its own status. Any thread. Used by chat.cc and others.
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "server/http/http.h"

namespace kinora::server {

// Lets through what is worth telling: a stage's first, last and every tenth of a second's news. Any
// thread.
class Throttle {
 public:
  bool passes(std::string_view stage, int64_t done, int64_t total);

 private:
  std::mutex mutex_;
  std::string stage_;
  std::chrono::steady_clock::time_point told_;
};

class StreamReply {
 public:
  explicit StreamReply(std::shared_ptr<HttpReply> reply) : reply_(std::move(reply)) {}

  void send(const nlohmann::json& data);
  void send(const std::string& name, const nlohmann::json& data);
  // While nothing else can be said: a comment that keeps proxies from giving up, at most one a
  // second and only after two.
  void progress(std::string_view stage, int64_t done, int64_t total);
  void end(std::string_view last = "");
  // Rethrows what went wrong before the stream began; after that it becomes its last event.
  void fail(const std::exception_ptr& failure);

 private:
  void write(std::string text);

  std::shared_ptr<HttpReply> reply_;
  std::mutex mutex_;
  bool begun_ = false;
  bool ended_ = false;
  std::chrono::steady_clock::time_point spoke_ = std::chrono::steady_clock::now();
};

}  // namespace kinora::server
