#include "server/http/web_socket.h"

#include <boost/asio/post.hpp>
#include <boost/beast/core/buffers_to_string.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/websocket/stream.hpp>
#include <deque>
#include <utility>

namespace kinora::server {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace websocket = boost::beast::websocket;
using Request = beast::http::request_parser<beast::http::buffer_body>;

class SocketConnection final : public WebSocket, public OpenConnection {
 public:
  SocketConnection(std::shared_ptr<HttpServer::State> server, net::ip::tcp::socket socket,
                   int64_t max_message_bytes, WebSocketEvents events)
      : OpenConnection(std::move(server)), stream_(std::move(socket)), events_(std::move(events)) {
    stream_.read_message_max(static_cast<size_t>(max_message_bytes));
    websocket::stream_base::timeout limits{};
    limits.handshake_timeout = in_seconds(options().header_seconds);
    limits.idle_timeout = in_seconds(options().socket_seconds);
    limits.keep_alive_pings = true;
    stream_.set_option(limits);
    // What was said last is not waited for until the other side has let go of the connection, too.
    stream_.control_callback([this](websocket::frame_type kind, beast::string_view) {
      if (kind == websocket::frame_type::close) end();
    });
  }

  void accept(const Request& request) {
    stream_.async_accept(request.get(), [self = self()](beast::error_code error) {
      if (error || self->ended_) return;
      self->open_ = true;
      self->events_.opened(self);
      if (self->closing_) self->write_next();
    });
  }

  void post(std::function<void()> work) override {
    net::post(stream_.get_executor(), [self = self(), work = std::move(work)] { work(); });
  }
  void end_soon() override { close_now(1001, "the server ends"); }
  void cancel() override {
    beast::get_lowest_layer(stream_).close();
    end();
  }

  void send(std::string text) override {
    post([this, text = std::move(text)]() mutable {
      waiting_bytes_ += static_cast<int64_t>(text.size());
      if (waiting_bytes_ > options().max_waiting_bytes) return cancel();  // it does not read
      waiting_.push_back(std::move(text));
      write_next();
    });
  }
  void read() override {
    post([this] {
      if (ended_ || closing_) return;
      stream_.async_read(buffer_, [self = self()](beast::error_code error, size_t) {
        if (error || self->ended_) return self->end();
        std::string message = beast::buffers_to_string(self->buffer_.data());
        self->buffer_.consume(self->buffer_.size());
        self->events_.message(std::move(message), self->stream_.got_text());
      });
    });
  }
  void close(int code, std::string reason) override {
    post([this, code, reason = std::move(reason)] { close_now(code, reason); });
  }

 private:
  std::shared_ptr<SocketConnection> self() {
    return std::static_pointer_cast<SocketConnection>(shared_from_this());
  }

  void write_next() {
    if (writing_ || ended_) return;
    if (waiting_.empty()) {
      if (closing_) start_close();
      return;
    }
    writing_ = true;
    stream_.text(true);
    stream_.async_write(
        net::buffer(waiting_.front()), [self = self()](beast::error_code error, size_t) {
          self->writing_ = false;
          if (error) return self->end();
          self->waiting_bytes_ -= static_cast<int64_t>(self->waiting_.front().size());
          self->waiting_.pop_front();
          self->write_next();
        });
  }

  // What was said before goes out first.
  void close_now(int code, const std::string& reason) {
    if (std::exchange(closing_, true)) return;
    why_.code = static_cast<websocket::close_code>(code);
    why_.reason = reason.substr(0, 120);
    write_next();
  }

  void start_close() {
    if (!open_ || std::exchange(said_, true)) return;
    stream_.async_close(why_, [self = self()](beast::error_code) { self->end(); });
  }

  void end() {
    if (std::exchange(ended_, true)) return;
    const WebSocketEvents events = std::exchange(events_, {});  // they may hold this
    if (open_) events.closed();
  }

  websocket::stream<beast::tcp_stream> stream_;
  WebSocketEvents events_;
  beast::flat_buffer buffer_;
  std::deque<std::string> waiting_;
  int64_t waiting_bytes_ = 0;
  websocket::close_reason why_;
  bool open_ = false;
  bool writing_ = false;
  bool closing_ = false;  // wanted
  bool said_ = false;     // under way
  bool ended_ = false;
};

}  // namespace

void open_web_socket(const std::shared_ptr<HttpServer::State>& server, net::ip::tcp::socket socket,
                     const Request& request, int64_t max_message_bytes, WebSocketEvents events) {
  std::make_shared<SocketConnection>(server, std::move(socket), max_message_bytes,
                                     std::move(events))
      ->accept(request);
}

}  // namespace kinora::server
