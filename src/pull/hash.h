// The hashes by which the hub names contents: SHA-256 for large files, Git's SHA-1 of a blob for
// small ones. Used by pull.h to check what came over the network.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace kinora {

class ContentHash {
 public:
  // The hash that a name of this form is made by: 64 hexadecimal digits are SHA-256, 40 are Git's
  // blob of this many bytes. None for any other name.
  static std::optional<ContentHash> for_name(std::string_view name, int64_t bytes);

  ContentHash(ContentHash&&) noexcept;
  ContentHash& operator=(ContentHash&&) noexcept;
  ~ContentHash();

  void add(std::string_view bytes);
  std::string hex();  // of all that was added; the last call

 private:
  ContentHash();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kinora
