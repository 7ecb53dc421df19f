// One object of a config.json and what it lacks looked up in an enclosing one: older files keep the
// decoder's settings at the top, newer ones in `text_config`. Every read names the file, the key
// and the range it must lie in when it does not. Used only by config*.cc.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

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
