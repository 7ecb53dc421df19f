// Videos that clients uploaded or registered, kept on disk until they delete them: what was there
// before a restart, or before a crash, is there after it. A video is a folder: its bytes and a
// small file of JSON that is written last, so that half a video is never seen.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/cancel.h"
#include "server/media/media.h"
#include "server/scenes.h"
#include "video/video.h"

namespace kinora::server {

struct LibraryVideo {
  std::string id;  // "video-" and the key of the content
  std::string name;
  int64_t created = 0;  // seconds since 1970
  int64_t bytes = 0;
  double duration = 0;
  double fps = 0;
  int64_t frames = 0;
  int64_t width = 0;
  int64_t height = 0;
  std::string codec;
  std::string container;
  bool picture = false;
};

class VideoLibrary {
 public:
  // Opens the folder or makes it. Empty: nothing can be added.
  explicit VideoLibrary(const std::string& directory);

  // A file becomes the library's own; throws bad_input for what is no video. Adding the same
  // content again gives the one that is there.
  LibraryVideo add_file(const std::string& path, const std::string& name,
                        const CancelToken& cancel);
  // Copies what was opened elsewhere.
  LibraryVideo add_media(const Media& media, const std::string& name, const CancelToken& cancel);
  std::vector<LibraryVideo> list() const;  // the newest first
  // Throws ApiError 404.
  LibraryVideo find(const std::string& id) const;
  MediaPtr media(const std::string& id) const;  // null where there is none
  // Its files go when nobody reads them any more.
  void remove(const std::string& id);

  std::string path_of(const std::string& id) const;
  // A PNG of the frame at this time, at most `side` wide and high.
  std::string picture(const std::string& id, double time, int64_t side, const CancelToken& cancel);
  std::vector<Scene> scenes(const std::string& id, const CancelToken& cancel);

 private:
  struct Entry;
  std::shared_ptr<Video> open(const std::string& id);
  LibraryVideo add(const std::string& file, bool move, const std::string& name,
                   const CancelToken& cancel);

  std::string directory_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>> videos_;
  std::list<std::pair<std::string, std::shared_ptr<Video>>> opened_;  // the newest first
};

nlohmann::json video_json(const LibraryVideo& video);

}  // namespace kinora::server
