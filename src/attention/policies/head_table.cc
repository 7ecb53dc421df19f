#include "attention/policies/head_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json/json_depth.h"

namespace kinora {
namespace {

using Json = nlohmann::ordered_json;

constexpr int version = 1;
constexpr int64_t largest_count = 100'000;
constexpr int64_t largest_size = 1 << 24;  // of a pattern
constexpr std::array modalities = {Modality::text, Modality::image, Modality::video,
                                   Modality::audio};

// Reads one object and remembers where it is, for messages.
class Reader {
 public:
  Reader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) refuse("is not an object");
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::bad_input, fmt::format("{}: {}", where_, what));
  }
  // Does `work`; what it refuses is refused with the place.
  template <typename Work>
  auto here(const Work& work) const {
    try {
      return work();
    } catch (const Error& error) {
      refuse(error.what());
    }
  }
  // Typing errors in a file edited by hand must not pass as defaults.
  void allow(std::initializer_list<std::string_view> keys,
             const std::vector<PatternSize>& sizes = {}) const {
    const auto is_size = [&](const std::string& key) {
      return std::any_of(sizes.begin(), sizes.end(),
                         [&](const PatternSize& size) { return size.key == key; });
    };
    for (const auto& [key, value] : json_.items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end() && !is_size(key)) {
        refuse(fmt::format("\"{}\" is not known here", key));
      }
    }
  }
  const Json& need(const std::string& key) const {
    if (!json_.contains(key)) refuse(fmt::format("\"{}\" is missing", key));
    return json_.at(key);
  }
  std::string text(const std::string& key) const {
    const Json& value = need(key);
    if (!value.is_string()) refuse(fmt::format("\"{}\" is not a string", key));
    return value.get<std::string>();
  }
  int64_t whole(const std::string& key, int64_t low, int64_t high) const {
    const Json& value = need(key);
    if (!value.is_number_integer()) refuse(fmt::format("\"{}\" is not a whole number", key));
    const auto number = value.get<int64_t>();
    if (number < low || number > high) {
      refuse(fmt::format("\"{}\" is {}, not in {} … {}", key, number, low, high));
    }
    return number;
  }
  double number(const std::string& key) const {
    const Json& value = need(key);
    if (!value.is_number()) refuse(fmt::format("\"{}\" is not a number", key));
    return value.get<double>();
  }
  int32_t size(const PatternSize& size) const {
    if (!json_.contains(size.key)) return size.absent;
    const Json& value = json_.at(size.key);
    if (size.flag) {
      if (!value.is_boolean()) refuse(fmt::format("\"{}\" is neither true nor false", size.key));
      return value.get<bool>() ? 1 : 0;
    }
    const auto number = static_cast<int32_t>(whole(size.key, 0, largest_size));
    if (number < size.least) refuse(fmt::format("a {} of {}", size.key, number));
    return number;
  }
  bool has(const std::string& key) const { return json_.contains(key); }
  const std::string& where() const { return where_; }

 private:
  const Json& json_;
  std::string where_;
};

Json write_spec(const PatternSpec& spec) {
  Json json;
  json["pattern"] = spec.kind->name;
  for (size_t i = 0; i < spec.sizes.size(); ++i) {
    const PatternSize& size = spec.kind->sizes[i];
    if (spec.sizes[i] == size.absent) continue;
    if (size.flag) {
      json[size.key] = spec.sizes[i] != 0;
    } else {
      json[size.key] = spec.sizes[i];
    }
  }
  return json;
}

PatternSpec read_spec(const Reader& reader) {
  const std::string name = reader.text("pattern");
  const PatternKind& kind = reader.here([&] { return std::cref(find_pattern(name)); });
  reader.allow({"query", "key", "pattern"}, kind.sizes);
  SizeValues sizes;
  for (const PatternSize& size : kind.sizes) sizes.push_back(reader.size(size));
  return reader.here([&] { return make_pattern(kind, sizes); });
}

std::optional<Modality> read_modality(const Reader& reader, const char* key, bool wanted) {
  if (reader.has(key) != wanted) {
    reader.refuse(
        fmt::format("\"{}\" {}", key, wanted ? "is missing" : "does not belong to this boundary"));
  }
  if (!wanted) return std::nullopt;
  const std::string name = reader.text(key);
  for (const Modality modality : modalities) {
    if (modality_name(modality) == name) return modality;
  }
  reader.refuse(fmt::format("no modality is called \"{}\"", name));
}

Json write_choice(const HeadChoice& choice, bool by_clock) {
  Json json;
  json["boundary"] = boundary_name(choice.boundary);
  json["regions"] = Json::array();
  for (const RegionPattern& region : choice.patterns) {
    Json entry;
    if (region.query) entry["query"] = modality_name(*region.query);
    if (region.key) entry["key"] = modality_name(*region.key);
    entry.update(write_spec(region.spec));
    json["regions"].push_back(std::move(entry));
  }
  json["recall"] = choice.recall;
  json["error"] = choice.error;
  if (by_clock) {
    json["seconds"] = choice.seconds;
  } else {
    json["flops"] = choice.flops;
    json["index"] = choice.index;
    json["time"] = choice.time;
  }
  return json;
}

HeadChoice read_choice(const Json& json, const std::string& where, bool by_clock) {
  const Reader reader(json, where);
  if (by_clock) {
    reader.allow({"boundary", "regions", "recall", "error", "seconds"});
  } else {
    reader.allow({"boundary", "regions", "recall", "error", "flops", "index", "time"});
  }
  HeadChoice choice;
  const std::string boundary = reader.text("boundary");
  choice.boundary = reader.here([&] { return parse_boundary(boundary); });
  const bool by_query = choice.boundary == Boundary::query || choice.boundary == Boundary::both;
  const bool by_key = choice.boundary == Boundary::key || choice.boundary == Boundary::both;
  const Json& regions = reader.need("regions");
  if (!regions.is_array() || regions.empty()) reader.refuse("\"regions\" is not a filled list");
  if (choice.boundary == Boundary::none && regions.size() != 1) {
    reader.refuse("without a boundary there is one region");
  }
  for (size_t i = 0; i < regions.size(); ++i) {
    const Reader entry(regions[i], fmt::format("{}, region {}", where, i));
    RegionPattern pattern;
    pattern.query = read_modality(entry, "query", by_query);
    pattern.key = read_modality(entry, "key", by_key);
    pattern.spec = read_spec(entry);
    choice.patterns.push_back(pattern);
  }
  choice.recall = reader.number("recall");
  choice.error = reader.number("error");
  if (by_clock) {
    choice.seconds = reader.number("seconds");
    return choice;
  }
  choice.flops = reader.number("flops");
  choice.index = reader.number("index");
  choice.time = reader.number("time");
  return choice;
}

bool visual(Modality modality) {
  return modality == Modality::image || modality == Modality::video;
}

// 2: the same, 1: a picture for a video, 0: something else.
int likeness(const std::optional<Modality>& have, Modality wanted) {
  if (!have || *have == wanted) return 2;
  return visual(*have) && visual(wanted) ? 1 : 0;
}

}  // namespace

const PatternSpec& pattern_for(const HeadChoice& choice, const Region& region) {
  if (choice.patterns.empty()) {
    throw Error(ErrorKind::internal, "pattern_for: a head without patterns");
  }
  const RegionPattern* best = nullptr;
  int most = -1;
  for (const RegionPattern& pattern : choice.patterns) {
    const int score = 3 * likeness(pattern.query, region.query_modality) +
                      likeness(pattern.key, region.key_modality);
    if (score > most) {
      most = score;
      best = &pattern;
    }
  }
  return best->spec;
}

std::string to_string(const HeadChoice& choice) {
  if (choice.boundary == Boundary::none) return to_string(choice.patterns.front().spec);
  std::string text = fmt::format("{} boundary:", boundary_name(choice.boundary));
  for (const RegionPattern& pattern : choice.patterns) {
    text += text.back() == ':' ? " " : ", ";
    if (pattern.query) text += fmt::format("{} ", modality_name(*pattern.query));
    if (pattern.key) text += fmt::format("→ {} ", modality_name(*pattern.key));
    text += to_string(pattern.spec);
  }
  return text;
}

std::optional<HeadChoice>& HeadTable::at(int layer, int head) {
  return heads.at(static_cast<size_t>(layer * shape.heads + head));
}

const std::optional<HeadChoice>& HeadTable::at(int layer, int head) const {
  return heads.at(static_cast<size_t>(layer * shape.heads + head));
}

bool HeadTable::complete() const {
  return !heads.empty() &&
         std::all_of(heads.begin(), heads.end(), [](const auto& head) { return head.has_value(); });
}

std::string to_json(const HeadTable& table) {
  Json json;
  json["format"] = "kinora-attention";
  json["version"] = version;
  json["model"] = table.shape.model;
  json["layers"] = table.shape.layers;
  json["heads"] = table.shape.heads;
  json["kv_heads"] = table.shape.kv_heads;
  json["head_size"] = table.shape.head_size;
  json["sample_tokens"] = table.sample_tokens;
  const bool by_clock = table.budget_unit.empty();
  if (by_clock) {
    json["budget_seconds"] = table.budget_seconds;
  } else {
    json["budget"] = table.budget;
    json["budget_unit"] = table.budget_unit;
  }
  if (table.origin) {
    json["origin"] = {{"budget", table.origin->budget}, {"sample", table.origin->sample}};
  }
  json["patterns"] = Json::array();
  for (int layer = 0; layer < table.shape.layers; ++layer) {
    Json heads = Json::array();
    for (int head = 0; head < table.shape.heads; ++head) {
      const auto& choice = table.at(layer, head);
      heads.push_back(choice ? write_choice(*choice, by_clock) : Json());
    }
    json["patterns"].push_back(std::move(heads));
  }
  return json.dump(1) + "\n";
}

HeadTable parse_head_table(std::string_view text, const std::string& path) {
  const bool deep = json_nests_too_deeply(text);
  const Json json = deep ? Json(Json::value_t::discarded) : Json::parse(text, nullptr, false);
  if (json.is_discarded()) {
    throw Error(ErrorKind::bad_input,
                path + ": is not JSON; correct it, or remove it and tune the model again",
                ErrorHint::make_head_table);
  }
  const Reader reader(json, path);
  if (!reader.has("format") || reader.text("format") != "kinora-attention") {
    reader.refuse("is not an attention table; `kinora tune` writes them");
  }
  if (reader.whole("version", 0, largest_count) != version) {
    reader.refuse(fmt::format("has version {}, this program reads {}; run `kinora tune` again",
                              reader.whole("version", 0, largest_count), version));
  }
  reader.allow({"format", "version", "model", "layers", "heads", "kv_heads", "head_size",
                "sample_tokens", "budget", "budget_unit", "budget_seconds", "origin", "patterns"});
  HeadTable table;
  table.shape.model = reader.text("model");
  table.shape.layers = static_cast<int>(reader.whole("layers", 1, largest_count));
  table.shape.heads = static_cast<int>(reader.whole("heads", 1, largest_count));
  table.shape.kv_heads = static_cast<int>(reader.whole("kv_heads", 1, largest_count));
  table.shape.head_size = static_cast<int>(reader.whole("head_size", 1, largest_count));
  table.sample_tokens = reader.whole("sample_tokens", 0, int64_t{1} << 40);
  const bool by_clock = reader.has("budget_seconds");
  if (by_clock) {
    table.budget_seconds = reader.number("budget_seconds");
  } else {
    table.budget = reader.number("budget");
    table.budget_unit = reader.text("budget_unit");
    if (table.budget_unit.empty()) reader.refuse("\"budget_unit\" is empty");
  }
  if (reader.has("origin")) {
    const Reader origin(reader.need("origin"), path + ": origin");
    origin.allow({"budget", "sample"});
    table.origin = {origin.text("budget"), origin.text("sample")};
  }
  const Json& layers = reader.need("patterns");
  if (!layers.is_array() || layers.size() != static_cast<size_t>(table.shape.layers)) {
    reader.refuse(fmt::format("\"patterns\" does not hold the {} layers", table.shape.layers));
  }
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const Json& heads = layers[layer];
    if (!heads.is_array() || heads.size() != static_cast<size_t>(table.shape.heads)) {
      reader.refuse(fmt::format("layer {} holds {} heads, not {}", layer,
                                heads.is_array() ? heads.size() : 0, table.shape.heads));
    }
    for (size_t head = 0; head < heads.size(); ++head) {
      if (heads[head].is_null()) {
        table.heads.emplace_back();
      } else {
        table.heads.emplace_back(read_choice(
            heads[head], fmt::format("{}: layer {}, head {}", path, layer, head), by_clock));
      }
    }
  }
  return table;
}

std::vector<std::string> head_table_places(const std::string& model_directory) {
  constexpr const char* name = "kinora-attention.json";
  std::vector<std::string> places = {join_path(model_directory, name)};
  std::string data;
  if (const char* home = std::getenv("XDG_DATA_HOME"); home != nullptr && *home != 0) {
    data = home;
  } else if (const char* user = std::getenv("HOME"); user != nullptr && *user != 0) {
    data = join_path(user, ".local/share");
  }
  if (data.empty()) return places;
  const std::filesystem::path directory(model_directory);
  const std::string model =
      (directory.has_filename() ? directory : directory.parent_path()).filename().string();
  places.push_back(join_path(join_path(join_path(data, "kinora"), model), name));
  return places;
}

HeadTable load_head_table(const FileSystem& files, const std::string& path,
                          const TableShape& expected) {
  HeadTable table = parse_head_table(files.read(path, int64_t{256} << 20), path);
  TableShape wanted = expected;
  if (wanted.heads == 0) wanted.heads = table.shape.heads;
  if (table.shape != wanted) {
    const auto described = [](const TableShape& shape) {
      return fmt::format("{} ({} layers, {}/{} heads of {})", shape.model, shape.layers,
                         shape.heads, shape.kv_heads, shape.head_size);
    };
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: made for {}, not for {}; run `kinora tune` for this model", path,
                            described(table.shape), described(wanted)));
  }
  if (!table.complete()) {
    throw Error(ErrorKind::bad_input,
                path + ": the search that writes it has not finished; run `kinora tune` again");
  }
  return table;
}

}  // namespace kinora
