#include "eval/import.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/error.h"
#include "base/json/json_depth.h"
#include "eval/csv.h"

namespace kinora {
namespace {

using nlohmann::json;
using Items = std::vector<EvalItem>;

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

EvalItem item_of(const ImportOptions& options, const std::string& video, std::string question,
                 std::string type) {
  EvalItem item;
  item.parts = {{options.videos.empty() ? video : join_path(options.videos, video), ""}};
  item.question = std::move(question);
  item.type = std::move(type);
  return item;
}

// Text where the authors wrote text, and digits where they wrote a number.
std::string as_text(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void import_mlvu(const json& entry, const ImportOptions& options, Items& out) {
  EvalItem item =
      item_of(options, entry.at("video"), entry.at("question"), entry.at("question_type"));
  if (entry.contains("candidates")) {
    item.options = entry.at("candidates").get<std::vector<std::string>>();
  }
  item.answers = {as_text(entry.at("answer"))};
  out.push_back(std::move(item));
}

// Video-MME, MVBench, StreamingBench and OVO-Bench in their common form: one entry a video, with a
// list of questions. `end_time` is the moment of a stream at which a question is asked.
void import_conversations(const json& entry, const ImportOptions& options, Items& out) {
  const std::string video = file_name(entry.at("video_path"));
  for (const json& turn : entry.at("conversations")) {
    std::string type = entry.value("task", std::string("question"));
    for (const char* name : {"question_type", "task"}) {
      if (turn.contains(name)) type = turn.at(name);
    }
    EvalItem item = item_of(options, video, turn.at("question"), type);
    item.options = turn.at("choices").get<std::vector<std::string>>();
    item.answers = {as_text(turn.at("answer"))};
    if (turn.contains("end_time")) item.frames.end = turn.at("end_time").get<double>();
    out.push_back(std::move(item));
  }
}

void import_longvideobench(const json& entry, const ImportOptions& options, Items& out) {
  EvalItem item = item_of(options, entry.at("video_path"), entry.at("question"),
                          entry.value("question_category", std::string("question")));
  item.options = entry.at("candidates").get<std::vector<std::string>>();
  item.answers = {item.options.at(entry.at("correct_choice").get<size_t>())};
  out.push_back(std::move(item));
}

// LVBench writes the options into the question: "…\n(A) one\n(B) two".
void import_lvbench(const json& entry, const ImportOptions& options, Items& out) {
  const std::string video = entry.at("key").get<std::string>() + ".mp4";
  for (const json& asked : entry.at("qa")) {
    const auto text = asked.at("question").get<std::string>();
    const json& types = asked.at("question_type");
    EvalItem item = item_of(options, video, text.substr(0, text.find("\n(A)")),
                            types.is_array() ? types.at(0).get<std::string>() : as_text(types));
    for (char letter = 'A'; letter <= 'Z'; ++letter) {
      const std::string mark = fmt::format("\n({}) ", letter);
      const size_t at = text.find(mark);
      if (at == std::string::npos) break;
      const size_t begin = at + mark.size();
      item.options.push_back(text.substr(begin, text.find('\n', begin) - begin));
    }
    const auto letter = asked.at("answer").get<std::string>();
    item.answers = {item.options.at(static_cast<size_t>(letter.at(0) - 'A'))};
    out.push_back(std::move(item));
  }
}

void import_detail_caption(const json& entry, const ImportOptions& options, Items& out) {
  std::string video = entry.at("video_name");
  if (video.find('.') == std::string::npos) video += ".mp4";
  EvalItem item = item_of(options, video, entry.at("question"), "caption");
  item.answers = {as_text(entry.at("answer"))};
  out.push_back(std::move(item));
}

using EntryImporter = std::function<void(const json&, const ImportOptions&, Items&)>;

const std::map<std::string, EntryImporter>& entry_importers() {
  static const std::map<std::string, EntryImporter> importers{
      {"mlvu", import_mlvu},
      {"videomme", import_conversations},
      {"mvbench", import_conversations},
      {"streamingbench", import_conversations},
      {"ovobench", import_conversations},
      {"longvideobench", import_longvideobench},
      {"lvbench", import_lvbench},
      {"videodetailcaption", import_detail_caption}};
  return importers;
}

// Values are copied and printed by calls within calls, which deep ones would exhaust.
json parse_annotations(const std::string& text) {
  if (json_nests_too_deeply(text)) throw std::invalid_argument("values nest too deeply");
  return json::parse(text);
}

// One JSON list, or one JSON object a line (LVBench).
std::vector<json> read_entries(const std::string& content) {
  const size_t first = content.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && content[first] == '[') {
    return parse_annotations(content).get<std::vector<json>>();
  }
  std::vector<json> entries;
  for (size_t begin = 0; begin < content.size();) {
    size_t end = content.find('\n', begin);
    if (end == std::string::npos) end = content.size();
    const std::string line = content.substr(begin, end - begin);
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      entries.push_back(parse_annotations(line));
    }
    begin = end + 1;
  }
  return entries;
}

// EgoSchema publishes answers {id: option number} and questions [{q_uid, question, "option 0" …}].
Items import_egoschema(const FileSystem& files, const std::string& answers_path,
                       const ImportOptions& options) {
  if (options.questions.empty()) {
    throw Error(ErrorKind::usage,
                "EgoSchema's answers hold no questions; name its questions.json too");
  }
  const json answers = parse_annotations(files.read(answers_path));
  Items out;
  for (const json& entry : parse_annotations(files.read(options.questions))) {
    const auto id = entry.at("q_uid").get<std::string>();
    if (!answers.contains(id)) continue;
    EvalItem item = item_of(options, id + ".mp4", entry.at("question"), "question");
    for (int i = 0; entry.contains(fmt::format("option {}", i)); ++i) {
      item.options.push_back(entry.at(fmt::format("option {}", i)));
    }
    item.answers = {item.options.at(answers.at(id).get<size_t>())};
    out.push_back(std::move(item));
  }
  return out;
}

// NExT-QA publishes CSV: video, …, question, answer (option number), qid, type, a0 … a4.
Items import_nextqa(const FileSystem& files, const std::string& path,
                    const ImportOptions& options) {
  Items out;
  for (const auto& row : read_csv(files.read(path))) {
    const std::string video = row.at("video");
    EvalItem item = item_of(options, video.find('.') == std::string::npos ? video + ".mp4" : video,
                            row.at("question"), row.at("type"));
    for (int i = 0; row.contains(fmt::format("a{}", i)); ++i) {
      item.options.push_back(row.at(fmt::format("a{}", i)));
    }
    item.answers = {item.options.at(static_cast<size_t>(std::stoul(row.at("answer"))))};
    out.push_back(std::move(item));
  }
  return out;
}

// An answer that is none of the options but for case and punctuation is taken as that option.
void match_option(EvalItem& item, size_t number) {
  if (item.options.empty()) return;
  for (const std::string& option : item.options) {
    if (option == item.answers.front()) return;
  }
  const auto plain = [](std::string text) {
    std::erase_if(text, [](unsigned char c) { return c == '.' || c == ' '; });
    return text;
  };
  for (const std::string& option : item.options) {
    if (plain(option) == plain(item.answers.front())) {
      item.answers = {option};
      return;
    }
  }
  throw Error(ErrorKind::bad_input,
              fmt::format("question {}: the answer '{}' is none of the options", number,
                          item.answers.front()));
}

}  // namespace

const std::vector<std::string>& import_formats() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all{"egoschema", "nextqa"};
    for (const auto& [name, importer] : entry_importers()) all.push_back(name);
    std::sort(all.begin(), all.end());
    return all;
  }();
  return names;
}

std::vector<EvalItem> import_annotations(const FileSystem& files, const std::string& path,
                                         const ImportOptions& options) {
  Items items;
  size_t number = 0;
  try {
    if (options.format == "egoschema") {
      items = import_egoschema(files, path, options);
    } else if (options.format == "nextqa") {
      items = import_nextqa(files, path, options);
    } else {
      const auto found = entry_importers().find(options.format);
      if (found == entry_importers().end()) {
        throw Error(ErrorKind::usage, fmt::format("unknown format '{}'; known: {}", options.format,
                                                  fmt::join(import_formats(), ", ")));
      }
      for (const json& entry : read_entries(files.read(path))) {
        ++number;
        found->second(entry, options, items);
      }
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorKind::bad_input, fmt::format("{} does not have {}'s form at entry {}: {}",
                                                  path, options.format, number, error.what()));
  }
  for (size_t i = 0; i < items.size(); ++i) {
    items[i].id = fmt::format("{}-{}", options.format, i + 1);
    match_option(items[i], i + 1);
  }
  return items;
}

}  // namespace kinora
