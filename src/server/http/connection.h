// One connection. It reads one request after the other on a strand of its own; replies come from
// any thread and are queued there. While a request is being answered the socket is watched, so that
// work for someone who has gone is cancelled. Used by http_server.cc.
#pragma once

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/http/descriptor.h"
#include "server/http/incoming_body.h"
#include "server/http/reply.h"
#include "server/http/server_state.h"

namespace kinora::server {

class Connection final : public ReplyTarget, public OpenConnection {
 public:
  Connection(std::shared_ptr<HttpServer::State> server, boost::asio::ip::tcp::socket socket);

  // On the strand, as everything but `post`.
  void read_header();

  void post(std::function<void()> work) override;
  void end_soon() override;
  void cancel() override;

  void queue(std::string bytes, bool last) override;
  void queue_file(Descriptor file, int64_t offset, int64_t count) override;
  void become_socket(int64_t max_message_bytes, WebSocketEvents events) override;
  std::string head_of(int status, const Headers& headers,
                      std::optional<int64_t> length) const override;
  bool head_only() const override { return head_only_; }
  bool chunks() const override { return chunks_; }
  uint64_t number() const override { return requests_; }
  const CancelToken& gone() const override { return gone_; }

 private:
  using Failure = boost::beast::error_code;

  std::shared_ptr<Connection> self();
  bool keeps_alive() const { return keep_alive_ && !draining(); }
  void close();
  void refuse(const HttpRefusal& refusal);
  void refuse(int status, const std::string& message);
  std::string too_large() const;

  void on_header(Failure error);
  void read_body();
  void on_body(Failure error);
  void begin_reply();
  void handle();
  void watch();
  void write_next();
  void finish();
  void linger();
  void drain();

  boost::beast::tcp_stream stream_;
  std::string client_;
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::buffer_body>> parser_;
  HttpRequest request_;
  BodyRule rule_;
  IncomingBody body_;
  std::string piece_;
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

}  // namespace kinora::server
