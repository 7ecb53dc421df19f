// config.json and generation_config.json of a model directory, parsed. A family reads its settings
// from them; benchmarks make one up to describe a shape whose files they do not have.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "base/file.h"
#include "model/config_section.h"

namespace kinora {

class ConfigFiles {
 public:
  using Json = nlohmann::json;

  // Throws not_found when there is no config.json, bad_input when a file is not a JSON object.
  static ConfigFiles read(const FileSystem& files, const std::string& directory);
  // A config.json that is on no disk; errors call it `name`.
  ConfigFiles(Json config, std::string name);

  std::string model_type() const { return top().text("model_type", ""); }

  // Sections point into this object and must not outlive it.
  ConfigSection top() const;
  ConfigSection own_text() const;  // `text_config` alone; empty when there is none
  ConfigSection text() const;      // the decoder's settings: `text_config`, then the top
  std::optional<ConfigSection> generation() const;  // absent when there is no such file

 private:
  std::shared_ptr<const Json> config_;
  std::shared_ptr<const Json> generation_;  // may be null
  std::string config_path_;
  std::string generation_path_;
};

}  // namespace kinora
