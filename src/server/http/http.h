// HTTP for the server, without naming the library that speaks it: requests come in whole, replies
// go out whole, as a file or piece by piece, or a connection becomes a WebSocket. Only this folder
// knows Boost.Beast, and it knows nothing of models or videos.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/cancel.h"

namespace kinora::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string id;      // "req-…", in logs and in the header X-Request-Id
  std::string client;  // address without the port
  std::string method;
  std::string path;  // percent-decoded, without the query
  std::vector<std::pair<std::string, std::string>> query;
  Headers headers;  // names in small letters
  std::string body;
  std::string body_file;  // where the rule says so: a file that the handler now owns
  int64_t body_bytes = 0;

  // Empty where there is none.
  std::string_view header(std::string_view name) const;
  std::optional<std::string> parameter(std::string_view name) const;
};

// A connection that both sides send messages on. Any thread. Let go of it when it is closed.
class WebSocket {
 public:
  virtual ~WebSocket() = default;

  virtual void send(std::string text) = 0;
  // Asks for one more message: a sender who is faster than whoever takes them waits.
  virtual void read() = 0;
  // By a code of RFC 6455, with a reason of at most 120 bytes.
  virtual void close(int code, std::string reason) = 0;
};

// Called on the server's own threads, so all must be quick.
struct WebSocketEvents {
  std::function<void(std::shared_ptr<WebSocket> socket)> opened;
  std::function<void(std::string message, bool text)> message;
  std::function<void()> closed;  // once, whoever ended it; not where it never opened
};

// What the reply to a request goes out by. Any thread; exactly one of `send`, `send_file`,
// `begin … end` and `upgrade` is used, once. Dropping it unused answers 500.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  virtual void send(int status, Headers headers, std::string body) = 0;
  // `count` bytes of a file from `offset` on.
  virtual void send_file(int status, Headers headers, const std::string& path, int64_t offset,
                         int64_t count) = 0;
  // A body whose length is not known yet.
  virtual void begin(int status, Headers headers) = 0;
  virtual void write(std::string piece) = 0;
  virtual void end() = 0;
  // Messages of more bytes end the WebSocket with code 1009. What is no request for one is
  // answered 426.
  virtual void upgrade(int64_t max_message_bytes, WebSocketEvents events) = 0;

  // Raised when the other side goes away or reads too slowly, or the server ends.
  virtual const CancelToken& gone() const = 0;
  // Of the reply, once it has begun; else 0.
  virtual int status() const = 0;
};

// How much of a body is taken, and where to.
struct BodyRule {
  int64_t limit = 1 << 20;
  bool to_file = false;  // in HttpOptions::spool_directory
};

// Thrown by the rule to refuse a request before its body is read.
struct HttpRefusal {
  int status = 400;
  Headers headers;
  std::string body;
};

struct HttpOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  std::string spool_directory = "/tmp";
  int threads = 2;
  int64_t max_connections = 1024;
  int64_t max_header_bytes = 16 << 10;
  int64_t max_waiting_bytes = 8 << 20;  // of a reply that the other side does not read
  double header_seconds = 20;        // until a request's header has come; also between two requests
  double body_seconds = 20;          // without a byte of a body; it must come at min_body_rate
  double write_seconds = 30;         // without a byte of a reply being taken
  int64_t min_body_rate = 16 << 10;  // bytes per second, after body_seconds
  double socket_seconds = 60;        // without a sign of life on a WebSocket
};

class HttpServer {
 public:
  // Called on the server's own threads, so both must be quick. The rule sees the request without
  // its body. `refuse` words what the server itself refuses (a header too long, a body too large).
  struct Callbacks {
    std::function<BodyRule(const HttpRequest& head)> rule;
    std::function<void(HttpRequest request, std::shared_ptr<HttpReply> reply)> handle;
    std::function<HttpRefusal(int status, const std::string& message)> refuse;
  };

  // Listens at once, so that nobody is turned away. Throws a resource or usage error when it
  // cannot.
  HttpServer(const HttpOptions& options, Callbacks callbacks);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Begins to answer, once all that the callbacks reach is in place.
  void start();
  uint16_t port() const;
  int64_t connections() const;
  // Waits this long for requests under way, then cancels what is left and listens no more. Whoever
  // comes meanwhile is still handed to the callbacks, which are to say that it ends.
  void drain(double seconds);

  class State;

 private:
  std::shared_ptr<State> state_;
};

// "/a%20b?x=1" → path and query. False for what is no target (bad escapes, no slash in front).
bool parse_target(std::string_view target, HttpRequest& request);

}  // namespace kinora::server
