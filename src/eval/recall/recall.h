// How much of dense attention every sparse policy captures on the first prompts of a set, read as
// the run reads them. Used by `kinora eval --recall`.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/cancel.h"
#include "eval/recall/judge.h"
#include "eval/run.h"

namespace kinora {

struct RecallOptions {
  int64_t prompts = 1;  // different ones: questions that share a prefix count once
  int64_t every = 1;    // group of tokens is judged
  CancelToken cancel;
  std::function<void(int64_t done, int64_t total)> progress;
};

struct Recall {
  std::vector<Judgement> judgements;  // in the order of the policies
  int64_t tokens = 0;                 // of a prompt, on average
};

// Policies that read alike (all but the attention is the same) are judged on one prefill, with
// dense attention. Throws what reading a prompt throws.
Recall measure_recall(const Engine& engine, const EvalData& data,
                      const std::vector<EvalPolicy>& policies, const RecallOptions& options);

}  // namespace kinora
