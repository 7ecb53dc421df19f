// A connection after its upgrade: whole messages in both directions, one at a time. Used by
// connection.cc.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <cstdint>
#include <memory>

#include "server/http/server_state.h"

namespace kinora::server {

// Answers the request for an upgrade and tells the events what comes of it.
void open_web_socket(
    const std::shared_ptr<HttpServer::State>& server, boost::asio::ip::tcp::socket socket,
    const boost::beast::http::request_parser<boost::beast::http::buffer_body>& request,
    int64_t max_message_bytes, WebSocketEvents events);

}  // namespace kinora::server
