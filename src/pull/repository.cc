#include "pull/repository.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/json/json_depth.h"
#include "hub/cache.h"

namespace kinora {
namespace {

using Json = nlohmann::json;

constexpr int64_t longest_wait = 60;  // seconds that a server may ask for

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The first word of a file; empty where there is none.
std::string word_in(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

std::string official_home() {
  if (const std::string home = variable("HF_HOME"); !home.empty()) return home;
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) {
    return join_path(cache, "huggingface");
  }
  const std::string user = variable("HOME");
  return user.empty() ? "" : join_path(user, ".cache/huggingface");
}

// Percent-encoded, with the characters of `kept` as they are.
std::string escaped(std::string_view text, std::string_view kept) {
  std::string result;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-_.~").find(c) != std::string_view::npos ||
                       kept.find(c) != std::string_view::npos;
    if (plain) {
      result += c;
    } else {
      result += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return result;
}

[[noreturn]] void refuse(ErrorKind kind, const std::string& problem) { throw Error(kind, problem); }

// A path that stays below the folder it is written to.
void check_path(const std::string& path) {
  bool good = !path.empty() && path[0] != '/' && path.find('\0') == std::string::npos;
  for (size_t begin = 0; good && begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = std::string_view(path).substr(begin, end - begin);
    good = !part.empty() && part != "." && part != "..";
    begin = end + 1;
  }
  if (!good) refuse(ErrorKind::bad_input, fmt::format("the hub names a file '{}'", path));
}

void check_commit(const std::string& commit) {
  const bool hex = commit.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (commit.size() != 40 || !hex) {
    refuse(ErrorKind::bad_input, fmt::format("the hub names a commit '{}'", commit));
  }
}

// "W/\"abc\"" is abc. It becomes a file's name.
std::string plain_etag(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  std::erase(etag, '"');
  const bool good = !etag.empty() && etag.size() <= 200 && etag[0] != '.' &&
                    std::all_of(etag.begin(), etag.end(), [](char c) {
                      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                             (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
                    });
  return good ? etag : "";
}

int64_t number_of(const std::string& text) {
  int64_t number = -1;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace

HubSettings HubSettings::from_environment() {
  HubSettings settings;
  if (std::string endpoint = variable("HF_ENDPOINT"); !endpoint.empty()) {
    while (endpoint.ends_with('/')) endpoint.pop_back();
    settings.endpoint = endpoint;
  }
  settings.token = variable("HF_TOKEN");
  if (settings.token.empty()) {
    const std::string path = variable("HF_TOKEN_PATH");
    settings.token = word_in(path.empty() ? join_path(official_home(), "token") : path);
  }
  const std::string offline = variable("HF_HUB_OFFLINE");
  settings.offline = offline == "1" || offline == "true" || offline == "TRUE" || offline == "yes" ||
                     offline == "YES" || offline == "ON" || offline == "on";
  settings.cache = hub_cache_directory();
  return settings;
}

std::vector<std::string> HubSettings::headers() const {
  std::vector<std::string> lines = {"Accept-Encoding: identity"};
  if (!token.empty()) lines.push_back("Authorization: Bearer " + token);
  return lines;
}

bool worth_repeating(const HttpResponse& response) {
  return !response.failure.empty() || response.status == 429 || response.status == 408 ||
         response.status >= 500;
}

void wait_before_repeating(const HttpResponse& response, int attempt,
                           const std::function<bool()>& stopped) {
  const int64_t asked = number_of(response.header("retry-after"));
  const int64_t milliseconds =
      asked >= 0 ? 1000 * std::min(asked, longest_wait) : int64_t{500} << std::min(attempt, 5);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  while (std::chrono::steady_clock::now() < end) {
    if (stopped()) refuse(ErrorKind::cancelled, "cancelled");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void refuse_answer(const HubSettings& settings, const HttpResponse& response,
                   const std::string& name, const std::string& revision) {
  const std::string code = response.header("x-error-code");
  const std::string page = settings.endpoint + "/" + name;
  if (response.status == 0 || (!response.failure.empty() && response.status < 400)) {
    refuse(ErrorKind::network,
           fmt::format("{} does not answer: {}", settings.endpoint, response.failure));
  }
  if (code == "GatedRepo") {
    refuse(ErrorKind::not_found,
           fmt::format("{} is gated: accept its terms at {} and put a token of that account into "
                       "HF_TOKEN",
                       name, page));
  }
  if (code == "RevisionNotFound") {
    refuse(ErrorKind::not_found, fmt::format("{} has no revision '{}'", name, revision));
  }
  if (code == "RepoNotFound" || response.status == 404) {
    refuse(ErrorKind::not_found,
           fmt::format("{} has no model {}{}; check the name", settings.endpoint, name,
                       settings.token.empty() ? ", or it is private and HF_TOKEN is not set" : ""));
  }
  if (response.status == 401 || response.status == 403) {
    refuse(ErrorKind::not_found,
           settings.token.empty()
               ? fmt::format("{} may not be read without a token: set HF_TOKEN", name)
               : fmt::format("the token in HF_TOKEN may not read {} (answer {})", name,
                             response.status));
  }
  if (response.status == 429) {
    refuse(ErrorKind::network,
           fmt::format("{} refuses: too many requests; try again later{}", settings.endpoint,
                       settings.token.empty() ? ", or set HF_TOKEN" : ""));
  }
  refuse(ErrorKind::network,
         fmt::format("{} answers {} about {}", settings.endpoint, response.status, name));
}

HubRepository::HubRepository(const HubSettings& settings, std::string name, std::string revision,
                             std::function<bool()> stopped)
    : settings_(settings),
      name_(std::move(name)),
      revision_(std::move(revision)),
      stopped_(std::move(stopped)),
      client_(stopped_) {}

HttpResponse HubRepository::ask(HttpRequest request) {
  request.headers = settings_.headers();
  for (int attempt = 0;; ++attempt) {
    const HttpResponse response = client_.run(request);
    const bool good = response.failure.empty() && response.status >= 200 && response.status < 400;
    if (good) return response;
    if (!worth_repeating(response) || attempt + 1 == http_attempts) {
      refuse_answer(settings_, response, name_, revision_);
    }
    wait_before_repeating(response, attempt, stopped_);
  }
}

HubListing HubRepository::list() {
  HttpRequest request;
  request.url = fmt::format("{}/api/models/{}/revision/{}", settings_.endpoint, name_,
                            escaped(revision_, ""));
  const HttpResponse response = ask(request);
  HubListing listing;
  const auto no_hub = [&] {
    refuse(ErrorKind::bad_input, fmt::format("{} is not a hub: its answer about {} makes no sense",
                                             settings_.endpoint, name_));
  };
  if (json_nests_too_deeply(response.body)) no_hub();
  try {
    const Json json = Json::parse(response.body);
    listing.commit = json.at("sha").get<std::string>();
    for (const Json& file : json.at("siblings")) {
      listing.files.push_back(file.at("rfilename").get<std::string>());
    }
  } catch (const Json::exception&) {
    no_hub();
  }
  check_commit(listing.commit);
  for (const std::string& path : listing.files) check_path(path);
  return listing;
}

HubFile HubRepository::describe(const std::string& commit, const std::string& path) {
  HubFile file;
  file.path = path;
  file.url =
      fmt::format("{}/{}/resolve/{}/{}", settings_.endpoint, name_, commit, escaped(path, "/"));
  HttpRequest request;
  request.url = file.url;
  request.head = true;
  request.follow = false;  // the hub's own answer has what is wanted, not that of the storage
  HttpResponse response = ask(request);
  // A model that was renamed: on to its new name, on the same host.
  for (int hop = 0; hop < 5 && response.status >= 300; ++hop) {
    const std::string location = response.header("location");
    if (!location.starts_with("/")) break;
    request.url = settings_.endpoint + location;
    response = ask(request);
  }
  const std::string linked = response.header("x-linked-etag");
  file.etag = plain_etag(linked.empty() ? response.header("etag") : linked);
  const std::string size = response.header("x-linked-size");
  file.bytes = number_of(size.empty() ? response.header("content-length") : size);
  if (file.etag.empty() || file.bytes < 0) {
    refuse(ErrorKind::bad_input, fmt::format("the hub does not say what {} of {} is", path, name_));
  }
  return file;
}

}  // namespace kinora
