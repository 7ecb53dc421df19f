#include "text/tokenizer_file.h"

#include <fmt/format.h>

#include "text/tokenizer_parts.h"

namespace kinora::tokenizer {
namespace {

using nlohmann::json;

// Which tokens begin, end and pad, if the directory says so.
void read_config(const FileSystem& files, const std::string& directory, TokenizerFile& file) {
  if (!files.is_file(join_path(directory, "tokenizer_config.json"))) return;
  const JsonFile in(files, directory, "tokenizer_config.json");
  const auto token = [&](const char* key) -> std::optional<std::string> {
    const json& value = member(in.root(), key);
    const json& content = value.is_object() ? member(value, "content") : value;
    if (content.is_null()) return std::nullopt;
    if (!content.is_string()) in.fail(fmt::format("{} is not a string", key));
    return content.get<std::string>();
  };
  file.begin_token = token("bos_token");
  file.end_token = token("eos_token");
  file.pad_token = token("pad_token");
}

}  // namespace

TokenizerFile read_tokenizer_file(const FileSystem& files, const std::string& directory) {
  TokenizerFile file;
  const JsonFile in(files, directory, "tokenizer.json");
  if (!in.root().is_object()) in.fail("is not a JSON object");
  read_vocabulary(in, file);
  read_steps(in, file);
  read_config(files, directory, file);
  return file;
}

}  // namespace kinora::tokenizer
