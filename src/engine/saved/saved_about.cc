#include "engine/saved/saved_about.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/files/byte_stream.h"
#include "base/files/content_key.h"
#include "base/json/json_depth.h"
#include "engine/tokens/tokens.h"
#include "memory/retention/retention.h"

namespace kinora {
namespace {

using Json = nlohmann::ordered_json;

Json pair_of(const Size& size) { return {size.width, size.height}; }

Size size_of(const nlohmann::json& pair) {
  return {pair.at(0).get<int64_t>(), pair.at(1).get<int64_t>()};
}

Json plan_json(const VisualPlan& plan) {
  return {{"kind", modality_name(plan.source.modality)},
          {"source_size", pair_of(plan.source.size)},
          {"frames", plan.source.frames},
          {"sampled_fps", plan.source.sampled_fps},
          {"images_in_prompt", plan.source.images_in_prompt},
          {"frame_size", pair_of(plan.frame_size)},
          {"frames_per_unit", plan.frames_per_unit},
          {"units", plan.units},
          {"tokens_per_unit", plan.tokens_per_unit},
          {"trailing_tokens", plan.trailing_tokens},
          {"seconds_per_unit", plan.seconds_per_unit},
          {"grid", pair_of(plan.grid)},
          {"units_apart", plan.units_apart}};
}

VisualPlan plan_of(const nlohmann::json& json) {
  VisualPlan plan;
  plan.source.modality =
      json.at("kind") == modality_name(Modality::image) ? Modality::image : Modality::video;
  plan.source.size = size_of(json.at("source_size"));
  plan.source.frames = json.at("frames").get<int64_t>();
  plan.source.sampled_fps = json.at("sampled_fps").get<double>();
  plan.source.images_in_prompt = json.at("images_in_prompt").get<int64_t>();
  plan.frame_size = size_of(json.at("frame_size"));
  plan.frames_per_unit = json.at("frames_per_unit").get<int64_t>();
  plan.units = json.at("units").get<int64_t>();
  plan.tokens_per_unit = json.at("tokens_per_unit").get<int64_t>();
  plan.trailing_tokens = json.at("trailing_tokens").get<int64_t>();
  plan.seconds_per_unit = json.at("seconds_per_unit").get<double>();
  plan.grid = size_of(json.at("grid"));
  plan.units_apart = json.at("units_apart").get<bool>();
  return plan;
}

// What was sampled, and what is read along.
std::string pack_frames(const SavedInput& input) {
  ByteWriter out;
  std::vector<int64_t> indices;
  std::vector<double> times;
  for (const SampledFrame& sample : input.samples) {
    indices.push_back(sample.index);
    times.push_back(sample.time);
  }
  out.put_all(indices);
  out.put_all(times);
  out.put(static_cast<uint64_t>(input.subtitles.size()));
  for (const Subtitle& subtitle : input.subtitles) {
    out.put(subtitle.begin);
    out.put(subtitle.end);
    out.put(std::string_view(subtitle.text));
  }
  return out.bytes();
}

void unpack_frames(ByteReader in, SavedInput& input) {
  const auto indices = in.all<int64_t>();
  const auto times = in.all<double>();
  if (indices.size() != times.size()) in.refuse("has frames without a time");
  for (size_t i = 0; i < times.size(); ++i) input.samples.push_back({indices[i], times[i]});
  const auto subtitles = in.get<uint64_t>();
  for (uint64_t i = 0; i < subtitles; ++i) {
    Subtitle subtitle;
    subtitle.begin = in.get<double>();
    subtitle.end = in.get<double>();
    subtitle.text = in.text();
    input.subtitles.push_back(std::move(subtitle));
  }
  in.end();
}

std::string frames_section(size_t input) { return fmt::format("input/{}", input); }
std::string kept_section(size_t input) { return fmt::format("input/{}/kept", input); }

bool leaves_tokens_out(const SavedAbout& about) { return about.token_choice != "all"; }

bool increases_below(std::span<const int32_t> places, int64_t end) {
  int64_t before = -1;
  for (const int32_t place : places) {
    if (place <= std::exchange(before, place)) return false;
  }
  return before < end;
}

// Whether sizes are those of what is in the file, so that no more is ever made room for.
bool makes_sense(const SavedInput& input, bool some_left_out) {
  const VisualPlan& plan = input.plan;
  constexpr int64_t most = int64_t{1} << 31;
  const auto within = [&](int64_t value, int64_t least) { return value >= least && value < most; };
  if (!within(plan.units, 1) || !within(plan.tokens_per_unit, 1) ||
      !within(plan.trailing_tokens, 0) || !within(plan.frames_per_unit, 1) ||
      !within(plan.grid.width, 0) || !within(plan.grid.height, 0) ||
      !within(plan.source.frames, 0)) {
    return false;
  }
  if (plan.units > most / plan.tokens_per_unit ||
      plan.grid.width * plan.grid.height > plan.tokens_per_unit) {
    return false;
  }
  // Every unit has frames, and only the last may have fewer.
  const int64_t samples = std::ssize(input.samples);
  if (samples <= (plan.units - 1) * plan.frames_per_unit ||
      samples > plan.units * plan.frames_per_unit) {
    return false;
  }
  if (!some_left_out) return true;  // all tokens are in memory, which is looked at later
  // At least as many as one unit's stay of the first group, and all that trail.
  const int64_t kept = std::ssize(input.kept);
  return plan.tokens_per_unit <= kept && plan.trailing_tokens <= kept &&
         increases_below(input.kept, plan.tokens());
}

// A file that passed its checksums can still have been written to mislead.
void check(const Archive& in, const SavedAbout& about) {
  for (const SavedInput& input : about.inputs) {
    if (makes_sense(input, leaves_tokens_out(about))) continue;
    in.refuse("says of its inputs what cannot be: make it again");
  }
}

// Choices as they are written to be compared: earlier files have them as a person wrote them. One
// that is not known stays as it is, and whoever opens the file is told.
template <typename Parse>
std::string spelled(const std::string& text, const Parse& parse) {
  try {
    return to_string(parse(text));
  } catch (const Error&) {
    return text;
  }
}

}  // namespace

std::string SavedAbout::key() const {
  ContentKey key("kinora memory 1");
  const auto add = [&](std::string_view text) { key.add(text.data(), text.size()); };
  for (const std::string& text : {model_key, system, row_type, memory, retain, attention}) {
    add(text);
  }
  // Files without the choice were made when there was none.
  if (leaves_tokens_out(*this)) add(token_choice);
  key.add(frames_per_group);
  key.add(max_group_tokens);
  for (const SavedInput& input : inputs) {
    if (input.content.empty() || taken_in) return "";
    add(input.content);
    add(plan_json(input.plan).dump());
    add(pack_frames(input));
  }
  return key.text();
}

MemoryFile SavedAbout::describe(const std::string& path, int64_t bytes) const {
  MemoryFile file;
  file.path = path;
  file.key = key();
  file.written = written;
  file.bytes = bytes;
  file.tokens = tokens;
  file.model = model;
  file.family = family;
  file.model_key = model_key;
  file.model_directory = directory;
  file.system = system;
  file.row_type = row_type;
  file.memory = memory;
  file.token_choice = token_choice;
  file.retain = retain;
  file.attention = attention;
  for (const SavedInput& input : inputs) {
    const VisualPlan& plan = input.plan;
    file.inputs.push_back({input.source, input.content,
                           std::string(modality_name(plan.source.modality)), plan.frame_size.width,
                           plan.frame_size.height, std::ssize(input.samples),
                           input.samples.front().time, input.samples.back().time,
                           leaves_tokens_out(*this) ? std::ssize(input.kept) : plan.tokens()});
  }
  return file;
}

void write_about(ArchiveWriter& out, const SavedAbout& about) {
  Json inputs = Json::array();
  for (size_t i = 0; i < about.inputs.size(); ++i) {
    const SavedInput& input = about.inputs[i];
    inputs.push_back(
        {{"source", input.source}, {"content", input.content}, {"look", plan_json(input.plan)}});
    out.add(frames_section(i), pack_frames(input));
    if (!leaves_tokens_out(about)) continue;
    ByteWriter kept;
    kept.put_all(input.kept);
    out.add(kept_section(i), kept.bytes());
  }
  const Json json = {{"written", about.written},
                     {"model",
                      {{"name", about.model},
                       {"family", about.family},
                       {"key", about.model_key},
                       {"directory", about.directory}}},
                     {"policies",
                      {{"memory", about.memory},
                       {"tokens", about.token_choice},
                       {"retain", about.retain},
                       {"row_type", about.row_type},
                       {"attention", about.attention},
                       {"frames_per_group", about.frames_per_group},
                       {"max_group_tokens", about.max_group_tokens}}},
                     {"system", about.system},
                     {"tokens", about.tokens},
                     {"taken_in", about.taken_in},
                     {"closed", about.closed},
                     {"inputs", inputs}};
  out.add("about", json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

SavedAbout read_about(const Archive& in) {
  const std::string text = in.read("about");
  SavedAbout about;
  if (json_nests_too_deeply(text)) in.refuse("is not described in a way that kinora reads");
  try {
    const auto json = nlohmann::json::parse(text);
    about.written = json.at("written").get<int64_t>();
    const auto& model = json.at("model");
    about.model = model.at("name").get<std::string>();
    about.family = model.at("family").get<std::string>();
    about.model_key = model.at("key").get<std::string>();
    about.directory = model.at("directory").get<std::string>();
    const auto& policies = json.at("policies");
    about.memory = policies.at("memory").get<std::string>();
    about.token_choice = spelled(policies.value("tokens", "all"), parse_tokens);
    about.retain = spelled(policies.at("retain").get<std::string>(), parse_retention);
    about.row_type = policies.at("row_type").get<std::string>();
    about.attention = policies.at("attention").get<std::string>();
    about.frames_per_group = policies.at("frames_per_group").get<int64_t>();
    about.max_group_tokens = policies.at("max_group_tokens").get<int64_t>();
    about.system = json.at("system").get<std::string>();
    about.tokens = json.at("tokens").get<int64_t>();
    about.taken_in = json.at("taken_in").get<bool>();
    about.closed = json.at("closed").get<bool>();
    const auto& inputs = json.at("inputs");
    for (size_t i = 0; i < inputs.size(); ++i) {
      SavedInput input;
      input.source = inputs[i].at("source").get<std::string>();
      input.content = inputs[i].at("content").get<std::string>();
      input.plan = plan_of(inputs[i].at("look"));
      const std::string frames = in.read(frames_section(i));
      unpack_frames(ByteReader(frames, in.path()), input);
      if (leaves_tokens_out(about)) {
        const std::string bytes = in.read(kept_section(i));
        ByteReader kept(bytes, in.path());
        input.kept = kept.all<int32_t>();
        kept.end();
      }
      about.inputs.push_back(std::move(input));
    }
  } catch (const nlohmann::json::exception&) {
    in.refuse("is not described in a way that kinora reads: make it again");
  }
  if (about.inputs.empty()) in.refuse("holds no input");
  check(in, about);
  return about;
}

MemoryFile describe_memory(const std::string& path) {
  const auto file = Archive::open(path);
  return read_about(*file).describe(path, file->bytes());
}

bool is_memory_file(const std::string& path) { return Archive::is_one(path); }

}  // namespace kinora
