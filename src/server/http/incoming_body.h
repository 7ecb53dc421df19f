// The body of a request as it comes: into a string or a file, as much as the rule takes and not
// slower than it must. A file goes unless somebody takes it. Used by connection.cc.
#pragma once

#include <chrono>
#include <string>

#include "server/http/descriptor.h"
#include "server/http/http.h"

namespace kinora::server {

class IncomingBody {
 public:
  IncomingBody() = default;
  ~IncomingBody() { drop(); }
  IncomingBody(const IncomingBody&) = delete;
  IncomingBody& operator=(const IncomingBody&) = delete;

  // False where no file can be made.
  bool begin(const BodyRule& rule, const HttpOptions& options);
  // What is wrong with this much more, or with how it comes.
  enum class Verdict { taken, too_large, too_slow, no_space };
  Verdict take(const char* bytes, size_t count);
  void drop();
  // All of it has come.
  void give(HttpRequest& request);

 private:
  bool write(const char* bytes, size_t count);

  BodyRule rule_;
  double patience_ = 0;
  double least_rate_ = 0;
  std::chrono::steady_clock::time_point began_;
  int64_t count_ = 0;
  std::string text_;
  std::string path_;
  Descriptor file_;
};

}  // namespace kinora::server
