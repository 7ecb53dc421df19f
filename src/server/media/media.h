// Videos and pictures that requests bring along: bytes in the request, ready frames, files of this
// machine inside allowed folders. Each becomes something that can be opened by path, with a key
// that tells contents apart: what was read of a video is found again by it. Used by service.cc.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"

namespace kinora::server {

// Something to look at. What belongs to it on disk goes with it.
struct Media {
  std::string key;     // 32 hexadecimal digits: of the bytes, or of a local file's identity
  std::string name;    // as a person knows it, for messages
  std::string source;  // to open
  int64_t frames = 0;  // of a folder of ready frames; else 0
  int64_t bytes = 0;
  std::shared_ptr<void> keep;  // removes temporary files, closes descriptors
  bool memory = false;         // a saved memory, not a video
};
using MediaPtr = std::shared_ptr<const Media>;

struct MediaOptions {
  std::string directory;           // for temporary files
  std::vector<std::string> roots;  // folders whose files requests may name; none: no local files
  int64_t max_kept_bytes = int64_t{4} << 30;  // of temporary files that nobody uses just now
  int64_t max_frames = 4096;                  // ready frames in one part
};

// Fetches an http(s) address into a file; null where that is not allowed.
class MediaFetcher {
 public:
  virtual ~MediaFetcher() = default;
  // Writes the body to `path`; throws ApiError.
  virtual void fetch(const std::string& url, const std::string& path,
                     const CancelToken& cancel) = 0;
  // Hands on the body as it comes, without an end if need be; `take` returns false to end it.
  virtual void stream(const std::string& url, const std::function<bool(std::string_view)>& take,
                      const CancelToken& cancel) = 0;
};

class MediaStore {
 public:
  explicit MediaStore(const MediaOptions& options, std::shared_ptr<MediaFetcher> fetcher = nullptr);

  // What an address stands for: data:, file:, a path or http(s):. `param` is the field it stood in.
  // Throws ApiError.
  MediaPtr open(const std::string& url, const std::string& param, const CancelToken& cancel);
  // Bare base64, as llama.cpp's clients send it.
  MediaPtr open_base64(std::string_view text, const std::string& param);
  // A file that becomes the store's own.
  MediaPtr take_file(const std::string& path, const std::string& name);
  // A local file inside the roots.
  MediaPtr open_path(const std::string& path, const std::string& param);

  // Lets a later request name it without sending it again. Empty names do nothing.
  void remember(const std::string& uuid, const MediaPtr& media);
  MediaPtr find(const std::string& uuid);

 private:
  MediaPtr keep_bytes(std::string_view bytes, const std::string& name);
  MediaPtr keep_frames(std::string_view list, const std::string& param);
  // The same content if it is known already, else what `make` makes.
  template <typename Make>
  MediaPtr known_or(const std::string& key, const Make& make);
  void note(const MediaPtr& media);

  MediaOptions options_;
  std::shared_ptr<MediaFetcher> fetcher_;
  std::vector<std::filesystem::path> roots_;
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<const Media>> by_key_;
  std::map<std::string, std::weak_ptr<const Media>> by_uuid_;
  std::list<MediaPtr> recent_;  // the newest first; keeps what is not used just now
};

}  // namespace kinora::server
