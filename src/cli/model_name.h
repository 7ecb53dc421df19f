// Models as people name them: a directory, a name as on Hugging Face's hub that is in its cache or
// in kinora's data folder, or "kinora-tiny". Used by every command that takes a model.
#pragma once

#include <string>
#include <vector>

namespace kinora::cli {

// The directory of a model's files. Accepts what -m accepts: a directory, a folder
// models--ORG--NAME of the cache, a file of weights, ORG/NAME or NAME with an optional @REVISION,
// "kinora-tiny", or nothing (default_model). Throws not_found with the command that would get it.
std::string find_model(const std::string& given);

// How a model in this directory is called: "Qwen/Qwen2.5-VL-3B-Instruct", else the folder's name.
std::string model_title(const std::string& directory);

// $XDG_DATA_HOME/kinora/models, else ~/.local/share/kinora/models: ORG/NAME or NAME below it. Empty
// without a home.
std::string own_models_directory();

struct KnownModel {
  std::string name;
  std::string directory;
  std::string place;  // "bundled", "kinora" or "cache"
};
// Every model of these three places, in that order, each by name.
std::vector<KnownModel> known_models();

// "kinora pull ORG/NAME"
std::string command_to_get(const std::string& name);

}  // namespace kinora::cli
