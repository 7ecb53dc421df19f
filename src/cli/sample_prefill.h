// A video with a question, prefilled once as a single group through an attention of the caller's
// choice: how `tune` and `inspect attention` get to see a model's queries, keys and values.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <kinora/engine.h>

#include "attention/attention.h"
#include "base/cancel.h"
#include "base/progress.h"
#include "engine/engine_state.h"
#include "engine/visual_input.h"
#include "eval/dataset.h"

namespace kinora::cli {

struct SampleFlags {
  EngineOptions engine;
  std::vector<std::string> sources;
  std::vector<std::string> texts;  // after the source of the same number; fewer or none will do
  std::string question = "Describe what happens.";
  FrameChoice frames;
  int64_t max_pixels = 0;

  // --model (returned), --fps, …; the sources are the command's own.
  CLI::Option* add_to(CLI::App& command);
  // Takes sources, texts and question of an item of a set. False, and nothing taken, where text
  // stands in front of the first source; an item of text only has all of it in the question.
  bool take_prompt(const EvalItem& item);
};

class Sample {
 public:
  Sample(const EngineState& engine, const SampleFlags& flags, Progress& progress,
         const CancelToken& cancel);

  int64_t tokens() const { return tokens_; }
  // Tokens of one unit of the first video, for patterns that follow frames; 64 without one.
  int32_t frame_stride() const;

  // Runs the decoder over the sample, as one group or in groups of about this many tokens. Passes
  // on whatever `attention` throws.
  void prefill(Attention& attention, int64_t group_tokens = std::numeric_limits<int64_t>::max());

 private:
  const EngineState& engine_;
  Progress& progress_;
  CancelToken cancel_;
  std::vector<VisualInput> inputs_;
  std::vector<PromptRun> runs_;
  int64_t tokens_ = 0;
};

}  // namespace kinora::cli
