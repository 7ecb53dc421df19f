#include "model/config_section.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace kinora {

const ConfigSection::Json* ConfigSection::find(std::string_view key) const {
  for (const Json* object : {inner_, outer_}) {
    if (object == nullptr) continue;
    const auto found = object->find(key);
    if (found != object->end() && !found->is_null()) return &*found;
  }
  return nullptr;
}

std::string ConfigSection::where(std::string_view key) const {
  return fmt::format("{}: {}{}", path_, name_, key);
}

void ConfigSection::wrong(std::string_view key, std::string_view what) const {
  throw Error(ErrorKind::bad_input, fmt::format("{} {}", where(key), what));
}

void ConfigSection::unsupported(std::string_view key, std::string_view what) const {
  throw Error(ErrorKind::unsupported, fmt::format("{} {}", where(key), what));
}

int64_t ConfigSection::integer(std::string_view key, int64_t low, int64_t high,
                               std::optional<int64_t> otherwise) const {
  const Json* value = find(key);
  if (value == nullptr) {
    if (otherwise) return *otherwise;
    wrong(key, "is missing");
  }
  // Unsigned numbers above the signed range would wrap.
  if (!value->is_number_integer() ||
      (value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{INT64_MAX})) {
    wrong(key, "is not a whole number in range");
  }
  const auto number = value->get<int64_t>();
  if (number < low || number > high) {
    wrong(key, fmt::format("is {}; it must lie between {} and {}", number, low, high));
  }
  return number;
}

double ConfigSection::number(std::string_view key, double low, double high,
                             std::optional<double> otherwise) const {
  const Json* value = find(key);
  if (value == nullptr) {
    if (otherwise) return *otherwise;
    wrong(key, "is missing");
  }
  if (!value->is_number()) wrong(key, "is not a number");
  const auto number = value->get<double>();
  if (!(number >= low && number <= high)) {
    wrong(key, fmt::format("is {}; it must lie between {} and {}", number, low, high));
  }
  return number;
}

bool ConfigSection::flag(std::string_view key, bool otherwise) const {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) wrong(key, "is neither true nor false");
  return value->get<bool>();
}

std::string ConfigSection::text(std::string_view key, std::string_view otherwise) const {
  const Json* value = find(key);
  if (value == nullptr) return std::string(otherwise);
  if (!value->is_string()) wrong(key, "is not a text");
  std::string text = value->get<std::string>().substr(0, 100);
  for (char& c : text) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return text;
}

ConfigSection ConfigSection::object(std::string_view key) const {
  static const Json empty = Json::object();
  const Json* value = find(key);
  if (value != nullptr && !value->is_object()) wrong(key, "is not an object");
  return ConfigSection(value == nullptr ? empty : *value, nullptr, path_,
                       fmt::format("{}{}.", name_, key));
}

}  // namespace kinora
