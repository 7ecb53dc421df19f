// Memories that clients saved: what was read of a video or a stream, as a file that is asked about
// without reading anything again. A memory is a folder: the file and a few lines of JSON that are
// written last, so that half a memory is never seen, whenever the server ends. Used by
// service_memories.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <kinora/memory_file.h>

#include "server/media/media.h"

namespace kinora::server {

struct SavedMemory {
  std::string id;  // "memory-…"
  std::string name;
  int64_t created = 0;  // seconds since 1970
  MemoryFile file;
};

class MemoryLibrary {
 public:
  // Opens the folder or makes it. Empty: nothing can be saved.
  explicit MemoryLibrary(const std::string& directory);

  // `write` makes the file at the path that it is given.
  SavedMemory add(const std::string& name,
                  const std::function<MemoryFile(const std::string& path)>& write);
  std::vector<SavedMemory> list() const;  // the newest first
  // Throws ApiError 404.
  SavedMemory find(const std::string& id) const;
  MediaPtr media(const std::string& id) const;  // throws ApiError 404
  // Its file goes when nobody reads it any more.
  void remove(const std::string& id);

 private:
  struct Entry;
  std::shared_ptr<Entry> entry(const std::string& id) const;

  std::string directory_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>> memories_;
};

nlohmann::json memory_json(const SavedMemory& memory);

}  // namespace kinora::server
