// What a hub says about a model: the commit that a revision stands for, its files, and where each
// of them is, how large, under which name of its content. Requests are repeated where a server is
// busy or a connection breaks. Used by pull.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pull/http.h"

namespace kinora {

struct HubSettings {
  std::string endpoint = "https://huggingface.co";
  std::string token;  // empty: anonymous
  std::string cache;
  bool offline = false;

  // $HF_ENDPOINT; $HF_TOKEN, else the file at $HF_TOKEN_PATH, else that of the official client in
  // its home; $HF_HUB_OFFLINE; the cache of cache.h.
  static HubSettings from_environment();

  // The headers of every request.
  std::vector<std::string> headers() const;
};

struct HubListing {
  std::string commit;
  std::vector<std::string> files;
};

struct HubFile {
  std::string path;  // within the model
  std::string url;
  std::string etag;  // names the content
  int64_t bytes = 0;
};

// Attempts of one request before an error, when no attempt brings anything.
constexpr int http_attempts = 5;

// True for answers that may be better later: none, too many requests, a server's trouble.
bool worth_repeating(const HttpResponse& response);
// Waits as long as the answer asks, else longer with every attempt; ends early when stopped.
void wait_before_repeating(const HttpResponse& response, int attempt,
                           const std::function<bool()>& stopped);

// Throws the error that an unsuccessful answer stands for: gated, missing, busy, unreachable.
[[noreturn]] void refuse_answer(const HubSettings& settings, const HttpResponse& response,
                                const std::string& name, const std::string& revision);

class HubRepository {
 public:
  HubRepository(const HubSettings& settings, std::string name, std::string revision,
                std::function<bool()> stopped);

  HubListing list();
  // `commit` is that of the listing.
  HubFile describe(const std::string& commit, const std::string& path);

 private:
  HttpResponse ask(HttpRequest request);

  const HubSettings& settings_;
  const std::string name_;
  const std::string revision_;
  const std::function<bool()> stopped_;
  HttpClient client_;
};

}  // namespace kinora
