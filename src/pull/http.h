// HTTP over libcurl: one request at a time per client, redirects, ranges, cancelling. Proxies are
// those of the environment (https_proxy, no_proxy …). Used by pull.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kinora {

struct HttpRequest {
  std::string url;
  std::vector<std::string> headers{};  // "Authorization: Bearer …"; not sent on to another host
  bool head = false;
  bool follow = true;  // redirects, at most ten
  int64_t offset = 0;  // ask for the bytes from here on
  // Receives the body of a successful answer, instead of HttpResponse::body. `first` is the place
  // in the file of the bytes: 0 where a server does not know ranges.
  std::function<void(std::string_view bytes, int64_t first)> on_body{};
};

struct HttpResponse {
  long status = 0;                             // 0: there was no answer
  std::map<std::string, std::string> headers;  // of the last answer; names in lower case
  std::string body;                            // at most 64 MiB
  std::string failure;                         // why the connection broke, in libcurl's words

  std::string header(const std::string& name) const;
};

class HttpClient {
 public:
  // `stopped` is asked often and from the thread that waits.
  explicit HttpClient(std::function<bool()> stopped);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Throws a cancelled error when stopped, and what `on_body` throws; all else is in the response.
  HttpResponse run(const HttpRequest& request);

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
  std::function<bool()> stopped_;
};

}  // namespace kinora
