#include "server/media/fetch.h"

#ifdef KINORA_HAS_CURL

#include <arpa/inet.h>
#include <curl/curl.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "server/api_error.h"

namespace kinora::server {
namespace {

void start_curl() {
  static const bool started = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
  if (!started) throw ApiError(500, "internal_error", "libcurl cannot be started");
}

// What the callbacks of one request share.
struct Exchange {
  const FetchOptions& options;
  const CancelToken& cancel;
  std::function<bool(std::string_view)> take;
  int64_t max_bytes = 0;
  int64_t bytes = 0;
  bool refused = false;  // an address that may not be reached
  bool too_large = false;
  bool ended = false;  // by whoever takes it
};

std::string text_of(const sockaddr& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.sa_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &address, sizeof in);
    inet_ntop(AF_INET, &in.sin_addr, text, sizeof text);
    return fmt::format("{}:{}", text, ntohs(in.sin_port));
  }
  sockaddr_in6 in{};
  std::memcpy(&in, &address, sizeof in);
  inet_ntop(AF_INET6, &in.sin6_addr, text, sizeof text);
  return fmt::format("[{}]:{}", text, ntohs(in.sin6_port));
}

curl_socket_t open_socket(void* user, curlsocktype, curl_sockaddr* address) {
  auto& exchange = *static_cast<Exchange*>(user);
  const auto& allowed = exchange.options.allowed;
  const bool named =
      (address->family == AF_INET || address->family == AF_INET6) &&
      std::find(allowed.begin(), allowed.end(), text_of(address->addr)) != allowed.end();
  if (!named && !is_public_address(address->addr)) {
    exchange.refused = true;
    return CURL_SOCKET_BAD;
  }
  return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

size_t take_body(char* data, size_t size, size_t count, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  exchange.bytes += static_cast<int64_t>(size * count);
  exchange.too_large = exchange.bytes > exchange.max_bytes;
  if (exchange.too_large) return 0;
  exchange.ended = !exchange.take({data, size * count});
  return exchange.ended ? 0 : size * count;
}

bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(file, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(done));
  }
  return true;
}

int go_on(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<Exchange*>(user)->cancel.cancelled() ? 1 : 0;
}

class CurlFetcher final : public MediaFetcher {
 public:
  explicit CurlFetcher(const FetchOptions& options) : options_(options) { start_curl(); }

  void fetch(const std::string& url, const std::string& path, const CancelToken& cancel) override {
    const int file = ::open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
    const std::shared_ptr<void> closing(nullptr, [file](void*) { ::close(file); });
    Exchange exchange{options_, cancel,
                      [file](std::string_view bytes) { return write_all(file, bytes); },
                      options_.max_bytes};
    perform(url, exchange, options_.total_seconds);
    if (exchange.ended) {
      throw ApiError(507, "no_space", "what comes cannot be kept: the disk is full");
    }
  }

  void stream(const std::string& url, const std::function<bool(std::string_view)>& take,
              const CancelToken& cancel) override {
    Exchange exchange{options_, cancel, take, INT64_MAX};
    perform(url, exchange, 0);
  }

 private:
  // Returns at the end, or when whoever takes it wants no more.
  void perform(const std::string& url, Exchange& exchange, double total_seconds) const {
    const CancelToken& cancel = exchange.cancel;
    const std::shared_ptr<CURL> handle(curl_easy_init(), curl_easy_cleanup);
    CURL* const curl = handle.get();
    if (curl == nullptr) throw ApiError(500, "internal_error", "libcurl cannot be started");
    const auto milliseconds = [](double seconds) { return static_cast<long>(seconds * 1000); };
    curl_slist* known = nullptr;
    for (const std::string& entry : options_.resolve) {
      known = curl_slist_append(known, entry.c_str());
    }
    const std::shared_ptr<curl_slist> names(known, curl_slist_free_all);
    curl_easy_setopt(curl, CURLOPT_RESOLVE, known);
    curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_PROXY, "");  // a proxy would open the socket elsewhere
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(curl, CURLOPT_MAXREDIRS, 5L);
    curl_easy_setopt(curl, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, milliseconds(options_.connect_seconds));
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, milliseconds(total_seconds));
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1024L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(options_.stalled_seconds));
    curl_easy_setopt(curl, CURLOPT_MAXFILESIZE_LARGE, curl_off_t{exchange.max_bytes});
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "kinora");
    curl_easy_setopt(curl, CURLOPT_OPENSOCKETFUNCTION, &open_socket);
    curl_easy_setopt(curl, CURLOPT_OPENSOCKETDATA, &exchange);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &take_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &exchange);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &go_on);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &exchange);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    const CURLcode result = curl_easy_perform(curl);
    cancel.check();
    if (exchange.ended) return;
    if (result == CURLE_OK) {
      if (exchange.bytes > 0) return;
      throw ApiError(400, "invalid_media", url + ": nothing came from there");
    }
    if (exchange.refused) {
      throw ApiError(403, "media_not_allowed",
                     url + ": leads to an address that this server does not fetch from");
    }
    if (exchange.too_large || result == CURLE_FILESIZE_EXCEEDED) {
      throw ApiError(413, "media_too_large",
                     fmt::format("{}: larger than {} bytes", url, options_.max_bytes));
    }
    throw ApiError(400, "media_unreachable",
                   fmt::format("{}: {}", url, curl_easy_strerror(result)));
  }

  FetchOptions options_;
};

}  // namespace

std::shared_ptr<MediaFetcher> make_fetcher(const FetchOptions& options) {
  return std::make_shared<CurlFetcher>(options);
}

}  // namespace kinora::server

#else

namespace kinora::server {

std::shared_ptr<MediaFetcher> make_fetcher(const FetchOptions&) { return nullptr; }

}  // namespace kinora::server

#endif
