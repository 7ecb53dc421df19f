#include "server/http/connection.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/websocket/rfc6455.hpp>
#include <cerrno>
#include <limits>
#include <random>
#include <utility>

#include "server/http/web_socket.h"

namespace kinora::server {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = net::ip::tcp;

constexpr size_t piece_bytes = 64 << 10;

std::string small_letters(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::string new_request_id() {
  static std::atomic<uint64_t> count = 0;
  static const uint64_t start = std::random_device()();
  return fmt::format("req-{:08x}{:08x}", start & 0xffffffffu, ++count);
}

}  // namespace

Connection::Connection(std::shared_ptr<HttpServer::State> server, tcp::socket socket)
    : OpenConnection(std::move(server)), stream_(std::move(socket)) {
  beast::error_code ignored;
  const auto peer = stream_.socket().remote_endpoint(ignored);
  client_ = peer.address().to_string(ignored);
  stream_.socket().set_option(tcp::no_delay(true), ignored);
}

std::shared_ptr<Connection> Connection::self() {
  return std::static_pointer_cast<Connection>(shared_from_this());
}

void Connection::post(std::function<void()> work) {
  net::post(stream_.get_executor(), [self = self(), work = std::move(work)] { work(); });
}

// One that works on a request goes on.
void Connection::end_soon() {
  if (idle_) close();
}

void Connection::cancel() {
  gone_.cancel();
  close();
}

void Connection::close() {
  if (std::exchange(closed_, true)) return;
  gone_.cancel();
  beast::error_code ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
  stream_.close();
}

void Connection::read_header() {
  if (ended()) return close();
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(options().max_header_bytes));
  // The rule limits it, once it is known.
  parser_->body_limit(std::numeric_limits<std::uint64_t>::max());
  parser_->eager(false);
  idle_ = true;
  stream_.expires_after(in_seconds(options().header_seconds));
  http::async_read_header(
      stream_, buffer_, *parser_,
      [self = self()](beast::error_code error, size_t) { self->on_header(error); });
}

// Answers what the server itself refuses, and ends the connection: where the next request begins
// is not known.
void Connection::refuse(const HttpRefusal& refusal) {
  keep_alive_ = false;
  begin_reply();
  Headers headers = refusal.headers;
  headers.emplace_back("X-Request-Id", request_.id);
  queue(head_of(refusal.status, headers, static_cast<int64_t>(refusal.body.size())) +
            (head_only_ ? "" : refusal.body),
        true);
}

void Connection::refuse(int status, const std::string& message) {
  refuse(server_->callbacks.refuse(status, message));
}

std::string Connection::too_large() const {
  return fmt::format("the body is larger than the {} bytes that are taken here", rule_.limit);
}

void Connection::on_header(Failure error) {
  idle_ = false;
  request_ = {};
  request_.id = new_request_id();
  request_.client = client_;
  keep_alive_ = head_only_ = false;
  chunks_ = true;
  if (error == http::error::header_limit) {
    return refuse(431, "the request's header is too long");
  }
  if (error == beast::error::timeout && buffer_.size() > 0) {
    closed_ = true;  // the stream has closed itself
    return;
  }
  if (error && error.category() == http::make_error_code(http::error::bad_version).category() &&
      error != http::error::end_of_stream && error != http::error::partial_message) {
    return refuse(400, "this is not HTTP: " + error.message());
  }
  if (error) return close();
  const auto& message = parser_->get();
  request_.method = std::string(message.method_string());
  for (const auto& field : message) {
    request_.headers.emplace_back(
        small_letters({field.name_string().data(), field.name_string().size()}),
        std::string(field.value()));
  }
  keep_alive_ = message.keep_alive();
  head_only_ = message.method() == http::verb::head;
  chunks_ = message.version() >= 11;
  if (!parse_target({message.target().data(), message.target().size()}, request_)) {
    return refuse(400, "the request's target is not a path");
  }
  try {
    rule_ = server_->callbacks.rule(request_);
  } catch (const HttpRefusal& refusal) {
    return refuse(refusal);
  }
  if (parser_->content_length() &&
      *parser_->content_length() > static_cast<uint64_t>(rule_.limit)) {
    return refuse(413, too_large());
  }
  if (!body_.begin(rule_, options())) return refuse(507, "no file can be made for the body");
  if (small_letters(request_.header("expect")) == "100-continue") {
    static const std::string go_on = "HTTP/1.1 100 Continue\r\n\r\n";
    net::async_write(stream_, net::buffer(go_on),
                     [self = self()](beast::error_code failed, size_t) {
                       if (failed) return self->close();
                       self->read_body();
                     });
    return;
  }
  read_body();
}

void Connection::read_body() {
  if (parser_->is_done()) return handle();
  piece_.resize(piece_bytes);
  parser_->get().body().data = piece_.data();
  parser_->get().body().size = piece_.size();
  stream_.expires_after(in_seconds(options().body_seconds));
  http::async_read_some(stream_, buffer_, *parser_,
                        [self = self()](beast::error_code error, size_t) { self->on_body(error); });
}

void Connection::on_body(Failure error) {
  const size_t got = piece_bytes - parser_->get().body().size;
  if (error == http::error::need_buffer) error = {};
  if (error && error != http::error::end_of_stream) {
    body_.drop();
    if (error == beast::error::timeout) {
      closed_ = true;
      return;
    }
    if (error == http::error::partial_message ||
        error.category() == net::error::get_misc_category() ||
        error.category() == boost::system::system_category()) {
      return close();
    }
    return refuse(400, "the body cannot be read: " + error.message());
  }
  const IncomingBody::Verdict verdict = body_.take(piece_.data(), got);
  if (verdict == IncomingBody::Verdict::taken) return read_body();
  body_.drop();
  if (verdict == IncomingBody::Verdict::too_large) return refuse(413, too_large());
  if (verdict == IncomingBody::Verdict::too_slow) return refuse(408, "the body comes too slowly");
  refuse(507, "the body cannot be written to disk");
}

void Connection::begin_reply() {
  waiting_.clear();
  waiting_bytes_ = 0;
  last_queued_ = false;
  file_.reset();
  file_left_ = 0;
  gone_ = CancelToken();
}

void Connection::handle() {
  body_.give(request_);
  begin_reply();
  if (!chunks_) keep_alive_ = false;  // HTTP/1.0
  stream_.expires_never();
  watch();
  const auto reply = make_reply(self(), request_.id);
  try {
    server_->callbacks.handle(std::move(request_), reply);
  } catch (const std::exception& error) {
    const HttpRefusal refusal = server_->callbacks.refuse(500, error.what());
    reply->send(refusal.status, refusal.headers, refusal.body);
  }
}

// Tells an end of the other side from a next request that is already there.
void Connection::watch() {
  stream_.socket().async_wait(
      tcp::socket::wait_read, [self = self(), number = requests_](beast::error_code error) {
        if (error || self->closed_ || self->requests_ != number || self->idle_) return;
        char byte = 0;
        const ssize_t got =
            ::recv(self->stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (got > 0) return;
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return self->watch();
        self->cancel();
      });
}

std::string Connection::head_of(int status, const Headers& headers,
                                std::optional<int64_t> length) const {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  std::string head =
      fmt::format("HTTP/1.1 {} {}\r\n", status, std::string(reason.data(), reason.size()));
  for (const auto& [name, value] : headers) head += name + ": " + value + "\r\n";
  if (length) {
    head += fmt::format("Content-Length: {}\r\n", *length);
  } else if (chunks_) {
    head += "Transfer-Encoding: chunked\r\n";
  }
  head += keeps_alive() && (length || chunks_) ? "" : "Connection: close\r\n";
  return head + "\r\n";
}

void Connection::queue(std::string bytes, bool last) {
  if (closed_) return;
  // Counted without the newest: one piece may be as large as it is.
  if (waiting_bytes_ > options().max_waiting_bytes) return cancel();  // it does not read
  waiting_bytes_ += static_cast<int64_t>(bytes.size());
  waiting_.push_back(std::move(bytes));
  last_queued_ = last_queued_ || last;
  write_next();
}

void Connection::queue_file(Descriptor file, int64_t offset, int64_t count) {
  if (closed_) return;
  file_ = std::move(file);
  file_offset_ = offset;
  file_left_ = count;
  last_queued_ = true;
  write_next();
}

void Connection::become_socket(int64_t max_message_bytes, WebSocketEvents events) {
  if (closed_) return;
  // Nobody sends messages before the handshake is answered.
  if (!beast::websocket::is_upgrade(parser_->get()) || buffer_.size() > 0) {
    events = {};  // what they hold is free again before the client hears of it
    HttpRefusal refusal = server_->callbacks.refuse(426, "this is for WebSockets only");
    refusal.headers.emplace_back("Upgrade", "websocket");
    return refuse(refusal);
  }
  closed_ = true;
  beast::error_code ignored;
  stream_.socket().cancel(ignored);
  open_web_socket(server_, stream_.release_socket(), *parser_, max_message_bytes,
                  std::move(events));
}

void Connection::write_next() {
  if (writing_ || closed_) return;
  if (waiting_.empty() && file_left_ > 0) {
    std::string bytes(static_cast<size_t>(std::min<int64_t>(file_left_, 4 * piece_bytes)), 0);
    const ssize_t got = ::pread(file_.get(), bytes.data(), bytes.size(), file_offset_);
    if (got <= 0) return close();  // shorter than it was: the promised length cannot be kept
    bytes.resize(static_cast<size_t>(got));
    file_offset_ += got;
    file_left_ -= got;
    waiting_bytes_ += got;
    waiting_.push_back(std::move(bytes));
  }
  if (waiting_.empty()) {
    if (last_queued_) finish();
    return;
  }
  writing_ = true;
  stream_.expires_after(in_seconds(options().write_seconds));
  net::async_write(stream_, net::buffer(waiting_.front()),
                   [self = self()](beast::error_code error, size_t) {
                     self->writing_ = false;
                     if (self->closed_) return;
                     self->stream_.expires_never();
                     if (error) return self->cancel();
                     self->waiting_bytes_ -= static_cast<int64_t>(self->waiting_.front().size());
                     self->waiting_.pop_front();
                     self->write_next();
                   });
}

void Connection::finish() {
  last_queued_ = false;
  ++requests_;
  if (!keeps_alive()) return linger();
  read_header();
}

// Reads on for a moment before closing: closing with unread bytes would take the reply back.
void Connection::linger() {
  beast::error_code ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  stream_.expires_after(std::chrono::seconds(2));
  lingered_ = 0;
  drain();
}

void Connection::drain() {
  piece_.resize(piece_bytes);
  stream_.async_read_some(net::buffer(piece_),
                          [self = self()](beast::error_code error, size_t got) {
                            self->lingered_ += got;
                            if (error || self->lingered_ > (8u << 20)) return self->close();
                            self->drain();
                          });
}

}  // namespace kinora::server
