// The answers of an evaluation on disk: one JSON object per line, appended as they come. A line
// that was cut short by a crash is dropped when the file is opened again.
#pragma once

#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "eval/run.h"

namespace kinora {

class ResultsFile {
 public:
  // `setting` separates runs that must not share answers: model, limits, control. Records of
  // another setting stay in the file and are ignored.
  ResultsFile(const std::string& path, std::string setting);

  const std::vector<EvalRecord>& earlier() const { return earlier_; }
  bool holds(const std::string& policy, const std::string& id) const;
  // Written and flushed before it returns; throws a resource error when the disk is full.
  void append(const EvalRecord& record);

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::string setting_;
  std::unique_ptr<std::FILE, Closer> file_;  // null: nothing is kept
  std::vector<EvalRecord> earlier_;
  std::set<std::pair<std::string, std::string>> known_;
};

}  // namespace kinora
