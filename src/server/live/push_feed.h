// What a client pushes over a WebSocket on its way into a pipe that a session reads: pictures, each
// a message, become a film; anything else is taken for the bytes of a container. A message is asked
// for when the one before it is in the pipe, so that whoever pushes too fast waits. Used by
// service_streams.cc.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/cancel.h"
#include "server/http/descriptor.h"
#include "server/http/http.h"
#include "server/live/picture_film.h"

namespace kinora::server {

// Writes all of it, waiting for whoever reads. False once nobody does, or when cancelled.
bool write_to_pipe(int descriptor, std::string_view bytes, const CancelToken& cancel);

class PushFeed {
 public:
  // `pipe` is the end to write to.
  explicit PushFeed(Descriptor pipe);
  // Ends the socket; the pipe ends with it.
  ~PushFeed();
  PushFeed(const PushFeed&) = delete;
  PushFeed& operator=(const PushFeed&) = delete;

  // For HttpReply::upgrade, or nothing where somebody pushes already, or did. The feed is taken
  // from here on, before the client hears of it, and free again if its handshake comes to nothing.
  static std::optional<WebSocketEvents> take(const std::shared_ptr<PushFeed>& self);
  // Tells the client and closes.
  void close(int code, const std::string& reason);

 private:
  struct Claim;

  void work();
  // What to write for a message; throws ApiError for what is none.
  std::string bytes_of(const std::string& message, bool text);

  Descriptor pipe_;
  CancelToken stop_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool taken_ = false;
  bool ended_ = false;
  std::optional<std::pair<std::string, bool>> message_;
  std::shared_ptr<WebSocket> socket_;
  // Of the thread that writes.
  std::optional<PictureHead> picture_;
  bool bytes_only_ = false;
  std::optional<double> time_;  // of the next picture, as the client gave it
  double last_time_ = -1;
  std::optional<std::chrono::steady_clock::time_point> began_;
  std::thread thread_;
};

}  // namespace kinora::server
