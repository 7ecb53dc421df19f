#include "server/http/reply.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <atomic>
#include <utility>

namespace kinora::server {
namespace {

class Reply final : public HttpReply {
 public:
  Reply(std::shared_ptr<ReplyTarget> target, const std::string& id)
      : target_(std::move(target)), number_(target_->number()), id_(id), gone_(target_->gone()) {}
  ~Reply() override {
    if (status_ == 0) send(500, {}, "");
    if (begun_ && !ended_) {  // a body that was not finished must not look whole
      target_->post([target = target_] { target->cancel(); });
    }
  }

  void send(int status, Headers headers, std::string body) override {
    if (status_ != 0) return;
    prepare(status, headers);
    post([headers = std::move(headers), body = std::move(body), status](ReplyTarget& target) {
      const bool empty = target.head_only();
      target.queue(target.head_of(status, headers, std::ssize(body)) + (empty ? "" : body), true);
    });
  }

  void send_file(int status, Headers headers, const std::string& path, int64_t offset,
                 int64_t count) override {
    if (status_ != 0) return;
    auto file = std::make_shared<Descriptor>(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file->get() < 0) return send(404, {}, "");
    prepare(status, headers);
    post([headers = std::move(headers), file, status, offset, count](ReplyTarget& target) {
      const bool empty = target.head_only() || count == 0;
      target.queue(target.head_of(status, headers, count), empty);
      if (!empty) target.queue_file(std::move(*file), offset, count);
    });
  }

  void begin(int status, Headers headers) override {
    if (status_ != 0) return;
    prepare(status, headers);
    begun_ = true;
    post([headers = std::move(headers), status](ReplyTarget& target) {
      target.queue(target.head_of(status, headers, std::nullopt), false);
    });
  }

  void write(std::string piece) override {
    if (piece.empty()) return;
    post([piece = std::move(piece)](ReplyTarget& target) {
      if (target.head_only()) return;
      target.queue(target.chunks() ? fmt::format("{:x}\r\n", piece.size()) + piece + "\r\n" : piece,
                   false);
    });
  }

  void end() override {
    if (std::exchange(ended_, true)) return;
    post([](ReplyTarget& target) {
      target.queue(target.chunks() && !target.head_only() ? "0\r\n\r\n" : "", true);
    });
  }

  void upgrade(int64_t max_message_bytes, WebSocketEvents events) override {
    if (status_ != 0) return;
    status_ = 101;
    post([max_message_bytes, events = std::move(events)](ReplyTarget& target) mutable {
      target.become_socket(max_message_bytes, std::move(events));
    });
  }

  const CancelToken& gone() const override { return gone_; }
  int status() const override { return status_; }

 private:
  void prepare(int status, Headers& headers) {
    status_ = status;
    headers.emplace_back("X-Request-Id", id_);
  }
  template <typename Work>
  void post(Work work) {
    target_->post([target = target_, number = number_, work = std::move(work)]() mutable {
      if (target->number() == number) work(*target);
    });
  }

  std::shared_ptr<ReplyTarget> target_;
  uint64_t number_;  // of the connection's request
  std::string id_;
  CancelToken gone_;
  std::atomic<int> status_ = 0;
  bool begun_ = false;
  bool ended_ = false;
};

}  // namespace

std::shared_ptr<HttpReply> make_reply(std::shared_ptr<ReplyTarget> target, const std::string& id) {
  return std::make_shared<Reply>(std::move(target), id);
}

}  // namespace kinora::server
