// What the connections of one HTTP server have in common, and how it reaches each of them. Used by
// http_server.cc, connection.cc and web_socket.cc.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/strand.hpp>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "server/http/http.h"

namespace kinora::server {

// One that is open. It is on the server's list for as long as it lives.
class OpenConnection : public std::enable_shared_from_this<OpenConnection> {
 public:
  explicit OpenConnection(std::shared_ptr<HttpServer::State> server);
  virtual ~OpenConnection();
  OpenConnection(const OpenConnection&) = delete;
  OpenConnection& operator=(const OpenConnection&) = delete;

  // On the connection's own strand; any thread.
  virtual void post(std::function<void()> work) = 0;
  // Posted: it ends as soon as what is under way is done, or at once.
  virtual void end_soon() = 0;
  virtual void cancel() = 0;

  // Opened after the server was told to end: nothing is under way on it.
  bool late() const { return late_; }

 protected:
  const HttpOptions& options() const;
  bool draining() const;
  bool ended() const;  // nobody is answered any more

  std::shared_ptr<HttpServer::State> server_;

 private:
  bool late_ = false;
};

class HttpServer::State {
 public:
  State(const HttpOptions& wanted, Callbacks given)
      : options(wanted),
        callbacks(std::move(given)),
        io(std::make_unique<boost::asio::io_context>()),
        stay(boost::asio::make_work_guard(*io)),
        acceptor(std::make_unique<boost::asio::ip::tcp::acceptor>(boost::asio::make_strand(*io))) {}

  HttpOptions options;
  Callbacks callbacks;
  // What waits in it holds connections, and these hold this: the server's end takes it away.
  std::unique_ptr<boost::asio::io_context> io;
  // The threads stay while nothing waits: a reply that is being made elsewhere needs them later.
  std::optional<boost::asio::executor_work_guard<boost::asio::io_context::executor_type>> stay;
  std::unique_ptr<boost::asio::ip::tcp::acceptor> acceptor;
  uint16_t port = 0;
  std::vector<std::thread> threads;

  std::mutex mutex;
  std::condition_variable changed;
  std::set<OpenConnection*> open;
  bool listening = false;
  bool draining = false;
  bool ended = false;

  void accept(const std::shared_ptr<State>& self);
};

inline std::chrono::nanoseconds in_seconds(double count) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(count));
}

}  // namespace kinora::server
