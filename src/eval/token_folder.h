// Visual tokens kept on disk: a folder of small files, one tensor each, found again by a key. It
// never grows beyond its limit (least recently used files go first), several processes may share
// it, and anything wrong with a file (torn, altered, of another format) makes it a miss.
// Used by visual_cache.h.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "base/files/content_key.h"
#include "base/tensor.h"

namespace kinora {

class TokenFolder {
 public:
  // Makes the folder. Throws not_found when that is impossible.
  TokenFolder(std::string directory, int64_t limit_bytes);

  // f32 [rows, columns] as it was stored, or nothing.
  std::optional<Tensor> find(const ContentKey& key);
  // Keeps a copy; a full disk or a vanished folder only means that nothing is kept.
  void store(const ContentKey& key, ConstTensorView tokens);

  int64_t bytes() const;  // in the folder, as far as this process knows

 private:
  std::string path(const ContentKey& key) const;
  void make_room();

  const std::string directory_;
  const int64_t limit_bytes_;
  mutable std::mutex mutex_;
  int64_t bytes_ = 0;
};

}  // namespace kinora
