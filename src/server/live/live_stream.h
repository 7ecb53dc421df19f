// A source that goes on while it is asked about: a thread takes in what has come, and questions
// have their turn in between, each about all that was seen so far. Used by service_streams.cc and
// chat.cc.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <kinora/session.h>

#include "engine/session_state.h"
#include "server/api_error.h"
#include "server/shelf/shelf.h"

namespace kinora::server {

struct StreamSource {
  std::string kind;                        // "push", "address", "file"
  std::string name;                        // as a person knows it
  std::string source;                      // to open
  double speed = 0;                        // of a file: times as fast as it was filmed
  bool drops = false;                      // it does not wait for whoever looks at it
  bool comes_back = false;                 // worth opening again when it breaks off
  std::function<bool()> ready = nullptr;   // something has come that can be opened; null: always
  std::function<void()> opened = nullptr;  // called once it is open, …
  // A failure of what feeds it, which explains more than that nothing comes.
  std::function<std::optional<ApiError>()> cause = nullptr;
  std::function<void(const std::string& why)> ended = nullptr;  // … and when it has ended
  std::shared_ptr<void> keep;   // pipes, threads and files that belong to it
  std::shared_ptr<void> share;  // of the server's memory
};

struct StreamStatus {
  std::string state = "waiting";  // then "live", "away", "ended" or "failed"
  int64_t frames = 0;
  int64_t dropped = 0;
  int64_t tokens = 0;
  double until = 0;   // seconds of the video
  std::string error;  // of a stream that failed, or why it is away
  MemoryBytes bytes;
};

class LiveStream {
 public:
  // Starts at once. `max_bytes` of keys and values may be held in memory.
  LiveStream(const Engine& engine, const SessionOptions& options, StreamSource source,
             const InputOptions& input, int64_t max_bytes);
  // Stops.
  ~LiveStream();
  LiveStream(const LiveStream&) = delete;
  LiveStream& operator=(const LiveStream&) = delete;

  const StreamSource& source() const { return source_; }
  StreamStatus status() const;
  // Waits until it is known whether the source can be opened, at most this long. Throws why not.
  void wait_until_open(double seconds, const CancelToken& cancel) const;

  // Takes in what has come and answers. Throws 409 where nothing has come yet.
  Told ask(const Question& question, const OnPiece& on_piece);
  MemoryFile save(const std::string& path, const CancelToken& cancel);
  // The newest frame as a PNG, as the model saw it; empty before the first.
  std::string picture() const;

 private:
  void run(const InputOptions& input);
  void open(const InputOptions& input);
  bool step();
  bool try_again();
  void take_in(const CancelToken& cancel);
  void fail(std::exception_ptr failure);
  template <typename Work>
  auto in_turn(const CancelToken& cancel, const Work& work);

  const StreamSource source_;
  const int64_t max_bytes_;
  const SessionOptions options_;
  CancelToken stop_;

  std::mutex session_mutex_;
  std::atomic<int> askers_ = 0;  // who go before the thread
  std::unique_ptr<SessionState> session_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  StreamStatus status_;
  std::optional<ApiError> failure_;
  Tensor newest_;  // u8 [height, width, 3]
  double pause_ = 1;
  std::chrono::steady_clock::time_point when_;  // to try again
  std::thread thread_;
};

}  // namespace kinora::server
