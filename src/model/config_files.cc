#include "model/config_files.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json/json_depth.h"

namespace kinora {
namespace {

using Json = nlohmann::json;

Json read_json(const FileSystem& files, const std::string& path) {
  Json content;
  const std::string text = files.read(path, int64_t{16} << 20);
  if (json_nests_too_deeply(text)) {
    throw Error(ErrorKind::bad_input, path + " is nested too deeply; download the model again");
  }
  try {
    content = Json::parse(text);
  } catch (const Json::exception&) {
    throw Error(ErrorKind::bad_input, path + " is not valid JSON");
  }
  if (!content.is_object()) throw Error(ErrorKind::bad_input, path + " is not a JSON object");
  return content;
}

}  // namespace

ConfigFiles::ConfigFiles(Json config, std::string name)
    : config_(std::make_shared<const Json>(std::move(config))), config_path_(std::move(name)) {}

ConfigFiles ConfigFiles::read(const FileSystem& files, const std::string& directory) {
  if (!files.is_directory(directory)) {
    throw Error(ErrorKind::not_found, fmt::format("there is no model directory {}", directory));
  }
  const std::string path = join_path(directory, "config.json");
  if (!files.is_file(path)) {
    throw Error(ErrorKind::not_found,
                fmt::format("{} has no config.json; is it a model directory?", directory));
  }
  ConfigFiles result(read_json(files, path), path);
  result.generation_path_ = join_path(directory, "generation_config.json");
  if (files.is_file(result.generation_path_)) {
    result.generation_ = std::make_shared<const Json>(read_json(files, result.generation_path_));
  }
  return result;
}

ConfigSection ConfigFiles::top() const {
  return ConfigSection(*config_, nullptr, config_path_, "");
}

ConfigSection ConfigFiles::own_text() const { return top().object("text_config"); }

ConfigSection ConfigFiles::text() const {
  const ConfigSection all = top();
  if (!all.has("text_config")) return all;
  all.object("text_config");  // refuses what is no object
  return ConfigSection(*all.find("text_config"), config_.get(), config_path_, "text_config.");
}

std::optional<ConfigSection> ConfigFiles::generation() const {
  if (generation_ == nullptr) return {};
  return ConfigSection(*generation_, nullptr, generation_path_, "");
}

}  // namespace kinora
