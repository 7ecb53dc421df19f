#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/json/json_depth.h"
#include "cli/command_line.h"
#include "cli/model_name.h"
#include "cli/terminal/output.h"
#include "cli/terminal/terminal.h"
#include "hub/cache.h"
#include "model/families/families.h"

namespace kinora::cli {
namespace {

struct ModelRow {
  KnownModel model;
  int64_t bytes = 0;
  std::string family;   // "?" where there is no telling
  std::string problem;  // why kinora cannot use it; empty: it can
};

// The weights that the index names and that are not there.
int64_t missing_shards(const std::string& directory) {
  const std::string index = join_path(directory, "model.safetensors.index.json");
  if (!real_files().is_file(index)) return 0;
  std::set<std::string> files;
  const std::string text = real_files().read(index);
  if (json_nests_too_deeply(text)) return 0;  // loading it says what is wrong
  try {
    const auto json = nlohmann::json::parse(text);
    for (const auto& [tensor, file] : json.at("weight_map").items()) {
      files.insert(file.get<std::string>());
    }
  } catch (const nlohmann::json::exception&) {
    return 0;
  }
  return std::count_if(files.begin(), files.end(), [&](const std::string& file) {
    return !real_files().is_file(join_path(directory, file));
  });
}

bool has_weights(const std::string& directory) {
  const std::vector<std::string> names = real_files().list(directory);
  return std::any_of(names.begin(), names.end(),
                     [](const std::string& name) { return name.ends_with(".safetensors"); });
}

ModelRow describe(const KnownModel& model) {
  ModelRow row{model, bytes_below(model.directory), "?", ""};
  try {
    const ConfigFiles config = ConfigFiles::read(real_files(), model.directory);
    if (!config.model_type().empty()) row.family = config.model_type();
    family_of(config);
    if (const int64_t missing = missing_shards(model.directory); missing > 0) {
      row.problem = fmt::format("{} files of weights are missing", missing);
    } else if (!has_weights(model.directory)) {
      row.problem = "there are no .safetensors";
    } else if (!real_files().is_file(join_path(model.directory, "tokenizer.json"))) {
      row.problem = "there is no tokenizer.json";
    }
  } catch (const Error& error) {
    row.problem = row.family == "?" ? "there is no config.json" : "kinora does not know the family";
    if (error.kind() == ErrorKind::bad_input) row.problem = error.what();
  }
  return row;
}

int print_names() {
  for (const KnownModel& model : known_models()) fmt::print("{}\n", model.name);
  return 0;
}

int models(bool json) {
  std::vector<ModelRow> rows;
  for (const KnownModel& model : known_models()) rows.push_back(describe(model));
  if (json) {
    nlohmann::json out = nlohmann::json::array();
    for (const ModelRow& row : rows) {
      out.push_back({{"name", row.model.name},
                     {"directory", row.model.directory},
                     {"place", row.model.place},
                     {"bytes", row.bytes},
                     {"family", row.family},
                     {"supported", row.problem.empty()},
                     {"problem", row.problem}});
    }
    constexpr auto replace = nlohmann::json::error_handler_t::replace;
    fmt::print("{}\n", out.dump(2, ' ', false, replace));
    return 0;
  }
  size_t name = 5, family = 6;
  for (const ModelRow& row : rows) {
    name = std::max(name, row.model.name.size());
    family = std::max(family, row.family.size());
  }
  fmt::print("{:<{}}  {:>8}  {:<{}}  {}\n", "model", name, "size", "family", family, "supported");
  for (const ModelRow& row : rows) {
    fmt::print("{:<{}}  {:>8}  {:<{}}  {}\n", row.model.name, name, human_bytes(row.bytes),
               row.family, family, row.problem.empty() ? "yes" : "no: " + row.problem);
  }
  const std::string cache = hub_cache_directory();
  if (!cache.empty()) remark("looked in {} and {}\n", own_models_directory(), cache);
  return 0;
}

}  // namespace

void add_models(CommandLine& line) {
  auto json = std::make_shared<bool>(false);
  auto names = std::make_shared<bool>(false);
  CLI::App* command = line.app.add_subcommand(
      "models", "List the models on this machine, their size and whether they can be used");
  command->add_flag("--json", *json, "Print JSON");
  command->add_flag("--names", *names, "Print names only");
  command->footer(
      "Examples:\n"
      "  kinora models\n"
      "  kinora models --json | jq -r '.[] | select(.supported) | .name'\n\n"
      "Looks at the bundled model, kinora's data folder ($XDG_DATA_HOME/kinora/models/ORG/NAME) "
      "and\nthe Hugging Face cache ($HF_HUB_CACHE, $HF_HOME/hub). Each name can be given as "
      "--model.");
  command->callback([json, names, &line] {
    line.action = [json, names] { return *names ? print_names() : models(*json); };
  });
}

}  // namespace kinora::cli
