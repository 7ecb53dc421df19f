// Numbers, texts and lists one after another as bytes, little-endian: what the small sections of a
// saved memory hold (archive.h). A reader never goes past the end of what it was given.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"

namespace kinora {

static_assert(std::endian::native == std::endian::little, "files are written as memory is");

class ByteWriter {
 public:
  template <typename T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) void put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put(std::string_view text) {
    put(static_cast<uint64_t>(text.size()));
    bytes_.append(text);
  }
  template <typename T>
  requires std::is_trivially_copyable_v<T>
  void put_all(std::span<const T> values) {
    put(static_cast<uint64_t>(values.size()));
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }
  template <typename T>
  void put_all(const std::vector<T>& values) {
    put_all(std::span<const T>(values));
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class ByteReader {
 public:
  // `what` names the bytes in errors.
  ByteReader(std::string_view bytes, std::string what) : bytes_(bytes), what_(std::move(what)) {}

  template <typename T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) T get() {
    T value{};
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text() { return std::string(take(count(1))); }
  template <typename T>
  requires std::is_trivially_copyable_v<T> std::vector<T> all() {
    const size_t size = count(sizeof(T));
    std::vector<T> values(size);
    const std::string_view from = take(size * sizeof(T));
    if (size > 0) std::memcpy(values.data(), from.data(), from.size());
    return values;
  }
  // Nothing may be left.
  void end() const {
    if (!bytes_.empty()) refuse("has more than it should");
  }
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ErrorKind::bad_input, what_ + " " + why);
  }

 private:
  size_t count(size_t each) {
    const auto size = get<uint64_t>();
    if (size > bytes_.size() / each) refuse("ends too early");
    return static_cast<size_t>(size);
  }
  std::string_view take(size_t size) {
    if (size > bytes_.size()) refuse("ends too early");
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }

  std::string_view bytes_;
  std::string what_;
};

}  // namespace kinora
