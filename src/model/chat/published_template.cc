#include "model/chat/published_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json/json_depth.h"

namespace kinora {
namespace {

using Json = nlohmann::json;

constexpr int64_t limit = 64 << 20;

// Null when there is no such file.
Json read_object(const FileSystem& files, const std::string& path) {
  if (!files.is_file(path)) return nullptr;
  const std::string text = files.read(path, limit);
  if (json_nests_too_deeply(text)) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{} is nested too deeply; download the model again", path));
  }
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{} is not a JSON object; download the model again", path));
  }
  return json;
}

std::string template_in(const Json& value, const std::string& path) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return "";
  for (const Json& one : value) {
    const bool named = one.is_object() && one.value("name", Json()) == "default";
    if (named && one.contains("template") && one["template"].is_string()) {
      return one["template"].get<std::string>();
    }
  }
  throw Error(ErrorKind::bad_input,
              fmt::format("{} has several chat templates and none named \"default\"", path));
}

void read_template(const FileSystem& files, const std::string& directory,
                   PublishedTemplate& result) {
  const std::string jinja = join_path(directory, "chat_template.jinja");
  if (files.is_file(jinja)) {
    result.text = files.read(jinja, limit);
    result.path = jinja;
    return;
  }
  for (const char* name :
       {"chat_template.json", "processor_config.json", "tokenizer_config.json"}) {
    const std::string path = join_path(directory, name);
    const Json json = read_object(files, path);
    const auto found = json.find("chat_template");
    if (found == json.end()) continue;
    result.text = template_in(*found, path);
    result.path = path;
    if (!result.text.empty()) return;
  }
}

// A token is its text, or an object that holds the text.
void add_token(const std::string& name, const Json& value, PublishedTemplate& result) {
  const auto content = value.is_object() ? value.find("content") : value.end();
  const Json& text = value.is_object() && content != value.end() ? *content : value;
  const bool known =
      std::ranges::any_of(result.tokens, [&](const auto& token) { return token.first == name; });
  if (text.is_string() && !known) result.tokens.emplace_back(name, text.get<std::string>());
}

void read_tokens(const FileSystem& files, const std::string& directory, PublishedTemplate& result) {
  constexpr std::array names{"bos_token", "eos_token", "unk_token", "sep_token",
                             "pad_token", "cls_token", "mask_token"};
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const Json json = read_object(files, join_path(directory, file));
    if (json.is_null()) continue;
    for (const char* name : names) {
      if (json.contains(name)) add_token(name, json[name], result);
    }
    if (!json.contains("extra_special_tokens") || !json["extra_special_tokens"].is_object()) {
      continue;
    }
    for (const auto& [name, token] : json["extra_special_tokens"].items()) {
      add_token(name, token, result);
    }
  }
}

}  // namespace

PublishedTemplate read_chat_template(const FileSystem& files, const std::string& directory) {
  PublishedTemplate result;
  read_template(files, directory, result);
  read_tokens(files, directory, result);
  return result;
}

}  // namespace kinora
