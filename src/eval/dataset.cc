#include "eval/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json/json_depth.h"

namespace kinora {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorKind::bad_input, message); }

std::string text_field(const json& object, const char* name) {
  if (!object.contains(name)) refuse(fmt::format("'{}' is missing", name));
  if (!object.at(name).is_string()) refuse(fmt::format("'{}' is not a string", name));
  return object.at(name).get<std::string>();
}

std::vector<std::string> text_list(const json& object, const char* name) {
  std::vector<std::string> list;
  if (!object.contains(name)) return list;
  if (!object.at(name).is_array()) refuse(fmt::format("'{}' is not a list", name));
  for (const json& entry : object.at(name)) {
    if (!entry.is_string()) refuse(fmt::format("'{}' holds something that is not a string", name));
    list.push_back(entry.get<std::string>());
  }
  return list;
}

double number_field(const json& object, const char* name, double otherwise) {
  if (!object.contains(name) || object.at(name).is_null()) return otherwise;
  if (!object.at(name).is_number()) refuse(fmt::format("'{}' is not a number", name));
  return object.at(name).get<double>();
}

// A number that a count can be; a fraction is cut off.
int64_t count_field(const json& object, const char* name, int64_t least) {
  constexpr double most = 1e15;
  const double value = number_field(object, name, static_cast<double>(least));
  if (!(value >= static_cast<double>(least) && value <= most)) {
    refuse(fmt::format("'{}' is not a number from {} on", name, least));
  }
  return static_cast<int64_t>(value);
}

std::string resolve(const std::string& directory, const std::string& source) {
  if (source.empty() || source.front() == '/' || source.find("://") != std::string::npos) {
    return source;
  }
  return join_path(directory, source);
}

std::vector<EvalPart> read_parts(const json& object, const std::string& directory) {
  std::vector<EvalPart> parts;
  if (object.contains("parts")) {
    if (!object.at("parts").is_array()) refuse("'parts' is not a list");
    for (const json& part : object.at("parts")) {
      if (!part.is_object()) refuse("'parts' holds something that is not an object");
      if (part.contains("text")) {
        parts.push_back({"", text_field(part, "text")});
      } else {
        const char* kind = part.contains("image") ? "image" : "video";
        parts.push_back({resolve(directory, text_field(part, kind)), ""});
      }
    }
  }
  for (const char* kind : {"video", "image"}) {
    if (object.contains(kind) && !object.at(kind).is_null()) {
      parts.push_back({resolve(directory, text_field(object, kind)), ""});
    }
  }
  return parts;
}

// The right answer: text, a list of accepted texts, or with options a letter's place or its text.
std::vector<std::string> read_answers(const json& object, const std::vector<std::string>& options) {
  if (!object.contains("answer")) refuse("'answer' is missing");
  const json& answer = object.at("answer");
  if (options.empty()) {
    if (answer.is_array()) return text_list(object, "answer");
    if (answer.is_number_integer()) return {std::to_string(answer.get<int64_t>())};
    return {text_field(object, "answer")};
  }
  if (answer.is_number_integer()) {
    const auto index = answer.get<int64_t>();
    if (index < 0 || index >= static_cast<int64_t>(options.size())) {
      refuse(fmt::format("'answer' is option {}, but there are {} options", index, options.size()));
    }
    return {options[static_cast<size_t>(index)]};
  }
  const std::string text = text_field(object, "answer");
  if (std::find(options.begin(), options.end(), text) != options.end()) return {text};
  if (text.size() == 1 && text[0] >= 'A' && text[0] < static_cast<char>('A' + options.size())) {
    return {options[static_cast<size_t>(text[0] - 'A')]};
  }
  refuse("'answer' is none of the options");
}

bool flag_field(const json& object, const char* name) {
  if (!object.contains(name)) return false;
  if (!object.at(name).is_boolean()) refuse(fmt::format("'{}' is not true or false", name));
  return object.at(name).get<bool>();
}

// The stronger field wins; the others then only tell the length.
FrameChoice read_frames(const json& object) {
  FrameChoice choice;
  if (object.contains("frames")) {
    choice = FrameChoice::evenly(count_field(object, "frames", 1));
  }
  if (object.contains("fps")) choice = FrameChoice::rate(number_field(object, "fps", 1));
  if (flag_field(object, "all_frames")) choice = FrameChoice::all();
  return choice.within(number_field(object, "start", choice.start),
                       number_field(object, "end", choice.end));
}

std::vector<TimeStretch> read_times(const json& object) {
  std::vector<TimeStretch> times;
  if (!object.contains("times")) return times;
  const json& list = object.at("times");
  if (!list.is_array()) refuse("'times' is not a list");
  for (const json& pair : list) {
    const bool two =
        pair.is_array() && pair.size() == 2 && pair[0].is_number() && pair[1].is_number();
    if (!two || pair[0] > pair[1]) refuse("'times' holds something that is not [start, end]");
    times.push_back({pair[0].get<double>(), pair[1].get<double>()});
  }
  return times;
}

json parse_line(std::string_view text) {
  if (json_nests_too_deeply(text)) refuse("values nest too deeply");
  return json::parse(text);
}

EvalItem read_item(const json& object, const std::string& directory, int64_t line) {
  if (!object.is_object()) refuse("the line is not a JSON object");
  EvalItem item;
  item.line = line;
  item.id = object.contains("id") && object.at("id").is_string()
                ? object.at("id").get<std::string>()
                : std::to_string(line);
  item.parts = read_parts(object, directory);
  item.question = text_field(object, "question");
  item.options = text_list(object, "options");
  if (item.options.size() > 26) refuse("there are more than 26 options");
  item.events = text_list(object, "events");
  if (item.events.empty() || object.contains("answer")) {
    item.answers = read_answers(object, item.options);
  }
  item.type = object.contains("type") ? text_field(object, "type") : "question";
  item.frames = read_frames(object);
  if (object.contains("length")) {
    item.length = count_field(object, "length", 0);
  }
  item.drawn = object.contains("kind");
  if (object.contains("depth")) {
    item.depth = number_field(object, "depth", 0);
    if (!(*item.depth >= 0 && *item.depth <= 1)) refuse("'depth' is not between 0 and 1");
  }
  item.times = read_times(object);
  item.all_times = flag_field(object, "all_times");
  item.contains = flag_field(object, "contains");
  return item;
}

}  // namespace

std::string EvalItem::prefix_key() const {
  std::string key = fmt::format("{} {} {} {} {}", frames.start, frames.end,
                                static_cast<int>(frames.way), frames.fps, frames.count);
  for (const EvalPart& part : parts) key += fmt::format("\n{}\t{}", part.source, part.text);
  return key;
}

EvalData read_eval_data(const FileSystem& files, const std::string& path, LoopGuard& guard) {
  const std::string content = files.read(path);
  std::string directory = std::filesystem::path(path).parent_path().string();
  if (directory.empty()) directory = ".";
  EvalData data;
  std::set<std::string> ids;
  int64_t line = 0;
  for (size_t begin = 0; begin < content.size();) {
    size_t end = content.find('\n', begin);
    if (end == std::string::npos) end = content.size();
    const std::string_view text(content.data() + begin, end - begin);
    begin = end + 1;
    ++line;
    guard.turn(static_cast<int64_t>(text.size()) + 1);
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      EvalItem item = read_item(parse_line(text), directory, line);
      if (!ids.insert(item.id).second) refuse("the id '" + item.id + "' was used before");
      data.items.push_back(std::move(item));
    } catch (const json::exception&) {
      data.problems.push_back({line, "is not valid JSON", ErrorKind::bad_input});
    } catch (const Error& error) {
      data.problems.push_back({line, error.what(), error.kind()});
    }
  }
  if (data.items.empty()) {
    refuse(data.problems.empty()
               ? path + " holds no question"
               : fmt::format("{} holds no usable question; line {}: {}", path,
                             data.problems.front().line, data.problems.front().message));
  }
  return data;
}

EvalData read_eval_data(const FileSystem& files, const std::string& path,
                        const CancelToken& cancel) {
  LoopGuard guard(cancel);
  return read_eval_data(files, path, guard);
}

std::string eval_line(const EvalItem& item) {
  json out;
  out["id"] = item.id;
  if (item.parts.size() == 1 && !item.parts.front().source.empty()) {
    out["video"] = item.parts.front().source;
  } else if (!item.parts.empty()) {
    for (const EvalPart& part : item.parts) {
      out["parts"].push_back(part.source.empty() ? json{{"text", part.text}}
                                                 : json{{"video", part.source}});
    }
  }
  out["question"] = item.question;
  if (!item.options.empty()) out["options"] = item.options;
  if (item.answers.size() == 1) out["answer"] = item.answers.front();
  if (item.answers.size() > 1) out["answer"] = item.answers;
  if (item.contains) out["contains"] = true;
  if (!item.events.empty()) out["events"] = item.events;
  out["type"] = item.type;
  using Way = FrameChoice::Way;
  const FrameChoice& frames = item.frames;
  if (frames.start > 0) out["start"] = frames.start;
  if (frames.end < FrameChoice{}.end) out["end"] = frames.end;
  if (frames.way == Way::rate) out["fps"] = frames.fps;
  if (frames.way == Way::count) out["frames"] = frames.count;
  if (frames.way == Way::all) out["all_frames"] = true;
  if (item.length) out["length"] = *item.length;
  if (item.depth) out["depth"] = *item.depth;
  for (const TimeStretch& time : item.times) out["times"].push_back({time.start, time.end});
  if (item.all_times) out["all_times"] = true;
  return out.dump(-1, ' ', false, json::error_handler_t::replace);  // paths may hold any bytes
}

}  // namespace kinora
