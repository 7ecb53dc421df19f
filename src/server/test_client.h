// A client for the tests of this folder: bytes over a loopback socket, as they are.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace kinora::server {

struct TestReply {
  int status = 0;
  std::string head;
  std::string body;  // without chunk marks

  nlohmann::json json() const { return nlohmann::json::parse(body); }
  bool has(std::string_view text) const { return head.find(text) != std::string::npos; }
};

class TestClient {
 public:
  explicit TestClient(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) close();
  }
  ~TestClient() { close(); }
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  bool open() const { return socket_ >= 0; }
  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }
  void half_close() const { ::shutdown(socket_, SHUT_WR); }

  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t done = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (done <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(done));
    }
    return true;
  }
  void request(const std::string& method, const std::string& target, const std::string& body = "",
               const std::string& headers = "") const {
    send(method + " " + target + " HTTP/1.1\r\nHost: localhost\r\n" + headers +
         (body.empty() ? "" : "Content-Length: " + std::to_string(body.size()) + "\r\n") + "\r\n" +
         body);
  }

  // Everything up to `end` or the end of the connection; waits at most two minutes for a byte.
  std::string read_until(std::string_view end) {
    while (end.empty() || rest_.find(end) == std::string::npos) {
      if (!read_more()) break;
    }
    const size_t found = end.empty() ? std::string::npos : rest_.find(end);
    const size_t cut = found == std::string::npos ? rest_.size() : found + end.size();
    std::string text = rest_.substr(0, cut);
    rest_.erase(0, cut);
    return text;
  }
  std::string read_bytes(size_t count) {
    while (rest_.size() < count && read_more()) {
    }
    std::string text = rest_.substr(0, count);
    rest_.erase(0, text.size());
    return text;
  }

  TestReply reply() {
    TestReply reply;
    do {
      reply.head = read_until("\r\n\r\n");
    } while (reply.head.starts_with("HTTP/1.1 100"));
    if (reply.head.size() > 12) reply.status = std::atoi(reply.head.c_str() + 9);
    if (reply.has("chunked")) {
      while (true) {
        const size_t size = std::strtoul(read_until("\r\n").c_str(), nullptr, 16);
        reply.body += read_bytes(size);
        read_until("\r\n");
        if (size == 0) break;
      }
    } else if (const size_t at = reply.head.find("Content-Length: "); at != std::string::npos) {
      reply.body = read_bytes(std::strtoul(reply.head.c_str() + at + 16, nullptr, 10));
    }
    return reply;
  }
  TestReply ask(const std::string& method, const std::string& target, const std::string& body = "",
                const std::string& headers = "") {
    request(method, target, body, headers);
    return reply();
  }

  // Asks for a WebSocket.
  TestReply upgrade(const std::string& target, const std::string& headers = "") {
    request("GET", target, "",
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" +
                headers);
    return reply();
  }
  // The head of a frame from a client: it promises this many bytes, masked with zeros.
  bool send_frame_head(int opcode, uint64_t size) const {
    std::string head{static_cast<char>(0x80 | opcode)};
    const int bytes = size < 126 ? 0 : size < 65536 ? 2 : 8;
    head += static_cast<char>(0x80 | (bytes == 0 ? size : bytes == 2 ? 126 : 127));
    for (int i = bytes - 1; i >= 0; --i) head += static_cast<char>(size >> (8 * i));
    return send(head + std::string(4, '\0'));
  }
  bool send_frame(int opcode, std::string_view payload) const {
    return send_frame_head(opcode, payload.size()) && send(payload);
  }
  // Opcode and payload of the next frame; {-1, ""} at the end.
  std::pair<int, std::string> read_frame() {
    const std::string head = read_bytes(2);
    if (head.size() < 2) return {-1, ""};
    size_t size = static_cast<unsigned char>(head[1]) & 127u;
    const int bytes = size < 126 ? 0 : size == 126 ? 2 : 8;
    if (bytes > 0) {
      size = 0;
      for (const char c : read_bytes(static_cast<size_t>(bytes))) {
        size = size << 8 | static_cast<unsigned char>(c);
      }
    }
    return {head[0] & 15, read_bytes(size)};
  }
  // The code that the other side closes with; passes over other frames. −1 without one.
  int read_close() {
    while (true) {
      const auto [opcode, payload] = read_frame();
      if (opcode < 0 || (opcode == 8 && payload.size() < 2)) return -1;
      if (opcode == 8) {
        return static_cast<unsigned char>(payload[0]) << 8 | static_cast<unsigned char>(payload[1]);
      }
    }
  }

 private:
  bool read_more() {
    pollfd waiting{socket_, POLLIN, 0};
    if (::poll(&waiting, 1, 120'000) <= 0) return false;
    char piece[65536];
    const ssize_t got = ::recv(socket_, piece, sizeof piece, 0);
    if (got <= 0) return false;
    rest_.append(piece, static_cast<size_t>(got));
    return true;
  }

  int socket_;
  std::string rest_;
};

}  // namespace kinora::server
