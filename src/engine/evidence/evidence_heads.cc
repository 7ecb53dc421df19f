#include "engine/evidence/evidence_heads.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "attention/policies/head_table.h"
#include "base/error.h"
#include "base/json/json_depth.h"

namespace kinora {
namespace {

constexpr const char* format_name = "kinora-evidence";
constexpr const char* file_name = "kinora-evidence.json";
constexpr int format_version = 1;
constexpr int middle_layers = 4;

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(ErrorKind::bad_input,
              fmt::format("{}: {}; calibrate the model again, or remove the file", path, what));
}

}  // namespace

std::string to_json(const EvidenceHeads& table) {
  nlohmann::ordered_json layers = nlohmann::json::array();
  for (const LayerHeads& layer : table.chosen) {
    std::vector<int64_t> heads;
    for (int64_t head = 0; head < table.heads; ++head) {
      if (layer.has(head)) heads.push_back(head);
    }
    layers.push_back({{"layer", layer.layer}, {"heads", heads}});
  }
  const nlohmann::ordered_json json = {{"format", format_name}, {"version", format_version},
                                       {"model", table.model},  {"layers", table.layers},
                                       {"heads", table.heads},  {"chosen", layers}};
  return json.dump(2) + "\n";
}

EvidenceHeads parse_evidence_heads(std::string_view text, const std::string& path) {
  EvidenceHeads table;
  if (json_nests_too_deeply(text)) refuse(path, "is nested too deeply");
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    if (json.at("format") != format_name || json.at("version") != format_version) {
      refuse(path, "not a table of heads that this version reads");
    }
    table.model = json.at("model").get<std::string>();
    table.layers = json.at("layers").get<int>();
    table.heads = json.at("heads").get<int64_t>();
    for (const nlohmann::json& entry : json.at("chosen")) {
      LayerHeads layer{entry.at("layer").get<int>(), 0};
      const int before = table.chosen.empty() ? -1 : table.chosen.back().layer;
      if (layer.layer <= before || layer.layer >= table.layers) {
        refuse(path,
               fmt::format("layer {} is out of order or not one of {}", layer.layer, table.layers));
      }
      for (const nlohmann::json& number : entry.at("heads")) {
        const auto head = number.get<int64_t>();
        if (head < 0 || head >= std::min<int64_t>(table.heads, 64)) {
          refuse(path, fmt::format("layer {} has no head {}", layer.layer, head));
        }
        layer.heads |= uint64_t{1} << head;
      }
      if (layer.heads == 0) refuse(path, fmt::format("no head of layer {}", layer.layer));
      table.chosen.push_back(layer);
    }
  } catch (const nlohmann::json::exception& error) {
    refuse(path, fmt::format("cannot be read ({})", error.what()));
  }
  if (table.chosen.empty()) refuse(path, "no heads are chosen");
  return table;
}

EvidenceHeads evidence_heads_of(const ModelInfo& info) {
  return {fmt::format("{} {}", info.family, info.parameters), info.rows.layers, info.heads, {}};
}

std::vector<std::string> evidence_table_places(const std::string& model_directory) {
  std::vector<std::string> places = head_table_places(model_directory);  // they lie side by side
  for (std::string& place : places) {
    place = std::filesystem::path(place).replace_filename(file_name).string();
  }
  return places;
}

std::vector<LayerHeads> find_evidence_heads(const FileSystem& files, const std::string& directory,
                                            const ModelInfo& info) {
  const EvidenceHeads expected = evidence_heads_of(info);
  for (const std::string& place : evidence_table_places(directory)) {
    if (directory.empty() || !files.is_file(place)) continue;
    const EvidenceHeads table = parse_evidence_heads(files.read(place, 1 << 20), place);
    if (table.model != expected.model || table.layers != expected.layers ||
        table.heads != expected.heads) {
      refuse(place, fmt::format("made for {} with {} layers of {} heads, and this is {} with {} of "
                                "{}",
                                table.model, table.layers, table.heads, expected.model,
                                expected.layers, expected.heads));
    }
    return table.chosen;
  }
  std::vector<LayerHeads> middle;
  const int count = std::min(middle_layers, expected.layers);
  for (int i = 0; i < count; ++i) middle.push_back({(expected.layers - count) / 2 + i});
  return middle;
}

}  // namespace kinora
