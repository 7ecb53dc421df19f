// Asks every question of a data set and keeps every answer. Questions about the same video share
// one prefill; answers are written to the results file one by one, so that an interrupted run goes
// on where it stopped.
#pragma once

#include <kinora/session.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "eval/dataset.h"
#include "eval/evidence_score.h"

namespace kinora {

// One way of answering, to be compared with others.
struct EvalPolicy {
  std::string name;
  SessionOptions session;
};

struct EvalRecord {
  std::string policy;
  std::string id;
  std::string type;
  int64_t frames = 0;  // of all videos of the question
  int64_t length = 0;  // that reports group by
  int64_t tokens = 0;  // prefilled for this question
  std::string answer;
  double score = 0;
  double seconds = 0;  // from the question to the whole answer, without the shared prefill
  double depth = -1;   // of the needle; negative: none
  EvidenceScore evidence;
  // From the question to its first token; 0 for the first question about a video, which waits for
  // the shared prefill. What follows is set for that question alone.
  double first_token = 0;
  double prefill = 0;     // seconds
  double share = 0;       // of the multiply-adds of dense attention
  int64_t row_bytes = 0;  // keys and values held
};

struct EvalOptions {
  std::string results;  // JSON lines; empty: nothing is kept
  int64_t max_tokens = 256;
  bool evidence = false;     // judge the times that answers name
  bool wrong_video = false;  // ask about the next video of the set instead: what guessing gives
  double time_limit = 0;     // seconds after which no further video is begun; 0: none
  CancelToken cancel;
  std::function<void(int64_t done, int64_t total)> progress;
};

struct EvalOutcome {
  std::vector<EvalRecord> records;    // old and new
  int64_t resumed = 0;                // already in the results file
  std::vector<EvalProblem> problems;  // videos that could not be read, and the like
  std::string stopped;                // why the run ended early; empty: it did not
  double prefill_seconds = 0;
  int64_t prefill_tokens = 0;
};

EvalOutcome run_eval(const Engine& engine, const EvalData& data,
                     const std::vector<EvalPolicy>& policies, const EvalOptions& options);

}  // namespace kinora
