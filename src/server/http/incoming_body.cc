#include "server/http/incoming_body.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "base/file.h"

namespace kinora::server {

bool IncomingBody::begin(const BodyRule& rule, const HttpOptions& options) {
  drop();
  rule_ = rule;
  patience_ = options.body_seconds;
  least_rate_ = static_cast<double>(options.min_body_rate);
  began_ = std::chrono::steady_clock::now();
  if (!rule.to_file) return true;
  path_ = join_path(options.spool_directory, "kinora-body-XXXXXX");
  file_ = Descriptor(::mkostemp(path_.data(), O_CLOEXEC));
  if (file_.get() < 0) path_.clear();
  return file_.get() >= 0;
}

IncomingBody::Verdict IncomingBody::take(const char* bytes, size_t count) {
  count_ += static_cast<int64_t>(count);
  if (count_ > rule_.limit) return Verdict::too_large;
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began_;
  const double late = spent.count() - patience_;
  if (late > 0 && static_cast<double>(count_) < late * least_rate_) return Verdict::too_slow;
  if (!rule_.to_file) {
    text_.append(bytes, count);
  } else if (!write(bytes, count)) {
    return Verdict::no_space;
  }
  return Verdict::taken;
}

bool IncomingBody::write(const char* bytes, size_t count) {
  while (count > 0) {
    const ssize_t done = ::write(file_.get(), bytes, count);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return false;
    bytes += done;
    count -= static_cast<size_t>(done);
  }
  return true;
}

void IncomingBody::drop() {
  file_.reset();
  if (!path_.empty()) ::unlink(path_.c_str());
  path_.clear();
  text_ = {};
  count_ = 0;
}

void IncomingBody::give(HttpRequest& request) {
  file_.reset();
  request.body = std::move(text_);
  request.body_file = std::exchange(path_, "");
  request.body_bytes = count_;
  drop();
}

}  // namespace kinora::server
