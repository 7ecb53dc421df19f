// The answers of an evaluation on disk: one JSON object per line, appended as they come. The first
// line says that it is such a file; any other file is refused and left as it is. A line that was
// cut short by a crash is dropped when the file is opened again.
#pragma once

#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "eval/run.h"

namespace kinora {

class ResultsFile {
 public:
  // An empty path keeps nothing.
  explicit ResultsFile(const std::string& path);

  // The answer that was kept under this key (answer_key.h), or null.
  const EvalRecord* find(const std::string& key) const;
  // Written and flushed before it returns; throws a resource error when the disk is full.
  void append(const std::string& key, const EvalRecord& record);

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  void read_lines(const std::string& content);
  void write(const std::string& line);

  std::string path_;
  std::unique_ptr<std::FILE, Closer> file_;  // null: nothing is kept
  std::map<std::string, EvalRecord> kept_;
};

}  // namespace kinora
