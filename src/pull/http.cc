#include "pull/http.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <charconv>
#include <exception>

#include "base/error.h"

namespace kinora {
namespace {

constexpr size_t largest_body = size_t{64} << 20;
constexpr long connect_seconds = 20;
constexpr long stalled_seconds = 30;  // without a byte

// libcurl wants this once, before any thread uses it.
void start_curl() {
  static const bool started = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
  if (!started) throw Error(ErrorKind::internal, "libcurl cannot be started");
}

// What the callbacks of one request share.
struct Exchange {
  CURL* curl;
  const HttpRequest& request;
  const std::function<bool()>& stopped;
  HttpResponse& response;
  int64_t at = -1;  // place of the next byte; −1 before the first
  std::exception_ptr thrown{};
};

std::string trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1));
}

size_t take_header(char* data, size_t size, size_t count, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  const std::string_view line(data, size * count);
  if (line.starts_with("HTTP/")) exchange.response.headers.clear();  // of the answer before
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return size * count;
  std::string name(line.substr(0, colon));
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  exchange.response.headers[name] = trimmed(line.substr(colon + 1));
  return size * count;
}

// "bytes 100-199/200"
int64_t first_of_range(const HttpResponse& response) {
  const std::string range = response.header("content-range");
  int64_t first = 0;
  constexpr std::string_view unit = "bytes ";
  if (!range.starts_with(unit)) return 0;
  std::from_chars(range.data() + unit.size(), range.data() + range.size(), first);
  return first;
}

size_t take_body(char* data, size_t size, size_t count, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  const std::string_view bytes(data, size * count);
  long status = 0;
  curl_easy_getinfo(exchange.curl, CURLINFO_RESPONSE_CODE, &status);
  try {
    if (exchange.request.on_body && status >= 200 && status < 300) {
      if (exchange.at < 0) exchange.at = status == 206 ? first_of_range(exchange.response) : 0;
      exchange.request.on_body(bytes, exchange.at);
      exchange.at += static_cast<int64_t>(bytes.size());
    } else if (exchange.response.body.size() + bytes.size() <= largest_body) {
      exchange.response.body.append(bytes);
    } else {
      return 0;
    }
  } catch (...) {
    exchange.thrown = std::current_exception();
    return 0;
  }
  return bytes.size();
}

int watch(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<Exchange*>(user)->stopped() ? 1 : 0;
}

}  // namespace

struct HttpClient::Handle {
  CURL* curl = nullptr;
  ~Handle() { curl_easy_cleanup(curl); }
};

std::string HttpResponse::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

HttpClient::HttpClient(std::function<bool()> stopped)
    : handle_(std::make_unique<Handle>()), stopped_(std::move(stopped)) {
  start_curl();
  handle_->curl = curl_easy_init();
  if (handle_->curl == nullptr) throw Error(ErrorKind::resource, "libcurl has no memory");
}

HttpClient::~HttpClient() = default;

HttpResponse HttpClient::run(const HttpRequest& request) {
  if (stopped_()) throw Error(ErrorKind::cancelled, "cancelled");
  CURL* curl = handle_->curl;
  curl_easy_reset(curl);  // keeps connections
  HttpResponse response;
  Exchange exchange{curl, request, stopped_, response};
  curl_slist* headers = nullptr;
  for (const std::string& header : request.headers) {
    headers = curl_slist_append(headers, header.c_str());
  }
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "kinora");
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_NOBODY, request.head ? 1L : 0L);
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, request.follow ? 1L : 0L);
  curl_easy_setopt(curl, CURLOPT_MAXREDIRS, 10L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, connect_seconds);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, stalled_seconds);
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 256L * 1024);
  if (request.offset > 0) {
    curl_easy_setopt(curl, CURLOPT_RANGE, fmt::format("{}-", request.offset).c_str());
  }
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &exchange);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &exchange);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, watch);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &exchange);
  const CURLcode code = curl_easy_perform(curl);
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &response.status);
  curl_slist_free_all(headers);
  if (exchange.thrown) std::rethrow_exception(exchange.thrown);
  if (stopped_()) throw Error(ErrorKind::cancelled, "cancelled");
  if (code != CURLE_OK) response.failure = curl_easy_strerror(code);
  return response;
}

}  // namespace kinora
