#include "server/media/fetch.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstring>
#include <fstream>

#include "server/api_error.h"
#include "server/http/http.h"
#include "support/temp_dir.h"

namespace kinora::server {
namespace {

bool is_public(const std::string& text) {
  sockaddr_storage storage{};
  if (text.find(':') == std::string::npos) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    EXPECT_EQ(inet_pton(AF_INET, text.c_str(), &in.sin_addr), 1) << text;
    std::memcpy(&storage, &in, sizeof in);
  } else {
    sockaddr_in6 in{};
    in.sin6_family = AF_INET6;
    EXPECT_EQ(inet_pton(AF_INET6, text.c_str(), &in.sin6_addr), 1) << text;
    std::memcpy(&storage, &in, sizeof in);
  }
  return is_public_address(reinterpret_cast<const sockaddr&>(storage));
}

TEST(PublicAddress, IsTheWideInternetOnly) {
  for (const char* open : {"8.8.8.8", "1.1.1.1", "93.184.216.34", "172.32.0.1", "100.128.0.1",
                           "192.169.0.1", "223.255.255.255", "2606:4700::1111", "::ffff:8.8.8.8",
                           "2002:808:808::1", "64:ff9b::808:808"}) {
    EXPECT_TRUE(is_public(open)) << open;
  }
  for (const char* closed : {"127.0.0.1",
                             "127.255.1.2",
                             "0.0.0.0",
                             "10.1.2.3",
                             "172.16.0.1",
                             "172.31.255.255",
                             "192.168.1.1",
                             "169.254.169.254",
                             "100.64.0.1",
                             "192.0.2.1",
                             "198.18.0.1",
                             "224.0.0.1",
                             "255.255.255.255",
                             "::",
                             "::1",
                             "fe80::1",
                             "fc00::1",
                             "fd00:ec2::254",
                             "ff02::1",
                             "::ffff:127.0.0.1",
                             "::ffff:169.254.169.254",
                             "::127.0.0.1",
                             "2002:7f00:1::1",
                             "64:ff9b::a9fe:a9fe",
                             "2001:db8::1",
                             "2001::1"}) {
    EXPECT_FALSE(is_public(closed)) << closed;
  }
}

class Fetching : public ::testing::Test {
 protected:
  Fetching() {
    if (make_fetcher({}) == nullptr) return;
    HttpServer::Callbacks callbacks;
    callbacks.rule = [](const HttpRequest&) { return BodyRule{}; };
    callbacks.refuse = [](int status, const std::string&) { return HttpRefusal{status, {}, ""}; };
    callbacks.handle = [this](HttpRequest request, const std::shared_ptr<HttpReply>& reply) {
      ++asked_;
      if (request.path == "/film") return reply->send(200, {}, std::string(5000, 'x'));
      if (request.path == "/none") return reply->send(404, {}, "no");
      if (request.path == "/empty") return reply->send(200, {}, "");
      reply->send(302, {{"Location", request.parameter("to").value_or("/film")}}, "");
    };
    HttpOptions options;
    options.spool_directory = directory_.path();
    server_ = std::make_unique<HttpServer>(options, callbacks);
    other_ = std::make_unique<HttpServer>(options, callbacks);
    server_->start();
    other_->start();
    options_.allowed = {"127.0.0.1:" + std::to_string(server_->port())};
    std::ofstream(directory_.file("out"));
  }
  void SetUp() override {
    if (server_ == nullptr) GTEST_SKIP() << "built without libcurl";
  }

  std::string address(const std::string& target, bool other = false) const {
    return "http://127.0.0.1:" + std::to_string((other ? other_ : server_)->port()) + target;
  }
  // The code of the refusal, or the bytes that came.
  std::string fetch(const std::string& url) {
    try {
      make_fetcher(options_)->fetch(url, directory_.file("out"), {});
    } catch (const ApiError& error) {
      return error.code;
    }
    std::ifstream file(directory_.file("out"));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  testing::TempDir directory_;
  FetchOptions options_;
  std::atomic<int> asked_ = 0;
  std::unique_ptr<HttpServer> server_, other_;
};

TEST_F(Fetching, BringsWhatItMay) {
  EXPECT_EQ(fetch(address("/film")), std::string(5000, 'x'));
  EXPECT_EQ(fetch(address("/redirect")), std::string(5000, 'x'));
  EXPECT_EQ(fetch(address("/none")), "media_unreachable");
  EXPECT_EQ(fetch(address("/empty")), "invalid_media");
}

TEST_F(Fetching, DoesNotReachThisMachineByAnyName) {
  options_.allowed.clear();
  const std::string port = ":" + std::to_string(server_->port()) + "/film";
  for (const char* host : {"127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0",
                           "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "017700000001"}) {
    EXPECT_EQ(fetch("http://" + std::string(host) + port), "media_not_allowed") << host;
  }
  EXPECT_EQ(fetch("http://169.254.169.254/latest/meta-data"), "media_not_allowed");
  EXPECT_EQ(asked_, 0);
}

TEST_F(Fetching, ChecksEveryHopOfARedirect) {
  EXPECT_EQ(fetch(address("/?to=" + address("/film", true))), "media_not_allowed");
  EXPECT_EQ(fetch(address("/?to=http://169.254.169.254/")), "media_not_allowed");
  EXPECT_EQ(fetch(address("/?to=file:///etc/passwd")), "media_unreachable");
  EXPECT_EQ(fetch(address("/?to=/?to=/?to=/?to=/?to=/?to=/?to=/")), "media_unreachable");
}

// Whatever a name stood for when it was checked, or a moment ago, the address is looked at when a
// socket is opened for it.
TEST_F(Fetching, DoesNotTrustWhatNamesResolveTo) {
  const std::string open = std::to_string(server_->port()), shut = std::to_string(other_->port());
  const auto film_at = [](const std::string& host, const std::string& port) {
    return "http://" + host + ":" + port + "/film";
  };
  options_.resolve = {"a.example:" + open + ":127.0.0.1", "a.example:" + shut + ":127.0.0.1"};
  EXPECT_EQ(fetch(film_at("a.example", open)), std::string(5000, 'x'));
  EXPECT_EQ(fetch(film_at("a.example", shut)), "media_not_allowed");
  // The answer changes between two requests, …
  options_.resolve = {"a.example:" + open + ":127.0.0.2"};
  EXPECT_EQ(fetch(film_at("a.example", open)), "media_not_allowed");
  // … between two hops of one, …
  options_.resolve = {"a.example:" + open + ":127.0.0.1", "b.example:" + open + ":127.0.0.3"};
  EXPECT_EQ(fetch("http://a.example:" + open + "/?to=" + film_at("b.example", open)),
            "media_not_allowed");
  // … or has several addresses, of which some may not be reached.
  asked_ = 0;
  options_.resolve = {"a.example:" + shut + ":169.254.169.254,[::1],127.0.0.1"};
  EXPECT_EQ(fetch(film_at("a.example", shut)), "media_not_allowed");
  EXPECT_EQ(asked_, 0);
}

TEST_F(Fetching, HandsOnWhatComesUntilNobodyWantsMore) {
  std::string got;
  make_fetcher(options_)->stream(address("/film"),
                                 [&](std::string_view bytes) {
                                   got += bytes;
                                   return true;
                                 },
                                 {});
  EXPECT_EQ(got.size(), 5000u);
  EXPECT_NO_THROW(
      make_fetcher(options_)->stream(address("/film"), [](std::string_view) { return false; }, {}));
  EXPECT_THROW(make_fetcher(options_)->stream(address("/film", true),
                                              [](std::string_view) { return true; }, {}),
               ApiError);
}

TEST_F(Fetching, StopsAtTheLimit) {
  options_.max_bytes = 1000;
  EXPECT_EQ(fetch(address("/film")), "media_too_large");
}

TEST_F(Fetching, StopsWhenCancelled) {
  const CancelToken cancel;
  cancel.cancel();
  EXPECT_THROW(make_fetcher(options_)->fetch(address("/film"), directory_.file("out"), cancel),
               Error);
}

}  // namespace
}  // namespace kinora::server
