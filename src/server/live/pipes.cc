#include "server/live/pipes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>

namespace kinora::server {
namespace {

struct Pipe {
  Descriptor read, write;

  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
      throw ApiError(503, "out_of_files", "no pipe can be made: too many files are open");
    }
    read = Descriptor(ends[0]);
    write = Descriptor(ends[1]);
  }
};

std::string path_of(const Descriptor& descriptor) {
  return fmt::format("/proc/self/fd/{}", descriptor.get());
}

// Held by a source whose bytes are pushed.
struct Pushed {
  std::shared_ptr<PushFeed> feed;
  Descriptor read;  // until the session has opened it

  ~Pushed() { feed->close(1001, "the stream was stopped"); }
};

// Fetches on a thread of its own.
class Fetched {
 public:
  Fetched(Pipe pipe, std::shared_ptr<MediaFetcher> fetcher, std::string url)
      : read(std::move(pipe.read)),
        write_(std::move(pipe.write)),
        thread_([this, fetcher = std::move(fetcher), url = std::move(url)] {
          try {
            const auto take = [&](std::string_view bytes) {
              return write_to_pipe(write_.get(), bytes, stop_);
            };
            fetcher->stream(url, take, stop_);
          } catch (...) {
            const std::lock_guard lock(mutex_);
            cause_ = current_error();
          }
          write_.reset();
        }) {}
  ~Fetched() {
    stop_.cancel();
    thread_.join();
  }
  Fetched(const Fetched&) = delete;
  Fetched& operator=(const Fetched&) = delete;

  std::optional<ApiError> cause() const {
    const std::lock_guard lock(mutex_);
    return cause_;
  }

  Descriptor read;  // until the session has opened it

 private:
  Descriptor write_;
  CancelToken stop_;
  mutable std::mutex mutex_;
  std::optional<ApiError> cause_;
  std::thread thread_;
};

}  // namespace

std::shared_ptr<PushFeed> push_into(StreamSource& source) {
  Pipe pipe;
  const auto pushed = std::make_shared<Pushed>();
  pushed->feed = std::make_shared<PushFeed>(std::move(pipe.write));
  pushed->read = std::move(pipe.read);
  source.source = path_of(pushed->read);
  source.ready = [raw = pushed.get()] {
    pollfd waiting{raw->read.get(), POLLIN, 0};
    return ::poll(&waiting, 1, 0) != 0;
  };
  source.opened = [raw = pushed.get()] { raw->read.reset(); };
  source.ended = [raw = pushed.get()](const std::string& why) {
    raw->read.reset();
    raw->feed->close(why.empty() ? 1000 : 1011, why.empty() ? "the stream has ended" : why);
  };
  source.keep = pushed;
  return pushed->feed;
}

void fetch_into(StreamSource& source, const std::shared_ptr<MediaFetcher>& fetcher,
                const std::string& url) {
  const auto fetched = std::make_shared<Fetched>(Pipe(), fetcher, url);
  source.source = path_of(fetched->read);
  source.opened = [raw = fetched.get()] { raw->read.reset(); };
  source.cause = [raw = fetched.get()] { return raw->cause(); };
  source.keep = fetched;
}

}  // namespace kinora::server
