#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "server/http/http.h"
#include "server/test_client.h"
#include "support/temp_dir.h"

namespace kinora::server {
namespace {

// Says every message back, and asks for the next one when it is allowed to.
class WebSockets : public ::testing::Test {
 protected:
  WebSockets() {
    HttpOptions options;
    options.spool_directory = directory_.path();
    HttpServer::Callbacks callbacks;
    callbacks.rule = [](const HttpRequest&) { return BodyRule{}; };
    callbacks.refuse = [](int status, const std::string& message) {
      return HttpRefusal{status, {}, message};
    };
    callbacks.handle = [this](const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
      WebSocketEvents events;
      events.opened = [this](std::shared_ptr<WebSocket> socket) {
        const std::lock_guard lock(mutex_);
        socket_ = std::move(socket);
        socket_->read();
      };
      events.message = [this](const std::string& message, bool text) {
        const std::lock_guard lock(mutex_);
        socket_->send((text ? "text " : "bytes ") + message);
        ++messages_;
        if (eager_) socket_->read();
        changed_.notify_all();
      };
      events.closed = [this] {
        const std::lock_guard lock(mutex_);
        ++closed_;
        socket_ = nullptr;
        changed_.notify_all();
      };
      reply->upgrade(1000, std::move(events));
    };
    server_ = std::make_unique<HttpServer>(options, std::move(callbacks));
    server_->start();
  }
  ~WebSockets() override { server_ = nullptr; }
  template <typename Condition>
  bool wait(const Condition& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), condition);
  }

  testing::TempDir directory_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<WebSocket> socket_;  // until it is closed
  bool eager_ = true;
  int messages_ = 0, closed_ = 0;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(WebSockets, CarryMessagesBothWays) {
  TestClient client(server_->port());
  const TestReply reply = client.upgrade("/");
  EXPECT_EQ(reply.status, 101);
  // The example of RFC 6455, section 1.3.
  EXPECT_TRUE(reply.has("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")) << reply.head;
  client.send_frame(1, "one");
  EXPECT_EQ(client.read_frame(), std::pair(1, std::string("text one")));
  client.send_frame(2, std::string(500, 'x'));
  EXPECT_EQ(client.read_frame().second, "bytes " + std::string(500, 'x'));
  client.send_frame(9, "ping");
  EXPECT_EQ(client.read_frame(), std::pair(10, std::string("ping")));
  client.send_frame(8, std::string("\x03\xe8", 2));
  EXPECT_EQ(client.read_close(), 1000);
  client.close();
  EXPECT_TRUE(wait([&] { return closed_ == 1; }));
}

TEST_F(WebSockets, AreForThoseWhoAskForThem) {
  TestClient client(server_->port());
  const TestReply reply = client.ask("GET", "/");
  EXPECT_EQ(reply.status, 426);
  EXPECT_TRUE(reply.has("Upgrade: websocket"));
}

TEST_F(WebSockets, RefuseMessagesThatAreTooLargeBeforeTheyCome) {
  TestClient client(server_->port());
  client.upgrade("/");
  client.send_frame_head(2, uint64_t{1} << 30);
  EXPECT_EQ(client.read_close(), 1009);
  client.close();
  EXPECT_TRUE(wait([&] { return closed_ == 1; }));
  TestClient pieces(server_->port());
  pieces.upgrade("/");
  pieces.send(std::string("\x02\xfe\x02\x00", 4) + std::string(4, '\0') + std::string(512, 'x'));
  pieces.send(std::string("\x80\xfe\x02\x00", 4) + std::string(4, '\0') + std::string(512, 'x'));
  EXPECT_EQ(pieces.read_close(), 1009);
  EXPECT_EQ(messages_, 0);
}

TEST_F(WebSockets, RefuseWhatIsNoFrame) {
  TestClient client(server_->port());
  client.upgrade("/");
  client.send(std::string("\xf2\x80\0\0\0\0", 6));  // bits that mean nothing
  EXPECT_EQ(client.read_close(), 1002);
  TestClient words(server_->port());
  words.upgrade("/");
  words.send_frame(1, "\xff\xfe");  // no UTF-8
  EXPECT_EQ(words.read_close(), 1007);
}

TEST_F(WebSockets, TakeTheNextMessageOnlyWhenItIsAskedFor) {
  eager_ = false;
  TestClient client(server_->port());
  client.upgrade("/");
  client.send_frame(1, "one");
  client.send_frame(1, "two");
  EXPECT_EQ(client.read_frame().second, "text one");
  {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(messages_, 1);
    socket_->read();
  }
  EXPECT_EQ(client.read_frame().second, "text two");
}

TEST_F(WebSockets, AreClosedByEitherSide) {
  TestClient client(server_->port());
  client.upgrade("/");
  client.send_frame(1, "one");
  client.read_frame();
  {
    const std::lock_guard lock(mutex_);
    socket_->send("last");
    socket_->close(1011, "why not");
  }
  EXPECT_EQ(client.read_frame().second, "last");
  EXPECT_EQ(client.read_close(), 1011);
  client.close();
  EXPECT_TRUE(wait([&] { return closed_ == 1; }));
  TestClient gone(server_->port());
  gone.upgrade("/");
  gone.close();
  EXPECT_TRUE(wait([&] { return closed_ == 2; }));
}

TEST_F(WebSockets, EndWithTheServer) {
  TestClient client(server_->port());
  client.upgrade("/");
  client.send_frame(1, "one");
  client.read_frame();
  std::thread ending([&] { server_->drain(10); });
  EXPECT_EQ(client.read_close(), 1001);
  client.send_frame(8, std::string("\x03\xe9", 2));
  client.close();
  ending.join();
  EXPECT_EQ(server_->connections(), 0);
}

}  // namespace
}  // namespace kinora::server
