#include "server/live/push_feed.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <utility>

#include "server/api_error.h"
#include "server/fields.h"

namespace kinora::server {
namespace {

constexpr int64_t longest_side = 16384;

}  // namespace

bool write_to_pipe(int descriptor, std::string_view bytes, const CancelToken& cancel) {
  // A reader may go between the look and the write; the thread, which does nothing else, must not
  // be ended for that.
  sigset_t broken;
  sigemptyset(&broken);
  sigaddset(&broken, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken, nullptr);
  while (!bytes.empty()) {
    if (cancel.cancelled()) return false;
    pollfd waiting{descriptor, POLLOUT, 0};
    const int ready = ::poll(&waiting, 1, 100);
    if (ready < 0 && errno != EINTR) return false;
    if (ready <= 0) continue;
    if ((waiting.revents & (POLLERR | POLLNVAL)) != 0) return false;
    const ssize_t done = ::write(descriptor, bytes.data(), bytes.size());
    if (done < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (done < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(done));
  }
  return true;
}

PushFeed::PushFeed(Descriptor pipe) : pipe_(std::move(pipe)), thread_([this] { work(); }) {}

PushFeed::~PushFeed() {
  close(1001, "the stream was stopped");
  thread_.join();
}

void PushFeed::close(int code, const std::string& reason) {
  stop_.cancel();
  const std::lock_guard lock(mutex_);
  ended_ = true;
  if (const auto socket = std::exchange(socket_, nullptr)) socket->close(code, reason);
  changed_.notify_all();
}

// Held by the events of a socket: ends with the last of them.
struct PushFeed::Claim {
  std::shared_ptr<PushFeed> feed;
  bool opened = false;

  explicit Claim(std::shared_ptr<PushFeed> of) : feed(std::move(of)) {}
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim() {
    if (opened) return;
    const std::lock_guard lock(feed->mutex_);
    feed->taken_ = false;
  }
};

std::optional<WebSocketEvents> PushFeed::take(const std::shared_ptr<PushFeed>& self) {
  {
    const std::lock_guard lock(self->mutex_);
    if (self->ended_ || self->taken_) return std::nullopt;
    self->taken_ = true;
  }
  const auto claim = std::make_shared<Claim>(self);
  WebSocketEvents events;
  events.opened = [self, claim](std::shared_ptr<WebSocket> socket) {
    const std::lock_guard lock(self->mutex_);
    claim->opened = true;
    if (self->ended_) return socket->close(1001, "the stream was stopped");
    self->socket_ = std::move(socket);
    self->socket_->read();
  };
  events.message = [self](std::string message, bool text) {
    const std::lock_guard lock(self->mutex_);
    self->message_.emplace(std::move(message), text);
    self->changed_.notify_all();
  };
  events.closed = [self] {
    const std::lock_guard lock(self->mutex_);
    self->ended_ = true;
    self->socket_ = nullptr;
    self->changed_.notify_all();
  };
  return events;
}

std::string PushFeed::bytes_of(const std::string& message, bool text) {
  if (text) {
    const nlohmann::json value = parse_body(message);
    Fields fields(value, "");
    time_ = fields.number("time", 0, 1e9);
    fields.done();
    return "";
  }
  const auto head = bytes_only_ ? std::nullopt : picture_head(message);
  if (!head && picture_) throw bad_request("", "this message is not a picture, as those before it");
  if (!head) {
    if (message.starts_with("\xff\xd8\xff")) throw bad_request("", "this is half a picture");
    bytes_only_ = true;
    return message;
  }
  if (head->width < 1 || head->height < 1 || std::max(head->width, head->height) > longest_side) {
    throw bad_request("", "this picture is larger than any that is read");
  }
  if (picture_ && picture_->kind != head->kind) {
    throw bad_request("", "pictures of one stream must be of one kind, JPEG or PNG");
  }
  const auto now = std::chrono::steady_clock::now();
  if (!began_) began_ = now;
  const double time = time_ ? *std::exchange(time_, std::nullopt)
                            : std::chrono::duration<double>(now - *began_).count();
  if (time <= last_time_) throw bad_request("time", "must grow from picture to picture");
  last_time_ = time;
  std::string bytes = picture_ ? "" : film_head(*head);
  picture_ = head;
  return bytes + film_picture(message, std::llround(time * 1000));
}

void PushFeed::work() {
  while (true) {
    std::pair<std::string, bool> message;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return ended_ || message_; });
      if (!message_) break;  // what came before the end is still written
      message = *std::exchange(message_, std::nullopt);
    }
    try {
      if (!write_to_pipe(pipe_.get(), bytes_of(message.first, message.second), stop_)) {
        // Whoever read it knows why it ended, and says so by `close`.
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, std::chrono::seconds(5), [&] { return ended_; });
        lock.unlock();
        close(1011, "nobody reads this stream any more");
        break;
      }
    } catch (const std::exception& error) {
      close(1008, error.what());
      break;
    }
    const std::lock_guard lock(mutex_);
    if (socket_ != nullptr) socket_->read();
  }
  pipe_.reset();  // the source has ended
}

}  // namespace kinora::server
