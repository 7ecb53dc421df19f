// Prints measurements as a table for people or as JSON for scripts.
#pragma once

#include <string>
#include <vector>

#include "common/samples.h"

namespace kinora::bench {

struct ReportRow {
  std::string name;
  std::string unit;  // "GFLOP/s", "GB/s", …
  Samples value;
  Samples share;  // of the ceiling, 1 = all of it; empty for a ceiling itself
};

class Report {
 public:
  explicit Report(std::string title) : title_(std::move(title)) {}
  void note(const std::string& key, const std::string& value) { notes_.push_back({key, value}); }
  void add(ReportRow row) { rows_.push_back(std::move(row)); }
  std::string as_text() const;
  std::string as_json() const;

 private:
  struct Note {
    std::string key, value;
  };
  std::string title_;
  std::vector<Note> notes_;
  std::vector<ReportRow> rows_;
};

}  // namespace kinora::bench
