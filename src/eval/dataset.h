// Questions about videos with known answers: one JSON object per line (docs/eval.md). A line
// that makes no sense is reported by its number and skipped.
#pragma once

#include <kinora/frames.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/loop_guard.h"

namespace kinora {

// A stretch of the prompt before the question: a video or picture by path, or text.
struct EvalPart {
  std::string source;  // empty for text
  std::string text;
};

// Seconds of a video.
struct TimeStretch {
  double start = 0;
  double end = 0;
};

struct EvalItem {
  int64_t line = 0;  // in its file, from 1
  std::string id;    // unique in its file; the line number when none is given
  std::vector<EvalPart> parts;
  std::string question;
  std::vector<std::string> options;  // empty: an open question
  std::vector<std::string> answers;  // accepted ones; with options, exactly one of them
  bool contains = false;             // an open answer is right where it holds an accepted one
  std::vector<std::string> events;   // for captions: what the answer should mention, in sentences
  std::string type;
  FrameChoice frames;              // of every video in front of the question
  std::optional<int64_t> length;   // that reports group by; absent: the number of frames
  std::optional<double> depth;     // of a needle, from 0 to 1
  std::vector<TimeStretch> times;  // where the answer can be seen; empty: not known
  bool all_times = false;          // all of them are needed; else any of them will do
  bool drawn = false;  // of a set that training/world made, which names kinds of questions

  // Items with the same key can share one prefill.
  std::string prefix_key() const;
};

struct EvalProblem {
  int64_t line = 0;
  std::string message;
  ErrorKind kind = ErrorKind::bad_input;
};

struct EvalData {
  std::vector<EvalItem> items;
  std::vector<EvalProblem> problems;
};

// Paths of videos are relative to the file's directory. Throws not_found for an absent file and
// bad_input when no line at all can be used.
EvalData read_eval_data(const FileSystem& files, const std::string& path, LoopGuard& guard);
EvalData read_eval_data(const FileSystem& files, const std::string& path,
                        const CancelToken& cancel = {});

// One line of the format, without the end of line.
std::string eval_line(const EvalItem& item);

}  // namespace kinora
