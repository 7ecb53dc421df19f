// Listens, keeps the list of connections and ends them.
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>

#include "base/error.h"
#include "server/http/connection.h"

namespace kinora::server {

namespace net = boost::asio;
using tcp = net::ip::tcp;
using Failure = boost::system::error_code;

OpenConnection::OpenConnection(std::shared_ptr<HttpServer::State> server)
    : server_(std::move(server)) {
  const std::lock_guard lock(server_->mutex);
  late_ = server_->draining;
  server_->open.insert(this);
}

OpenConnection::~OpenConnection() {
  // Under the lock: who waits for the last connection may destroy the condition right after.
  const std::lock_guard lock(server_->mutex);
  server_->open.erase(this);
  server_->changed.notify_all();
}

const HttpOptions& OpenConnection::options() const { return server_->options; }

bool OpenConnection::draining() const {
  const std::lock_guard lock(server_->mutex);
  return server_->draining;
}

bool OpenConnection::ended() const {
  const std::lock_guard lock(server_->mutex);
  return server_->ended;
}

void HttpServer::State::accept(const std::shared_ptr<State>& self) {
  acceptor->async_accept(net::make_strand(*io), [self](Failure error, tcp::socket socket) {
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
        connection->post([raw = connection.get()] { raw->read_header(); });
      }
    }
    self->accept(self);
  });
}

HttpServer::HttpServer(const HttpOptions& options, Callbacks callbacks)
    : state_(std::make_shared<State>(options, std::move(callbacks))) {
  Failure error;
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
}

void HttpServer::start() {
  state_->listening = true;
  state_->accept(state_);
  for (int i = 0; i < state_->options.threads; ++i) {
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
  const auto tell = [&](void (OpenConnection::*what)()) {
    std::vector<std::shared_ptr<OpenConnection>> all;
    {
      const std::lock_guard lock(state_->mutex);
      state_->draining = true;
      for (OpenConnection* connection : state_->open) {
        // One that is just being destroyed has nobody left to tell.
        if (auto alive = connection->weak_from_this().lock()) all.push_back(std::move(alive));
      }
    }
    for (const auto& connection : all) {
      connection->post([raw = connection.get(), what] { (raw->*what)(); });
    }
  };
  const auto wait = [&](double length, const auto& done) {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait_for(lock, in_seconds(length), done);
  };
  tell(&OpenConnection::end_soon);
  // Those who come meanwhile are told that it ends, and nobody waits for them.
  wait(patience, [&] {
    return std::all_of(state_->open.begin(), state_->open.end(),
                       [](const OpenConnection* connection) { return connection->late(); });
  });
  net::post(state_->acceptor->get_executor(), [state = state_] {
    Failure ignored;
    state->acceptor->close(ignored);
    const std::lock_guard lock(state->mutex);
    state->listening = false;
    state->changed.notify_all();
  });
  {
    const std::lock_guard lock(state_->mutex);
    state_->ended = true;
  }
  tell(&OpenConnection::cancel);
  wait(5, [&] { return state_->open.empty() && !state_->listening; });
}

}  // namespace kinora::server
