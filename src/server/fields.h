// Reads the fields of a JSON object that a stranger sent: every wrong type or value is refused with
// the field's name, and so is a field that nobody asked for. Null, [] and {} ask for nothing and
// are taken for absent.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace kinora::server {

// Parses a body: at most 64 deep, valid UTF-8, one object.
nlohmann::json parse_body(std::string_view body);

class Fields {
 public:
  // `place` names the object in messages: "messages[0]"; empty for the body itself. The object must
  // outlive this.
  Fields(const nlohmann::json& object, std::string place);

  std::optional<double> number(const char* name,
                               double least = std::numeric_limits<double>::lowest(),
                               double most = std::numeric_limits<double>::max());
  std::optional<int64_t> integer(const char* name, int64_t least, int64_t most);
  std::optional<std::string> text(const char* name);
  std::string required_text(const char* name);
  std::optional<bool> flag(const char* name);
  // Any value; null where it is absent.
  const nlohmann::json* any(const char* name);
  const nlohmann::json* object(const char* name);
  const nlohmann::json* array(const char* name);
  // A field that says nothing new with this value, and is refused with any other.
  void only(const char* name, const nlohmann::json& value);

  // Refuses the first field that was not asked for.
  void done() const;

  std::string path(std::string_view name) const;

 private:
  const nlohmann::json& object_;
  std::string place_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace kinora::server
