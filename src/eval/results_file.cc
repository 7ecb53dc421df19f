#include "eval/results_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/files/errno_kind.h"
#include "base/json/json_depth.h"

namespace kinora {
namespace {

using nlohmann::json;

constexpr std::string_view first_line = "{\"format\":\"kinora eval results\",\"version\":2}\n";

json to_json(const EvalRecord& record, const std::string& key) {
  json line{{"key", key},
            {"policy", record.policy},
            {"id", record.id},
            {"type", record.type},
            {"frames", record.frames},
            {"length", record.length},
            {"tokens", record.tokens},
            {"answer", record.answer},
            {"score", record.score},
            {"seconds", record.seconds}};
  if (record.depth >= 0) line["depth"] = record.depth;
  if (record.evidence.judged) {
    line["evidence"] = {{"several", record.evidence.several},
                        {"found", record.evidence.found},
                        {"guessed", record.evidence.guessed},
                        {"length", record.evidence.length}};
  }
  if (record.first_token > 0) line["first_token"] = record.first_token;
  if (record.prefill > 0) {
    line["prefill"] = record.prefill;
    line["share"] = record.share;
    line["row_bytes"] = record.row_bytes;
  }
  return line;
}

EvalRecord from_json(const json& line) {
  EvalRecord record;
  record.policy = line.at("policy");
  record.id = line.at("id");
  record.type = line.at("type");
  record.frames = line.at("frames");
  record.tokens = line.at("tokens");
  record.answer = line.at("answer");
  record.score = line.at("score");
  record.seconds = line.at("seconds");
  record.length = line.value("length", record.frames);
  record.depth = line.value("depth", record.depth);
  if (line.contains("evidence")) {
    const json& evidence = line.at("evidence");
    record.evidence = {true, evidence.at("several"), evidence.at("found"), evidence.at("guessed"),
                       evidence.at("length")};
  }
  record.first_token = line.value("first_token", record.first_token);
  record.prefill = line.value("prefill", record.prefill);
  record.share = line.value("share", record.share);
  record.row_bytes = line.value("row_bytes", record.row_bytes);
  return record;
}

}  // namespace

ResultsFile::ResultsFile(const std::string& path) : path_(path) {
  if (path.empty()) return;
  std::string content;
  if (real_files().is_file(path)) {
    content = real_files().read(path);
    // Nothing is written to a file before all of it has been read and understood.
    const std::string_view head = std::string_view(content).substr(0, first_line.size());
    if (!first_line.starts_with(head)) {
      throw Error(ErrorKind::bad_input,
                  path +
                      " is no file of results that this version keeps, and it stays as it is; "
                      "give the name of a new file");
    }
    read_lines(content);
  } else if (real_files().is_directory(path)) {
    throw Error(ErrorKind::bad_input, path + " is a directory; give the name of a file");
  }
  // Only whole lines count; what follows the last line end is the torn end of a crash.
  const size_t whole = content.find_last_of('\n') + 1;  // npos + 1 is 0
  if (whole != content.size()) std::filesystem::resize_file(path, whole);
  file_.reset(std::fopen(path.c_str(), "ab"));
  if (!file_) {
    throw Error(kind_of_errno(errno), "cannot write " + path + ": " + std::strerror(errno));
  }
  if (whole == 0) write(std::string(first_line));
}

void ResultsFile::read_lines(const std::string& content) {
  int64_t number = 1;
  for (size_t begin = first_line.size(); begin < content.size();) {
    const size_t end = content.find('\n', begin);
    if (end == std::string::npos) return;
    ++number;
    const auto text = std::string_view(content).substr(begin, end - begin);
    const auto refuse = [&] {
      throw Error(ErrorKind::bad_input, path_ + " line " + std::to_string(number) +
                                            " is not a result; give another file");
    };
    if (json_nests_too_deeply(text)) refuse();
    try {
      const json line = json::parse(text);
      kept_.insert_or_assign(line.at("key").get<std::string>(), from_json(line));
    } catch (const json::exception&) {
      refuse();
    }
    begin = end + 1;
  }
}

const EvalRecord* ResultsFile::find(const std::string& key) const {
  const auto found = kept_.find(key);
  return found == kept_.end() ? nullptr : &found->second;
}

void ResultsFile::append(const std::string& key, const EvalRecord& record) {
  // An answer cut within a character is no UTF-8.
  constexpr auto replace = json::error_handler_t::replace;
  if (file_) write(to_json(record, key).dump(-1, ' ', false, replace) + "\n");
}

void ResultsFile::write(const std::string& line) {
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() ||
      std::fflush(file_.get()) != 0) {
    throw Error(kind_of_errno(errno), "cannot write " + path_ + ": " + std::strerror(errno));
  }
}

}  // namespace kinora
