#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "server/http/http.h"
#include "server/test_client.h"
#include "support/temp_dir.h"

namespace kinora::server {
namespace {

using Reply = std::shared_ptr<HttpReply>;

class HttpServing : public ::testing::Test {
 protected:
  HttpServing() {
    options_.spool_directory = directory_.path();
    options_.header_seconds = options_.body_seconds = 5;
  }

  void start() {
    listen();
    server_->start();
  }
  void listen() {
    HttpServer::Callbacks callbacks;
    callbacks.rule = [this](const HttpRequest& head) {
      if (head.path == "/refused") throw HttpRefusal{403, {{"X-Why", "because"}}, "no"};
      return BodyRule{limit_, head.path == "/file"};
    };
    callbacks.handle = [this](HttpRequest request, const Reply& reply) {
      handle_(std::move(request), reply);
    };
    callbacks.refuse = [](int status, const std::string& message) {
      return HttpRefusal{status, {}, message};
    };
    server_ = std::make_unique<HttpServer>(options_, std::move(callbacks));
  }

  testing::TempDir directory_;
  HttpOptions options_;
  int64_t limit_ = 1 << 20;
  std::function<void(HttpRequest, const Reply&)> handle_ = [](HttpRequest request,
                                                              const Reply& reply) {
    reply->send(200, {}, request.method + " " + request.path + " " + request.body);
  };
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServing, AnswersSeveralRequestsOnOneConnection) {
  start();
  TestClient client(server_->port());
  for (int i = 0; i < 3; ++i) {
    const TestReply reply = client.ask("POST", "/a%20b", "body " + std::to_string(i));
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, "POST /a b body " + std::to_string(i));
    EXPECT_TRUE(reply.has("X-Request-Id: req-"));
  }
}

TEST_F(HttpServing, ReadsPipelinedRequestsInOrder) {
  start();
  TestClient client(server_->port());
  client.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.reply().body, "GET /1 ");
  EXPECT_EQ(client.reply().body, "GET /2 ");
}

TEST_F(HttpServing, ReadsChunkedBodies) {
  start();
  TestClient client(server_->port());
  client.send(
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n"
      "0\r\n\r\n");
  EXPECT_EQ(client.reply().body, "POST / abcde");
}

TEST_F(HttpServing, TellsWhetherToGoOnBeforeALargeBody) {
  start();
  TestClient client(server_->port());
  client.send("POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("abc");
  EXPECT_EQ(client.reply().body, "POST / abc");
}

TEST_F(HttpServing, KeepsABodyInAFileWhereTheRuleSaysSo) {
  std::string content, path;
  handle_ = [&](HttpRequest request, const Reply& reply) {
    std::ifstream file(request.body_file);
    content.assign(std::istreambuf_iterator<char>(file), {});
    path = request.body_file;
    reply->send(200, {}, std::to_string(request.body_bytes));
  };
  start();
  const std::string body(300000, 'x');
  TestClient client(server_->port());
  EXPECT_EQ(client.ask("POST", "/file", body).body, "300000");
  EXPECT_EQ(content, body);
  EXPECT_TRUE(path.starts_with(directory_.path()));
}

TEST_F(HttpServing, RefusesBodiesBeyondTheLimitAtOnce) {
  limit_ = 100;
  start();
  TestClient announced(server_->port());
  announced.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n");
  EXPECT_EQ(announced.reply().status, 413);
  TestClient chunked(server_->port());
  chunked.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nc8\r\n" +
               std::string(200, 'x') + "\r\n");
  EXPECT_EQ(chunked.reply().status, 413);
  TestClient file(server_->port());
  file.send("POST /file HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nc8\r\n" +
            std::string(200, 'x') + "\r\n");
  EXPECT_EQ(file.reply().status, 413);
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path())) << "half a body was left behind";
}

TEST_F(HttpServing, RefusesByRuleBeforeTheBodyComes) {
  start();
  TestClient client(server_->port());
  client.send("POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n");
  const TestReply reply = client.reply();
  EXPECT_EQ(reply.status, 403);
  EXPECT_TRUE(reply.has("X-Why: because"));
  EXPECT_TRUE(reply.has("Connection: close"));
}

TEST_F(HttpServing, RefusesLongHeadersAndWhatIsNoHttp) {
  start();
  TestClient header(server_->port());
  header.send("GET / HTTP/1.1\r\nX: " + std::string(100000, 'x') + "\r\n\r\n");
  EXPECT_EQ(header.reply().status, 431);
  TestClient nonsense(server_->port());
  nonsense.send("\x16\x03\x01 this is TLS\r\n\r\n");
  EXPECT_EQ(nonsense.reply().status, 400);
  TestClient target(server_->port());
  target.send("GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(target.reply().status, 400);
  EXPECT_EQ(TestClient(server_->port()).ask("GET", "/").status, 200) << "others are unharmed";
}

TEST_F(HttpServing, GivesUpOnThoseWhoDripTheirRequest) {
  options_.header_seconds = 0.3;
  options_.body_seconds = 0.3;
  start();
  TestClient header(server_->port());
  header.send("GET / HTTP/1.1\r\n");
  EXPECT_EQ(header.read_until(""), "");
  TestClient body(server_->port());
  body.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc");
  EXPECT_EQ(body.read_until(""), "");
  // A byte now and then does not help.
  TestClient slow(server_->port());
  slow.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n");
  for (int i = 0; i < 100 && slow.send("x"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(slow.reply().status, 408);
}

TEST_F(HttpServing, StreamsPiecesAndThenTakesTheNextRequest) {
  std::vector<std::thread> threads;
  handle_ = [&](HttpRequest, const Reply& reply) {
    threads.emplace_back([reply] {
      reply->begin(200, {{"Content-Type", "text/event-stream"}});
      for (int i = 0; i < 100; ++i) reply->write("piece " + std::to_string(i) + "\n");
      reply->end();
    });
  };
  start();
  TestClient client(server_->port());
  std::string expected;
  for (int i = 0; i < 100; ++i) expected += "piece " + std::to_string(i) + "\n";
  EXPECT_EQ(client.ask("GET", "/").body, expected);
  EXPECT_EQ(client.ask("GET", "/").body, expected);
  for (std::thread& thread : threads) thread.join();
}

TEST_F(HttpServing, SendsPartsOfFiles) {
  std::ofstream(directory_.file("film")) << std::string(1000000, 'a') + "0123456789";
  handle_ = [&](HttpRequest, const Reply& reply) {
    reply->send_file(206, {}, directory_.file("film"), 999998, 7);
  };
  start();
  TestClient client(server_->port());
  EXPECT_EQ(client.ask("GET", "/").body, "aa01234");
  client.request("HEAD", "/");
  EXPECT_NE(client.read_until("\r\n\r\n").find("Content-Length: 7"), std::string::npos);
  EXPECT_EQ(client.ask("GET", "/").body, "aa01234");
}

TEST_F(HttpServing, CancelsWorkForThoseWhoHaveGone) {
  std::mutex mutex;
  std::condition_variable changed;
  std::shared_ptr<HttpReply> kept;
  handle_ = [&](HttpRequest, const Reply& reply) {
    const std::lock_guard lock(mutex);
    kept = reply;
    changed.notify_all();
  };
  start();
  for (const bool half : {false, true}) {
    TestClient client(server_->port());
    client.request("GET", "/");
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return kept != nullptr; });
    EXPECT_FALSE(kept->gone().cancelled());
    if (half) {
      client.half_close();
    } else {
      client.close();
    }
    for (int i = 0; i < 1000 && !kept->gone().cancelled(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_TRUE(kept->gone().cancelled());
    kept.reset();
  }
}

TEST_F(HttpServing, DrainsWhatIsUnderWayAndSaysSoToOthers) {
  std::mutex mutex;
  std::condition_variable changed;
  std::shared_ptr<HttpReply> kept;
  handle_ = [&](HttpRequest, const Reply& reply) {
    const std::lock_guard lock(mutex);
    if (kept != nullptr) return reply->send(503, {}, "it ends");
    kept = reply;
    changed.notify_all();
  };
  start();
  TestClient idle(server_->port()), busy(server_->port());
  busy.request("GET", "/");
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return kept != nullptr; });
  }
  std::thread draining([&] { server_->drain(30); });
  EXPECT_EQ(idle.read_until(""), "") << "an idle connection stays";
  TestClient late(server_->port()), silent(server_->port());
  const TestReply told = late.ask("GET", "/");
  EXPECT_EQ(told.status, 503);
  EXPECT_TRUE(told.has("Connection: close"));
  {
    const std::lock_guard lock(mutex);
    kept->send(200, {}, "done");
    kept.reset();
  }
  const TestReply reply = busy.reply();
  EXPECT_EQ(reply.body, "done");
  EXPECT_TRUE(reply.has("Connection: close"));
  busy.close();
  draining.join();  // though one has come who says nothing
  EXPECT_EQ(silent.read_until(""), "");
  EXPECT_EQ(server_->connections(), 0);
  EXPECT_FALSE(TestClient(server_->port()).open());
}

TEST_F(HttpServing, AReplyThatIsDroppedIsAnError) {
  handle_ = [](HttpRequest, const Reply&) {};
  start();
  EXPECT_EQ(TestClient(server_->port()).ask("GET", "/").status, 500);
}

TEST_F(HttpServing, AStreamThatIsDroppedDoesNotLookWhole) {
  handle_ = [](HttpRequest, const Reply& reply) {
    reply->begin(200, {});
    reply->write("half");
  };
  start();
  TestClient client(server_->port());
  client.request("GET", "/");
  const std::string all = client.read_until("");
  EXPECT_EQ(all.find("0\r\n\r\n"), std::string::npos) << all;
}

TEST_F(HttpServing, LimitsConnections) {
  options_.max_connections = 2;
  start();
  TestClient one(server_->port()), two(server_->port());
  EXPECT_EQ(one.ask("GET", "/").status, 200);
  EXPECT_EQ(two.ask("GET", "/").status, 200);
  TestClient three(server_->port());
  three.request("GET", "/");
  EXPECT_EQ(three.read_until(""), "");
  EXPECT_EQ(one.ask("GET", "/").status, 200);
}

// Who comes before it answers is not turned away, and nothing is called until then.
TEST_F(HttpServing, AnswersOnceItIsStarted) {
  std::atomic<bool> ready = false;
  handle_ = [&](const HttpRequest&, const Reply& reply) {
    reply->send(ready ? 200 : 500, {}, "here");
  };
  listen();
  TestClient client(server_->port());
  client.request("GET", "/");
  ready = true;
  server_->start();
  EXPECT_EQ(client.read_until("here").substr(0, 12), "HTTP/1.1 200");
}

TEST_F(HttpServing, SaysWhatIsWrongWithAnAddress) {
  start();
  HttpOptions taken = options_;
  taken.port = server_->port();
  EXPECT_THROW(HttpServer(taken, {}), Error);
  options_.address = "nowhere";
  EXPECT_THROW(start(), Error);
}

TEST(Target, IsTakenApart) {
  HttpRequest request;
  EXPECT_TRUE(parse_target("/a%2Fb/c?x=1&y=a+b%21&z", request));
  EXPECT_EQ(request.path, "/a/b/c");
  EXPECT_EQ(request.parameter("x"), "1");
  EXPECT_EQ(request.parameter("y"), "a b!");
  EXPECT_EQ(request.parameter("z"), "");
  EXPECT_EQ(request.parameter("w"), std::nullopt);
  for (const char* wrong : {"", "a", "/%", "/%0", "/%zz", "/%00", "/?x=%1", "http://x/"}) {
    HttpRequest other;
    EXPECT_FALSE(parse_target(wrong, other)) << wrong;
  }
}

}  // namespace
}  // namespace kinora::server
