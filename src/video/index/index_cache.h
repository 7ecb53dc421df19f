// Indices of large files, kept in a directory between runs: the pass over the packets of a long
// video reads the whole file. An index is used only for the very file it was made of (path, size,
// modification time, inode) by the same FFmpeg, and only if it is intact; anything else is treated
// as missing. Used by open_video when OpenOptions names a directory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "video/index/index.h"

namespace kinora {

class IndexCache {
 public:
  static constexpr int64_t default_bytes = int64_t{512} << 20;

  // `max_bytes`: beyond it the least recently used ones are removed.
  explicit IndexCache(std::string directory, int64_t max_bytes = default_bytes);

  // What tells one state of a file from another. Taken before the file is read. Empty when the file
  // changed within the last second: the next change might not show.
  static std::string identify(const std::string& path);

  std::optional<VideoIndex> find(const std::string& path, const std::string& identity) const;
  // Never throws: a cache that cannot be written costs only time.
  void keep(const std::string& path, const std::string& identity, const VideoIndex& index) const;

 private:
  std::string place_of(const std::string& path) const;
  void prune() const;

  std::string directory_;
  int64_t max_bytes_;
};

// The bytes of a kept index and back. Nothing when they are not whole, of another identity, or
// could not have come from an index.
std::string pack_index(const VideoIndex& index, const std::string& identity);
std::optional<VideoIndex> unpack_index(std::string_view bytes, const std::string& identity);

}  // namespace kinora
