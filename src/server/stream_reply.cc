#include "server/stream_reply.h"

#include <fmt/format.h>

#include "server/answer_json.h"
#include "server/api_error.h"

namespace kinora::server {

bool Throttle::passes(std::string_view stage, int64_t done, int64_t total) {
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  if (stage == stage_ && done != total && now - told_ < std::chrono::milliseconds(100)) {
    return false;
  }
  stage_ = stage;
  told_ = now;
  return true;
}

void StreamReply::write(std::string text) {
  if (ended_) return;
  if (!begun_) {
    reply_->begin(200, {{"Content-Type", "text/event-stream; charset=utf-8"},
                        {"Cache-Control", "no-cache"},
                        {"X-Accel-Buffering", "no"}});
    begun_ = true;
  }
  reply_->write(std::move(text));
}

void StreamReply::send(const nlohmann::json& data) {
  const std::lock_guard lock(mutex_);
  write(event(data));
}

void StreamReply::send(const std::string& name, const nlohmann::json& data) {
  const std::lock_guard lock(mutex_);
  write(event(name, data));
}

void StreamReply::progress(std::string_view stage, int64_t done, int64_t total) {
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  if (now - spoke_ < std::chrono::seconds(begun_ ? 1 : 2)) return;
  spoke_ = now;
  write(fmt::format(": {} {} of {}\n\n", stage, done, total));
}

void StreamReply::end(std::string_view last) {
  const std::lock_guard lock(mutex_);
  write(std::string(last));
  ended_ = true;
  reply_->end();
}

void StreamReply::fail(const std::exception_ptr& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    if (begun_) {
      try {
        std::rethrow_exception(failure);
      } catch (...) {
        write(event(error_json(current_error())));
      }
      ended_ = true;
      reply_->end();
      return;
    }
  }
  std::rethrow_exception(failure);
}

}  // namespace kinora::server
