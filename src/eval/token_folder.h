// Visual tokens kept on disk: a folder of small files, one tensor each, found again by a key. It
// never grows beyond its limit (what was used longest ago goes first), several processes may share
// it, and whatever is wrong with a file (torn, altered, of another format) makes it a miss.
// Used by visual_cache.h.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/tensor.h"

namespace kinora {

// 128 bits over any bytes; not for secrets.
class ContentKey {
 public:
  explicit ContentKey(std::string_view start = "") { add(start.data(), start.size()); }

  void add(const void* bytes, size_t count);
  void add(int64_t value) { add(&value, sizeof value); }

  std::array<uint64_t, 2> value() const;
  std::string text() const;  // 32 hexadecimal digits

 private:
  std::array<uint64_t, 2> lanes_ = {0x9e3779b97f4a7c15u, 0xc2b2ae3d27d4eb4fu};
  uint64_t length_ = 0;
};

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
