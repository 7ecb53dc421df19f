// The only file that knows Boost.Beast. A connection reads one request after the other on a strand
// of its own; replies come from any thread and are queued there. While a request is being answered
// the socket is watched, so that work for someone who has gone is cancelled.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <limits>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "server/http/descriptor.h"
#include "server/http/http.h"
#include "server/http/reply.h"

namespace kinora::server {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = net::ip::tcp;
using Clock = std::chrono::steady_clock;

constexpr size_t piece_bytes = 64 << 10;

std::chrono::nanoseconds seconds(double count) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(count));
}

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

class Connection;

class HttpServer::State {
 public:
  State(const HttpOptions& wanted, Callbacks given)
      : options(wanted),
        callbacks(std::move(given)),
        io(std::make_unique<net::io_context>()),
        stay(net::make_work_guard(*io)),
        acceptor(std::make_unique<tcp::acceptor>(net::make_strand(*io))) {}

  HttpOptions options;
  Callbacks callbacks;
  // What waits in it holds connections, and these hold this: the server's end takes it away.
  std::unique_ptr<net::io_context> io;
  // The threads stay while nothing waits: a reply that is being made elsewhere needs them later.
  std::optional<net::executor_work_guard<net::io_context::executor_type>> stay;
  std::unique_ptr<tcp::acceptor> acceptor;
  uint16_t port = 0;
  std::vector<std::thread> threads;

  std::mutex mutex;
  std::condition_variable changed;
  std::set<Connection*> open;
  bool draining = false;

  void accept(const std::shared_ptr<State>& self);
};

class Connection final : public ReplyTarget, public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<HttpServer::State> server, tcp::socket socket)
      : server_(std::move(server)), stream_(std::move(socket)) {
    beast::error_code ignored;
    const auto peer = stream_.socket().remote_endpoint(ignored);
    client_ = peer.address().to_string(ignored);
    stream_.socket().set_option(tcp::no_delay(true), ignored);
    const std::lock_guard lock(server_->mutex);
    server_->open.insert(this);
  }
  ~Connection() {
    // Under the lock: who waits for the last connection may destroy the condition right after.
    const std::lock_guard lock(server_->mutex);
    server_->open.erase(this);
    server_->changed.notify_all();
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  auto executor() { return stream_.get_executor(); }
  const HttpOptions& options() const { return server_->options; }

  // On the strand, as everything below.
  void read_header() {
    if (draining()) return close();
    parser_.emplace();
    parser_->header_limit(static_cast<std::uint32_t>(options().max_header_bytes));
    // The rule limits it, once it is known.
    parser_->body_limit(std::numeric_limits<std::uint64_t>::max());
    parser_->eager(false);
    idle_ = true;
    stream_.expires_after(seconds(options().header_seconds));
    http::async_read_header(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](beast::error_code error, size_t) { self->on_header(error); });
  }

  // Ends a connection that waits for a request; one that works on one goes on.
  void close_if_idle() {
    if (idle_) close();
  }
  void cancel() override {
    gone_.cancel();
    close();
  }

  void post(std::function<void()> work) override {
    net::post(stream_.get_executor(),
              [self = shared_from_this(), work = std::move(work)] { work(); });
  }
  void queue(std::string bytes, bool last) override {
    if (closed_) return;
    // Counted without the newest: one piece may be as large as it is.
    if (waiting_bytes_ > options().max_waiting_bytes) return cancel();  // it does not read
    waiting_bytes_ += static_cast<int64_t>(bytes.size());
    waiting_.push_back(std::move(bytes));
    last_queued_ = last_queued_ || last;
    write_next();
  }
  void queue_file(Descriptor file, int64_t offset, int64_t count) override {
    if (closed_) return;
    file_ = std::move(file);
    file_offset_ = offset;
    file_left_ = count;
    last_queued_ = true;
    write_next();
  }
  std::string head_of(int status, const Headers& headers,
                      std::optional<int64_t> length) const override {
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
  bool head_only() const override { return head_only_; }
  bool chunks() const override { return chunks_; }
  uint64_t number() const override { return requests_; }
  const CancelToken& gone() const override { return gone_; }

 private:
  bool keeps_alive() const { return keep_alive_ && !draining(); }
  bool draining() const {
    const std::lock_guard lock(server_->mutex);
    return server_->draining;
  }

  void close() {
    if (std::exchange(closed_, true)) return;
    gone_.cancel();
    beast::error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
    stream_.close();
  }

  // Answers what the server itself refuses, and ends the connection: where the next request begins
  // is not known.
  void refuse(const HttpRefusal& refusal) {
    keep_alive_ = false;
    begin_reply();
    Headers headers = refusal.headers;
    headers.emplace_back("X-Request-Id", request_.id);
    queue(head_of(refusal.status, headers, static_cast<int64_t>(refusal.body.size())) +
              (head_only_ ? "" : refusal.body),
          true);
  }
  void refuse(int status, const std::string& message) {
    refuse(server_->callbacks.refuse(status, message));
  }

  void on_header(beast::error_code error) {
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
    if (rule_.to_file && !open_body_file()) {
      return refuse(507, "no file can be made for the body");
    }
    body_began_ = Clock::now();
    if (small_letters(request_.header("expect")) == "100-continue") {
      static const std::string go_on = "HTTP/1.1 100 Continue\r\n\r\n";
      net::async_write(stream_, net::buffer(go_on),
                       [self = shared_from_this()](beast::error_code failed, size_t) {
                         if (failed) return self->close();
                         self->read_body();
                       });
      return;
    }
    read_body();
  }

  std::string too_large() const {
    return fmt::format("the body is larger than the {} bytes that are taken here", rule_.limit);
  }

  bool open_body_file() {
    request_.body_file = join_path(options().spool_directory, "kinora-body-XXXXXX");
    body_ = Descriptor(::mkostemp(request_.body_file.data(), O_CLOEXEC));
    if (body_.get() < 0) request_.body_file.clear();
    return body_.get() >= 0;
  }

  void drop_body_file() {
    body_.reset();
    if (!request_.body_file.empty()) ::unlink(request_.body_file.c_str());
    request_.body_file.clear();
  }

  void read_body() {
    if (parser_->is_done()) return handle();
    piece_.resize(piece_bytes);
    parser_->get().body().data = piece_.data();
    parser_->get().body().size = piece_.size();
    stream_.expires_after(seconds(options().body_seconds));
    http::async_read_some(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](beast::error_code error, size_t) { self->on_body(error); });
  }

  void on_body(beast::error_code error) {
    const size_t got = piece_bytes - parser_->get().body().size;
    if (error == http::error::need_buffer) error = {};
    if (error && error != http::error::end_of_stream) {
      drop_body_file();
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
    request_.body_bytes += static_cast<int64_t>(got);
    if (request_.body_bytes > rule_.limit) {
      drop_body_file();
      return refuse(413, too_large());
    }
    const double spent = std::chrono::duration<double>(Clock::now() - body_began_).count();
    if (spent > options().body_seconds &&
        static_cast<double>(request_.body_bytes) <
            (spent - options().body_seconds) * static_cast<double>(options().min_body_rate)) {
      drop_body_file();
      return refuse(408, "the body comes too slowly");
    }
    if (!rule_.to_file) {
      request_.body.append(piece_.data(), got);
    } else if (!write_body(got)) {
      drop_body_file();
      return refuse(507, "the body cannot be written to disk");
    }
    read_body();
  }

  bool write_body(size_t count) {
    const char* bytes = piece_.data();
    while (count > 0) {
      const ssize_t done = ::write(body_.get(), bytes, count);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) return false;
      bytes += done;
      count -= static_cast<size_t>(done);
    }
    return true;
  }

  void begin_reply() {
    waiting_.clear();
    waiting_bytes_ = 0;
    last_queued_ = false;
    file_.reset();
    file_left_ = 0;
    gone_ = CancelToken();
  }

  void handle();

  // Tells an end of the other side from a next request that is already there.
  void watch() {
    stream_.socket().async_wait(
        tcp::socket::wait_read,
        [self = shared_from_this(), number = requests_](beast::error_code error) {
          if (error || self->closed_ || self->requests_ != number || self->idle_) return;
          char byte = 0;
          const ssize_t got =
              ::recv(self->stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
          if (got > 0) return;
          if (got < 0 && (errno == EAGAIN || errno == EINTR)) return self->watch();
          self->cancel();
        });
  }

  void write_next() {
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
    stream_.expires_after(seconds(options().write_seconds));
    net::async_write(stream_, net::buffer(waiting_.front()),
                     [self = shared_from_this()](beast::error_code error, size_t) {
                       self->writing_ = false;
                       if (self->closed_) return;
                       self->stream_.expires_never();
                       if (error) return self->cancel();
                       self->waiting_bytes_ -= static_cast<int64_t>(self->waiting_.front().size());
                       self->waiting_.pop_front();
                       self->write_next();
                     });
  }

  void finish() {
    last_queued_ = false;
    ++requests_;
    if (!keeps_alive()) return linger();
    read_header();
  }

  // Reads on for a moment before closing: closing with unread bytes would take the reply back.
  void linger() {
    beast::error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    stream_.expires_after(std::chrono::seconds(2));
    lingered_ = 0;
    drain();
  }
  void drain() {
    piece_.resize(piece_bytes);
    stream_.async_read_some(net::buffer(piece_),
                            [self = shared_from_this()](beast::error_code error, size_t got) {
                              self->lingered_ += got;
                              if (error || self->lingered_ > (8u << 20)) return self->close();
                              self->drain();
                            });
  }

  std::shared_ptr<HttpServer::State> server_;
  beast::tcp_stream stream_;
  std::string client_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::buffer_body>> parser_;
  HttpRequest request_;
  BodyRule rule_;
  Descriptor body_;
  std::string piece_;
  Clock::time_point body_began_;
  bool idle_ = false;
  bool keep_alive_ = false;
  bool head_only_ = false;
  bool chunks_ = true;
  bool closed_ = false;
  uint64_t requests_ = 0;
  size_t lingered_ = 0;

  CancelToken gone_;
  std::deque<std::string> waiting_;
  int64_t waiting_bytes_ = 0;
  bool writing_ = false;
  bool last_queued_ = false;
  Descriptor file_;
  int64_t file_offset_ = 0;
  int64_t file_left_ = 0;
};

void Connection::handle() {
  body_.reset();
  begin_reply();
  if (!chunks_) keep_alive_ = false;  // HTTP/1.0
  stream_.expires_never();
  watch();
  const auto reply = make_reply(shared_from_this(), request_.id);
  try {
    server_->callbacks.handle(std::move(request_), reply);
  } catch (const std::exception& error) {
    const HttpRefusal refusal = server_->callbacks.refuse(500, error.what());
    reply->send(refusal.status, refusal.headers, refusal.body);
  }
}

void HttpServer::State::accept(const std::shared_ptr<State>& self) {
  acceptor->async_accept(
      net::make_strand(*io), [self](beast::error_code error, tcp::socket socket) {
        if (error == net::error::operation_aborted || !self->acceptor->is_open()) return;
        if (!error) {
          bool full = false;
          {
            const std::lock_guard lock(self->mutex);
            full = std::ssize(self->open) >= self->options.max_connections;
          }
          // Over the limit nobody is let in; the oldest leave by their time limits.
          if (!full) {
            auto connection = std::make_shared<Connection>(self, std::move(socket));
            net::dispatch(connection->executor(), [connection] { connection->read_header(); });
          }
        }
        self->accept(self);
      });
}

HttpServer::HttpServer(const HttpOptions& options, Callbacks callbacks)
    : state_(std::make_shared<State>(options, std::move(callbacks))) {
  beast::error_code error;
  const auto address = net::ip::make_address(options.address, error);
  if (error) {
    throw Error(ErrorKind::usage,
                fmt::format("'{}' is not an address of this machine; write 127.0.0.1, 0.0.0.0 or "
                            "::",
                            options.address));
  }
  const tcp::endpoint endpoint(address, options.port);
  tcp::acceptor& acceptor = *state_->acceptor;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(net::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(net::socket_base::max_listen_connections, error);
  if (!error) state_->port = acceptor.local_endpoint(error).port();
  if (error) {
    throw Error(ErrorKind::resource,
                fmt::format("cannot listen on {} port {}: {}; choose another port", options.address,
                            options.port, error.message()));
  }
  state_->accept(state_);
  for (int i = 0; i < options.threads; ++i) {
    state_->threads.emplace_back([state = state_] { state->io->run(); });
  }
}

HttpServer::~HttpServer() {
  drain(0);
  state_->stay.reset();
  state_->io->stop();
  for (std::thread& thread : state_->threads) thread.join();
  state_->acceptor.reset();
  state_->io.reset();
}

uint16_t HttpServer::port() const { return state_->port; }

int64_t HttpServer::connections() const {
  const std::lock_guard lock(state_->mutex);
  return std::ssize(state_->open);
}

void HttpServer::drain(double patience) {
  net::post(state_->acceptor->get_executor(), [state = state_] {
    beast::error_code ignored;
    state->acceptor->close(ignored);
  });
  const auto tell = [&](void (Connection::*what)()) {
    std::vector<std::shared_ptr<Connection>> all;
    {
      const std::lock_guard lock(state_->mutex);
      state_->draining = true;
      for (Connection* connection : state_->open) {
        // One that is just being destroyed has nobody left to tell.
        if (auto alive = connection->weak_from_this().lock()) all.push_back(std::move(alive));
      }
    }
    for (const auto& connection : all) {
      net::post(connection->executor(), [connection, what] { ((*connection).*what)(); });
    }
  };
  const auto wait = [&](double length) {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait_for(lock, seconds(length), [&] { return state_->open.empty(); });
  };
  tell(&Connection::close_if_idle);
  wait(patience);
  tell(&Connection::cancel);
  wait(5);
}

}  // namespace kinora::server
