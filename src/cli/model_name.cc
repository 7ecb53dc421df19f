#include "cli/model_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/policy/names.h"
#include "cli/bundled.h"
#include "hub/cache.h"

namespace kinora::cli {
namespace {

namespace fs = std::filesystem;

bool is_directory(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool has_config(const fs::path& directory) {
  std::error_code ignored;
  return fs::is_regular_file(directory / "config.json", ignored);
}

// Folders in a directory, sorted; none where it cannot be read.
std::vector<std::string> folders_in(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code failure;
  for (fs::directory_iterator at(directory, failure), end; !failure && at != end;
       at.increment(failure)) {
    if (is_directory(at->path().string())) names.push_back(at->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// What the last part of a name says: "Qwen2.5-VL-3B-Instruct" of "Qwen/Qwen2.5-VL-3B-Instruct".
std::string short_name(const std::string& name) { return name.substr(name.find('/') + 1); }

// A file of weights stands for the directory that it is part of.
std::string directory_of_file(const std::string& path) {
  const fs::path file(path);
  const fs::path folder = file.has_parent_path() ? file.parent_path() : ".";
  if (file.extension() == ".safetensors" && has_config(folder)) return folder.string();
  if (file.filename() == "config.json") return folder.string();
  if (file.extension() == ".safetensors") {
    throw Error(ErrorKind::usage,
                fmt::format("{} is a file of weights alone; give the directory that has its "
                            "config.json and tokenizer.json as well",
                            path));
  }
  throw Error(ErrorKind::unsupported,
              fmt::format("{} is not a model that kinora reads; give a directory with config.json, "
                          "tokenizer.json and .safetensors, or a name such as "
                          "Qwen/Qwen2.5-VL-3B-Instruct",
                          path));
}

// Names that are here and may have been meant, whole or by their last part.
std::string nearest_model(const std::string& name) {
  std::vector<std::string> names;
  for (const KnownModel& model : known_models()) names.push_back(model.name);
  if (const std::string_view meant = nearest_name(name, names); !meant.empty()) {
    return std::string(meant);
  }
  std::vector<std::string> shorts;
  for (const std::string& known : names) shorts.push_back(short_name(known));
  const std::string_view meant = nearest_name(short_name(name), shorts);
  for (const std::string& known : names) {
    if (!meant.empty() && short_name(known) == meant) return known;
  }
  return "";
}

[[noreturn]] void refuse_unknown(const std::string& given, const std::string& name,
                                 const std::string& revision) {
  if (!is_hub_name(name)) {
    throw Error(ErrorKind::not_found, fmt::format("there is no directory {}", given));
  }
  const std::string meant = revision.empty() ? nearest_model(name) : "";
  if (!meant.empty()) {
    throw Error(ErrorKind::not_found,
                fmt::format("there is no model {} here; did you mean {}?", given, meant));
  }
  // Without its owner a name cannot be fetched.
  const std::string owned = name.find('/') == std::string::npos ? "ORG/" + name : name;
  throw Error(
      ErrorKind::not_found,
      fmt::format("there is no directory {} and no model of that name on this machine; get "
                  "it with: {}{}",
                  given, command_to_get(owned), revision.empty() ? "" : " --revision " + revision));
}

// The directory of a name that is known here; empty: none.
std::string find_named(const std::string& name, const std::string& revision) {
  const HubCache cache(hub_cache_directory());
  if (!revision.empty()) return cache.snapshot(name, revision);
  std::vector<KnownModel> same;
  for (const KnownModel& model : known_models()) {
    if (model.name == name) return model.directory;
    if (name.find('/') == std::string::npos && short_name(model.name) == name) {
      same.push_back(model);
    }
  }
  if (same.size() > 1) {
    std::vector<std::string> names;
    for (const KnownModel& model : same) names.push_back(model.name);
    throw Error(ErrorKind::usage, fmt::format("{} may be {}; give one of these names", name,
                                              list_names(names, "or")));
  }
  return same.empty() ? "" : same[0].directory;
}

}  // namespace

std::string own_models_directory() {
  if (const char* data = std::getenv("XDG_DATA_HOME"); data != nullptr && *data != '\0') {
    return join_path(data, "kinora/models");
  }
  const char* user = std::getenv("HOME");
  return user == nullptr || *user == '\0' ? "" : join_path(user, ".local/share/kinora/models");
}

std::vector<KnownModel> known_models() {
  std::vector<KnownModel> models;
  if (const std::string bundled = bundled_model(); !bundled.empty()) {
    models.push_back({"kinora-tiny", bundled, "bundled"});
  }
  const std::string own = own_models_directory();
  for (const std::string& first : folders_in(own)) {
    const std::string folder = join_path(own, first);
    if (has_config(folder)) {
      models.push_back({first, folder, "kinora"});
      continue;
    }
    for (const std::string& second : folders_in(folder)) {
      if (!has_config(fs::path(folder) / second)) continue;
      models.push_back({first + "/" + second, join_path(folder, second), "kinora"});
    }
  }
  const HubCache cache(hub_cache_directory());
  for (const std::string& name : cache.names()) {
    const std::string snapshot = cache.snapshot(name);
    if (!snapshot.empty()) models.push_back({name, snapshot, "cache"});
  }
  return models;
}

std::string command_to_get(const std::string& name) {
#ifdef KINORA_HAS_PULL
  return "kinora pull " + name;
#else
  return "hf download " + name;
#endif
}

std::string find_model(const std::string& given) {
  if (given.empty()) return find_model(default_model());
  std::error_code ignored;
  if (is_directory(given)) {
    if (has_config(given)) return given;
    const std::string snapshot = snapshot_in(given);
    return snapshot.empty() ? given : snapshot;  // the loader says what a directory lacks
  }
  if (fs::exists(given, ignored)) return directory_of_file(given);
  const size_t at = given.find('@');
  const std::string revision = at == std::string::npos ? "" : given.substr(at + 1);
  std::string name = given.substr(0, at);
  // The folder's name in the cache, without the path to it.
  if (const std::string written = hub_name_of_folder(name); !written.empty()) name = written;
  if (is_hub_name(name)) {
    if (const std::string found = find_named(name, revision); !found.empty()) return found;
  }
  refuse_unknown(given, name, revision);
}

std::string model_title(const std::string& directory) {
  fs::path path = fs::path(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const fs::path snapshots = path.parent_path();
  if (snapshots.filename() == "snapshots") {
    const std::string name = hub_name_of_folder(snapshots.parent_path().filename().string());
    if (!name.empty()) return name;
  }
  return path.filename().string();
}

}  // namespace kinora::cli
