#include "model/chat/published_template.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace kinora {

std::string read_chat_template(const FileSystem& files, const std::string& directory) {
  constexpr int64_t limit = 64 << 20;
  const std::string jinja = join_path(directory, "chat_template.jinja");
  if (files.is_file(jinja)) return files.read(jinja, limit);
  for (const char* name : {"chat_template.json", "tokenizer_config.json"}) {
    const std::string path = join_path(directory, name);
    if (!files.is_file(path)) continue;
    const nlohmann::json json = nlohmann::json::parse(files.read(path, limit), nullptr, false);
    if (!json.is_object()) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("{} is not a JSON object; download the model again", path));
    }
    const auto found = json.find("chat_template");
    if (found == json.end()) continue;
    if (found->is_string()) return found->get<std::string>();
    if (!found->is_array()) continue;
    for (const nlohmann::json& one : *found) {
      const bool named = one.is_object() && one.value("name", nlohmann::json()) == "default";
      if (named && one.contains("template") && one["template"].is_string())
        return one["template"].get<std::string>();
    }
  }
  return "";
}

}  // namespace kinora
