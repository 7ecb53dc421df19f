// One object of a config.json; keys it lacks are looked up in an enclosing one. Older files keep
// the decoder's settings at the top, newer ones in `text_config`. A missing or out-of-range value
// is refused with the file, the key and the range. Used by config.cc and the families.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json_fwd.hpp>

namespace kinora {

class ConfigSection {
 public:
  using Json = nlohmann::json;

  // `outer` may be null. Both objects must outlive the section.
  ConfigSection(const Json& inner, const Json* outer, std::string path, std::string name)
      : inner_(&inner), outer_(outer), path_(std::move(path)), name_(std::move(name)) {}

  // Null when the key is absent or its value is null.
  const Json* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }

  int64_t integer(std::string_view key, int64_t low, int64_t high,
                  std::optional<int64_t> otherwise = {}) const;
  double number(std::string_view key, double low, double high,
                std::optional<double> otherwise = {}) const;
  bool flag(std::string_view key, bool otherwise) const;
  std::string text(std::string_view key, std::string_view otherwise) const;

  // A nested object; an empty one when it is absent.
  ConfigSection object(std::string_view key) const;

  [[noreturn]] void wrong(std::string_view key, std::string_view what) const;        // bad_input
  [[noreturn]] void unsupported(std::string_view key, std::string_view what) const;  // unsupported

 private:
  std::string where(std::string_view key) const;

  const Json* inner_;
  const Json* outer_;
  std::string path_;
  std::string name_;  // "" for the top, else "text_config."
};

}  // namespace kinora
