#include "server/live/streams.h"

#include <fmt/format.h>

#include <algorithm>

namespace kinora::server {

void Streams::check_room() const {
  const std::lock_guard lock(mutex_);
  if (std::ssize(streams_) < most_) return;
  ApiError full(429, "too_many_streams",
                fmt::format("{} streams are watched already; stop one of them", most_));
  full.retry_after = 10;
  throw full;
}

void Streams::add(WatchedStream stream) {
  check_room();
  const std::lock_guard lock(mutex_);
  streams_[stream.id] = std::move(stream);
}

std::vector<WatchedStream> Streams::list() const {
  std::vector<WatchedStream> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, stream] : streams_) all.push_back(stream);
  }
  std::reverse(all.begin(), all.end());  // ids count up
  return all;
}

WatchedStream Streams::find(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(id);
  if (found == streams_.end()) {
    throw ApiError(404, "stream_not_found", "there is no stream " + id);
  }
  return found->second;
}

void Streams::remove(const std::string& id) {
  const WatchedStream stopped = find(id);  // goes without the lock: it waits for its threads
  const std::lock_guard lock(mutex_);
  streams_.erase(id);
}

void Streams::clear() {
  std::map<std::string, WatchedStream> stopped;
  const std::lock_guard lock(mutex_);
  stopped.swap(streams_);
}

}  // namespace kinora::server
