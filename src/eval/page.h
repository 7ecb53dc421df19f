// The page that `kinora eval --html` writes: tables, the answers that were wrong with frames of
// their videos, what could not be asked, and how to make the page again. One file, no other needed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "eval/report.h"
#include "eval/run.h"

namespace kinora {

// An answer that was not wholly right.
struct Mistake {
  const EvalItem* item = nullptr;
  std::string policy;
  std::string answer;
  double score = 0;
  std::vector<std::string> frames;  // PNG files' bytes
};

struct EvalPage {
  std::string title;
  std::string date;     // "2025-03-01 14:05 UTC"
  std::string version;  // of the program
  std::string command;  // that made it
  std::vector<ReportTable> tables;
  std::vector<Mistake> mistakes;
  int64_t more_mistakes = 0;          // that are not shown
  std::vector<std::string> problems;  // lines that could not be read, questions not asked
};

// The first `most` of an outcome, in the order of the data, and how many there are.
std::vector<Mistake> find_mistakes(const EvalOutcome& outcome, const EvalData& data, size_t most,
                                   int64_t& all);

// Gives each a few frames of its first video, near where the answer can be seen if that is known. A
// video that cannot be read gives none.
void add_frames(std::vector<Mistake>& mistakes, const CancelToken& cancel);

std::string as_html(const EvalPage& page);

}  // namespace kinora
