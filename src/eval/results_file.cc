#include "eval/results_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace kinora {
namespace {

using nlohmann::json;

json to_json(const EvalRecord& record, const std::string& setting) {
  json line{{"setting", setting},       {"policy", record.policy}, {"id", record.id},
            {"type", record.type},      {"frames", record.frames}, {"length", record.length},
            {"tokens", record.tokens},  {"answer", record.answer}, {"score", record.score},
            {"seconds", record.seconds}};
  if (record.depth >= 0) line["depth"] = record.depth;
  if (record.evidence.judged) {
    line["evidence"] = {{"several", record.evidence.several},
                        {"found", record.evidence.found},
                        {"guessed", record.evidence.guessed},
                        {"length", record.evidence.length}};
  }
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
  record.prefill = line.value("prefill", record.prefill);
  record.share = line.value("share", record.share);
  record.row_bytes = line.value("row_bytes", record.row_bytes);
  return record;
}

}  // namespace

ResultsFile::ResultsFile(const std::string& path, std::string setting)
    : path_(path), setting_(std::move(setting)) {
  if (path.empty()) return;
  if (real_files().is_file(path)) {
    const std::string content = real_files().read(path);
    // Only whole lines count; what follows the last line end is the torn end of a crash.
    const size_t whole = content.find_last_of('\n') + 1;  // npos + 1 is 0
    if (whole != content.size()) std::filesystem::resize_file(path, whole);
    int64_t number = 0;
    for (size_t begin = 0; begin < whole;) {
      const size_t end = content.find('\n', begin);
      ++number;
      try {
        const json line = json::parse(content.substr(begin, end - begin));
        if (line.at("setting") == setting_) earlier_.push_back(from_json(line));
      } catch (const json::exception&) {
        throw Error(ErrorKind::bad_input, path + " line " + std::to_string(number) +
                                              " is not a result; give another file");
      }
      begin = end + 1;
    }
  }
  for (const EvalRecord& record : earlier_) known_.emplace(record.policy, record.id);
  file_.reset(std::fopen(path.c_str(), "ab"));
  if (!file_)
    throw Error(ErrorKind::not_found, "cannot write " + path + ": " + std::strerror(errno));
}

bool ResultsFile::holds(const std::string& policy, const std::string& id) const {
  return known_.contains({policy, id});
}

void ResultsFile::append(const EvalRecord& record) {
  if (!file_) return;
  const std::string line = to_json(record, setting_).dump() + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() ||
      std::fflush(file_.get()) != 0) {
    throw Error(ErrorKind::resource, "cannot write " + path_ + ": " + std::strerror(errno));
  }
}

}  // namespace kinora
