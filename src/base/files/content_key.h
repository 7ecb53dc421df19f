// Tells contents apart by their bytes: names and checksums of what is kept on disk between runs.
// Uses XXH3 from xxHash: as fast as memory, well mixed, not for secrets. Used by the caches of
// video indices and visual tokens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace kinora {

// 128 bits over a sequence of pieces. The boundaries between pieces count, too. A copy continues
// independently, so that a prefix shared by many keys is read only once.
class ContentKey {
 public:
  explicit ContentKey(std::string_view first = "");
  ContentKey(const ContentKey& other);
  ContentKey& operator=(const ContentKey& other);
  ContentKey(ContentKey&&) noexcept = default;
  ContentKey& operator=(ContentKey&&) noexcept = default;

  void add(const void* bytes, size_t count);
  void add(int64_t value) { add(&value, sizeof value); }

  std::array<uint64_t, 2> value() const;
  std::string text() const;  // 32 hexadecimal digits

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

// 64 bits, against torn and damaged files.
uint64_t content_checksum(std::string_view bytes);

}  // namespace kinora
