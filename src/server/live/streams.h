// The streams that are being watched, by id. Thread-safe. Used by service_streams.cc.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/live/live_stream.h"
#include "server/live/push_feed.h"

namespace kinora::server {

struct WatchedStream {
  std::string id;  // "stream-…"
  int64_t created = 0;
  std::shared_ptr<LiveStream> stream;
  std::shared_ptr<PushFeed> feed;  // of one that is pushed; else null
};

class Streams {
 public:
  explicit Streams(int64_t most) : most_(most) {}

  // Throws 429 where there are too many.
  void check_room() const;
  void add(WatchedStream stream);
  std::vector<WatchedStream> list() const;  // the newest first
  // Throws ApiError 404.
  WatchedStream find(const std::string& id) const;
  // Stops it once nobody asks about it any more.
  void remove(const std::string& id);
  void clear();

 private:
  const int64_t most_;
  mutable std::mutex mutex_;
  std::map<std::string, WatchedStream> streams_;
};

}  // namespace kinora::server
