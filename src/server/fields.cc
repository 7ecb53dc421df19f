#include "server/fields.h"

#include <fmt/format.h>

#include <cmath>

#include "base/json/json_depth.h"
#include "server/api_error.h"

namespace kinora::server {
namespace {

using nlohmann::json;

bool says_nothing(const json& value) {
  return value.is_null() || ((value.is_array() || value.is_object()) && value.empty());
}

ApiError wrong_type(const std::string& place, const char* wanted, const json& value) {
  return ApiError(400, "invalid_type",
                  fmt::format("{}: must be {}, not {}", place, wanted, value.type_name()), place);
}

}  // namespace

json parse_body(std::string_view body) {
  if (json_nests_too_deeply(body)) {
    throw ApiError(400, "invalid_json",
                   fmt::format("the body nests deeper than {} levels", kMaxJsonDepth));
  }
  json value;
  try {
    value = json::parse(body);
  } catch (const json::exception& error) {
    std::string text = error.what();
    for (char& c : text) {
      if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) > '~') c = '?';
    }
    throw ApiError(400, "invalid_json", "the body is not JSON: " + text.substr(0, 200));
  }
  if (!value.is_object()) throw ApiError(400, "invalid_json", "the body must be a JSON object");
  return value;
}

Fields::Fields(const json& object, std::string place) : object_(object), place_(std::move(place)) {
  if (!object.is_object()) throw wrong_type(place_, "an object", object);
}

std::string Fields::path(std::string_view name) const {
  return place_.empty() ? std::string(name) : fmt::format("{}.{}", place_, name);
}

const json* Fields::any(const char* name) {
  known_.emplace(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<double> Fields::number(const char* name, double least, double most) {
  const json* value = any(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) throw wrong_type(path(name), "a number", *value);
  const auto number = value->get<double>();
  if (!(number >= least && number <= most)) {
    throw bad_request(path(name), fmt::format("{} is not within {} and {}", number, least, most));
  }
  return number;
}

std::optional<int64_t> Fields::integer(const char* name, int64_t least, int64_t most) {
  const json* value = any(name);
  if (value == nullptr) return std::nullopt;
  // 16.0 is a whole number to JSON; huge ones are out of range either way.
  const bool whole =
      value->is_number_integer() ||
      (value->is_number_float() && std::floor(value->get<double>()) == value->get<double>());
  if (!whole) throw wrong_type(path(name), "a whole number", *value);
  const auto number = value->get<double>();
  if (!(number >= static_cast<double>(least) && number <= static_cast<double>(most))) {
    throw bad_request(path(name), fmt::format("{} is not within {} and {}", number, least, most));
  }
  return value->is_number_unsigned() ? static_cast<int64_t>(value->get<uint64_t>())
                                     : value->get<int64_t>();
}

std::optional<std::string> Fields::text(const char* name) {
  const json* value = any(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) throw wrong_type(path(name), "a string", *value);
  return value->get<std::string>();
}

std::string Fields::required_text(const char* name) {
  const auto value = text(name);
  if (!value) throw bad_request(path(name), "is missing");
  return *value;
}

std::optional<bool> Fields::flag(const char* name) {
  const json* value = any(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) throw wrong_type(path(name), "true or false", *value);
  return value->get<bool>();
}

const json* Fields::object(const char* name) {
  const json* value = any(name);
  if (value != nullptr && !value->is_object()) throw wrong_type(path(name), "an object", *value);
  return value;
}

const json* Fields::array(const char* name) {
  const json* value = any(name);
  if (value != nullptr && !value->is_array()) throw wrong_type(path(name), "a list", *value);
  return value;
}

void Fields::only(const char* name, const json& allowed) {
  const json* value = any(name);
  if (value == nullptr || says_nothing(*value) || *value == allowed) return;
  throw ApiError(400, "unsupported_value",
                 fmt::format("{}: only {} is honoured", path(name), allowed.dump()), path(name));
}

void Fields::done() const {
  for (const auto& [name, value] : object_.items()) {
    if (known_.contains(name) || says_nothing(value)) continue;
    throw ApiError(400, "unknown_field", path(name) + ": this field is not known here", path(name));
  }
}

}  // namespace kinora::server
