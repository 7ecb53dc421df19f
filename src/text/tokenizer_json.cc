#include "text/tokenizer_json.h"

#include <fmt/format.h>

#include "base/json/json_depth.h"

namespace kinora::tokenizer {

using nlohmann::json;

constexpr int64_t kMaxFileBytes = int64_t{128} << 20;

std::string shown(const std::string& text) {
  const std::string whole = json(text).dump(-1, ' ', false, json::error_handler_t::replace);
  return whole.size() <= 80 ? whole : whole.substr(0, 70) + "…\"";
}

const json& member(const json& object, const char* key) {
  static const json null;
  if (!object.is_object()) return null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

JsonFile::JsonFile(const FileSystem& files, const std::string& directory, const std::string& name)
    : path_(join_path(directory, name)) {
  if (!files.is_file(path_)) {
    throw Error(ErrorKind::not_found,
                fmt::format("{}: no such file; the model's directory needs it", path_));
  }
  const std::string content = files.read(path_, kMaxFileBytes);
  if (json_nests_too_deeply(content)) fail("is nested too deeply; download the model again");
  root_ = json::parse(content, nullptr, /*allow_exceptions=*/false);
  if (root_.is_discarded()) fail("is not valid JSON (a truncated download?)");
}

void JsonFile::fail(const std::string& what, ErrorKind kind) const {
  throw Error(kind, fmt::format("{}: {}", path_, what));
}

void JsonFile::refuse(const std::string& part, const std::string& type) const {
  fail(fmt::format("{} \"{}\" is not supported (kinora reads byte-level BPE, as Qwen2 and Llama 3 "
                   "use it, and SentencePiece's BPE and Unigram)",
                   part, type),
       ErrorKind::unsupported);
}

bool JsonFile::flag(const json& object, const char* key, bool otherwise) const {
  const json& value = member(object, key);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) fail(fmt::format("{} is not true or false", key));
  return value.get<bool>();
}

std::string JsonFile::type_of(const json& object, const char* part) const {
  const json& type = member(object, "type");
  if (!type.is_string()) fail(fmt::format("the {} has no type", part));
  return type.get<std::string>();
}

std::string JsonFile::text_of(const json& object, const char* key, const char* part) const {
  const json& value = member(object, key);
  if (!value.is_string()) fail(fmt::format("{} has no {}", part, key));
  if (value.get_ref<const std::string&>().size() > kMaxTokenBytes) {
    fail(fmt::format("the {} of {} is too long", key, part));
  }
  return value.get<std::string>();
}

int32_t JsonFile::checked_id(const json& value, const std::string& token) const {
  if (!value.is_number_integer() || value.get<double>() < 0 ||
      value.get<double>() >= static_cast<double>(kMaxId)) {
    fail(fmt::format("the id of token {} is out of range: {}", shown(token), value.dump()));
  }
  return value.get<int32_t>();
}

}  // namespace kinora::tokenizer
