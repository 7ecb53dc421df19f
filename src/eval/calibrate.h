// Chooses the heads of a model that point at what an answer is about
// (engine/evidence/evidence_heads.h), on questions whose times are known.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "attention/row_mass.h"
#include "base/cancel.h"
#include "engine/engine_state.h"
#include "engine/evidence/evidence.h"
#include "eval/dataset.h"

namespace kinora {

// Where all heads looked when one question was answered.
struct LookedAt {
  HeadEvidence heads;
  std::vector<TimeStretch> times;
};

struct CalibrateOptions {
  int64_t max_tokens = 64;
  size_t most_heads = 6;
  CancelToken cancel;
  std::function<void(int64_t done, int64_t total)> progress;
};

// Asks every question with one video and one fact whose times are known.
std::vector<LookedAt> look_with_all_heads(const std::shared_ptr<const EngineState>& engine,
                                          const EvalData& data, const CalibrateOptions& options);

// How often a choice of heads names the time, and how much of its attention is there.
struct Pointing {
  double named = 0;
  double inside = 0;
  double value() const { return named + inside / 20; }  // what the choice is made by
};
// `heads` are numbers among [layers × heads].
Pointing pointing_of(const std::vector<LookedAt>& looked, const std::vector<size_t>& heads);

// The best head, then whichever makes the choice better, one by one.
std::vector<size_t> choose_heads(const std::vector<LookedAt>& looked, size_t most);

}  // namespace kinora
