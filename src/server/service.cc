#include "server/service.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "server/api_error.h"

namespace kinora::server {
namespace {

using Clock = std::chrono::steady_clock;

// Compares all of it whatever differs, so that time tells nothing.
bool same_secret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^
                  static_cast<unsigned char>(b[i % std::max<size_t>(1, b.size())]);
  }
  return difference == 0 && !b.empty();
}

std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, std::min(host.find(']') + 1, host.size()));
  return host.substr(0, host.find(':'));
}

bool matches(std::string_view pattern, std::string_view path) {
  while (true) {
    const size_t p = pattern.find('/', 1), q = path.find('/', 1);
    const std::string_view part = path.substr(0, q);
    if (pattern.substr(0, p) == "/*" ? part.size() < 2 : pattern.substr(0, p) != part) return false;
    if (p == std::string_view::npos || q == std::string_view::npos) return p == q;
    pattern.remove_prefix(p);
    path.remove_prefix(q);
  }
}

HttpRefusal refusal_of(const ApiError& error) {
  return {error.status, error_headers(error), dump(error_json(error))};
}

}  // namespace

std::string new_id(const std::string& prefix) {
  static std::atomic<uint64_t> count = 0;
  static const uint64_t start = (uint64_t{std::random_device()()} << 32) | std::random_device()();
  return fmt::format("{}-{:016x}{:06x}", prefix, start, ++count);
}

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::vector<Service::Route> Service::routes(const ServiceOptions& options) {
  const BodyRule none{0, false}, body{options.max_body_bytes, false};
  const BodyRule upload{options.max_upload_bytes, true};
  return {
      {"GET", "/", none, true, false, &Service::page},
      {"GET", "/openapi.json", none, true, false, &Service::page},
      {"GET", "/page/*", none, true, false, &Service::page},
      {"GET", "/healthz", none, true, false, &Service::health},
      {"GET", "/readyz", none, true, false, &Service::readiness},
      {"GET", "/metrics", none, false, false, &Service::metrics},
      {"GET", "/v1/models", none, false, false, &Service::models},
      {"GET", "/v1/models/*", none, false, false, &Service::models},
      {"POST", "/v1/chat/completions", body, false, true, &Service::chat},
      {"POST", "/v1/responses", body, false, true, &Service::respond},
      {"GET", "/v1/videos", none, false, false, &Service::list_videos},
      {"POST", "/v1/videos", upload, false, true, &Service::add_video},
      {"GET", "/v1/videos/*", none, false, false, &Service::show_video},
      {"DELETE", "/v1/videos/*", none, false, false, &Service::delete_video},
      {"GET", "/v1/videos/*/content", none, false, false, &Service::video_content},
      {"GET", "/v1/videos/*/picture", none, false, true, &Service::video_picture},
      {"GET", "/v1/videos/*/scenes", none, false, true, &Service::video_scenes},
      {"POST", "/v1/videos/*/index", body, false, true, &Service::index_video},
      {"GET", "/v1/memories", none, false, false, &Service::list_memories},
      {"POST", "/v1/memories", body, false, true, &Service::save_memory},
      {"GET", "/v1/memories/*", none, false, false, &Service::show_memory},
      {"DELETE", "/v1/memories/*", none, false, true, &Service::delete_memory},
      {"GET", "/v1/memories/*/content", none, false, false, &Service::memory_content},
      {"GET", "/v1/streams", none, false, false, &Service::list_streams},
      {"POST", "/v1/streams", body, false, true, &Service::start_stream},
      {"GET", "/v1/streams/*", none, false, false, &Service::show_stream},
      {"DELETE", "/v1/streams/*", none, false, true, &Service::stop_stream},
      {"GET", "/v1/streams/*/picture", none, false, true, &Service::stream_picture},
      {"GET", "/v1/streams/*/frames", none, false, false, &Service::push_frames},
  };
}

Service::Service(const Engine& engine, const SessionOptions& session, const ServiceOptions& options)
    : options_(options),
      engine_(engine),
      session_(session),
      fetcher_(options.fetch ? make_fetcher(options.fetching) : nullptr),
      routes_(routes(options)),
      media_(options.media, fetcher_),
      videos_(options.library),
      memories_(options.memories),
      shelf_(engine, session, options.max_row_bytes, options.memory_seconds),
      streams_(options.max_streams),
      queue_(std::make_unique<WorkQueue>(options.max_running, options.max_waiting)) {
  HttpServer::Callbacks callbacks;
  callbacks.rule = [this](const HttpRequest& head) { return check(head); };
  callbacks.handle = [this](HttpRequest request, std::shared_ptr<HttpReply> reply) {
    handle(std::move(request), reply);
  };
  callbacks.refuse = [](int status, const std::string& message) {
    return refusal_of(ApiError(status, status >= 500 ? "internal_error" : "bad_http", message));
  };
  http_ = std::make_unique<HttpServer>(options.http, std::move(callbacks));
  http_->start();
}

Service::~Service() {
  http_->drain(0);
  queue_.reset();    // no reply outlives the server that sends it, …
  streams_.clear();  // … and no socket
  http_.reset();
}

void Service::drain(double seconds) {
  ready_ = false;
  http_->drain(seconds);
}

const Service::Route* Service::find(const HttpRequest& request, bool& known_path) const {
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  known_path = false;
  for (const Route& route : routes_) {
    if (!matches(route.path, request.path)) continue;
    known_path = true;
    if (route.method == method) return &route;
  }
  return nullptr;
}

// A page from elsewhere must not talk to a server that trusts its machine: neither directly (its
// Origin differs) nor by a name that leads here (the Host is no name of this server).
void Service::check_origin(const HttpRequest& head) const {
  const std::string_view host = head.header("host");
  const std::string_view origin = head.header("origin");
  const size_t scheme = origin.find("://");
  if (!origin.empty() && (scheme == std::string_view::npos || origin.substr(scheme + 3) != host)) {
    throw ApiError(403, "foreign_origin", "requests from pages of other origins are not answered");
  }
  if (!options_.keys.empty()) return;
  const std::string name(without_port(host));
  const bool local =
      name.empty() || name == "localhost" || name == "[::1]" ||
      (name.starts_with("127.") && name.find_first_not_of("0123456789.") == std::string::npos);
  const bool bound_to_all = options_.http.address == "0.0.0.0" || options_.http.address == "::";
  const bool number =
      name.find_first_not_of("0123456789.") == std::string::npos || name.starts_with('[');
  if (local || name == options_.http.address || (bound_to_all && number) ||
      std::find(options_.hosts.begin(), options_.hosts.end(), name) != options_.hosts.end()) {
    return;
  }
  throw ApiError(
      403, "unknown_host",
      "this server does not go by the name " + name + "; start it with that name, or with keys");
}

void Service::check_key(const HttpRequest& head) const {
  if (options_.keys.empty()) return;
  const auto known = [&](std::string_view given) {
    bool right = false;
    for (const std::string& key : options_.keys) right |= same_secret(given, key);
    return right;
  };
  constexpr std::string_view bearer = "Bearer ";
  const std::string_view given = head.header("authorization");
  if (given.starts_with(bearer) && known(given.substr(bearer.size()))) return;
  // The page at `/` sends it as a cookie, since players and pictures send no other header.
  HttpRequest cookies;
  std::string list = "/?";
  for (const char c : head.header("cookie")) list += c == ';' ? "&" : std::string(c != ' ', c);
  if (parse_target(list, cookies) && known(cookies.parameter("kinora_key").value_or(""))) return;
  throw ApiError(401, "invalid_api_key",
                 given.empty() ? "an API key is needed: Authorization: Bearer …"
                               : "this API key is not known here");
}

BodyRule Service::check(const HttpRequest& head) const {
  const auto begin = Clock::now();
  try {
    bool known_path = false;
    const Route* route = find(head, known_path);
    check_origin(head);
    if (route == nullptr || !route->open) check_key(head);
    if (!ready_ && route != nullptr && !route->open && route->path != "/metrics") {
      ApiError ending(503, "draining", "this server is about to end; ask again later");
      ending.retry_after = 10;
      throw ending;
    }
    if (route == nullptr) {
      ApiError error = known_path
                           ? ApiError(405, "method_not_allowed",
                                      head.method + " is not possible on " + head.path)
                           : ApiError(404, "unknown_url", "there is nothing at " + head.path);
      HttpRefusal refusal = refusal_of(error);
      if (known_path) {
        std::string allowed;
        for (const Route& other : routes_) {
          if (!matches(other.path, head.path)) continue;
          allowed += (allowed.empty() ? "" : ", ") + other.method;
        }
        refusal.headers.emplace_back("Allow", allowed);
      }
      log(head, refusal.status, 0);
      throw refusal;
    }
    return route->body;
  } catch (const ApiError& error) {
    log(head, error.status, std::chrono::duration<double>(Clock::now() - begin).count());
    throw refusal_of(error);
  }
}

void Service::handle(HttpRequest request, const Reply& reply) {
  bool known_path = false;
  const Route* route = find(request, known_path);
  if (!route->queued) return run(*route, request, reply);
  // A key's owner stands in one line, wherever the requests come from.
  const std::string_view key = request.header("authorization");
  const std::string client = key.empty() ? request.client : std::string(key);
  const auto shared = std::make_shared<HttpRequest>(std::move(request));
  Work work;
  work.cancel = reply->gone();
  work.deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                     std::chrono::duration<double>(options_.request_seconds));
  work.run = [this, route, shared, reply, deadline = work.deadline, came = Clock::now()] {
    metrics_.observe("kinora_queue_seconds",
                     std::chrono::duration<double>(Clock::now() - came).count(),
                     {0.001, 0.01, 0.1, 0.3, 1, 3, 10, 30, 100});
    run(*route, *shared, reply);
    if (reply->status() == 0 && Clock::now() >= deadline) {
      ApiError late(503, "deadline_exceeded", "this took longer than the server allows");
      late.retry_after = 10;
      reply->send(late.status, error_headers(late), dump(error_json(late)));
    }
  };
  try {
    queue_->add(client, std::move(work));
  } catch (const ApiError& error) {
    reply->send(error.status, error_headers(error), dump(error_json(error)));
    log(*shared, error.status, 0);
  }
}

void Service::run(const Route& route, const HttpRequest& request, const Reply& reply) {
  const auto begin = Clock::now();
  try {
    reply->gone().check();
    route.run(*this, request, reply);
  } catch (...) {
    const ApiError error = current_error();
    // Nobody is there to read it, or the time is up, which whoever waits is told elsewhere.
    const bool cancelled = error.code == "cancelled" && reply->gone().cancelled();
    if (!cancelled) reply->send(error.status, error_headers(error), dump(error_json(error)));
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const int status = reply->status() != 0 ? reply->status() : 499;
  metrics_.count("kinora_requests_total",
                 fmt::format("route=\"{}\",status=\"{}\"", route.path, status));
  log(request, status, seconds);
}

void Service::log(const HttpRequest& request, int status, double seconds) const {
  if (!options_.log) return;
  const auto now = std::chrono::system_clock::now();
  const auto millis =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  const nlohmann::json line = {
      {"time", fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                           fmt::gmtime(std::chrono::system_clock::to_time_t(now)), millis)},
      {"level", status >= 500 ? "error" : "info"},
      {"request", request.id},
      {"client", request.client},
      {"method", request.method},
      {"path", request.path},
      {"status", status},
      {"seconds", seconds}};
  options_.log(dump(line));
}

const Tokenizer& Service::tokenizer() const {
  return EngineAccess::state(engine_)->model->tokenizer();
}

}  // namespace kinora::server
