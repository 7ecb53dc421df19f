// What a Session is made of: the K/V rows of one conversation and how far the prompt has come.
// Asking again prefills only what is new. Planning a prompt is in session_prompt.cc, reading it
// into memory in session_prefill.cc, keeping budgets in session_budget.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <kinora/session.h>

#include "base/cancel.h"
#include "base/progress.h"
#include "engine/engine_state.h"
#include "engine/session_prompt.h"
#include "engine/span_recorder.h"
#include "engine/transcript.h"
#include "engine/visual_input.h"
#include "generate/generation.h"
#include "memory/retention/retention.h"

namespace kinora {

class GroupPrefill;
class VisualFeed;

class SessionState {
 public:
  SessionState(std::shared_ptr<const EngineState> engine, const SessionOptions& options);
  ~SessionState();

  // Adds an input to the next question. Opens and plans it at once.
  const VisualInput& add(const VisualRequest& request, const CancelToken& cancel);

  // See Session. Each part that is not text stands for the next new input; there must be exactly
  // as many parts as new inputs.
  Forecast forecast(const std::vector<ContentPart>& parts);
  Answer prepare(const CancelToken& cancel);
  Answer ask(const std::vector<ContentPart>& parts, const GenerateOptions& options,
             const std::function<void(std::string_view)>& on_piece);
  void clear();

  const std::vector<VisualInput>& inputs() const { return inputs_; }
  size_t new_inputs() const { return inputs_.size() - inputs_asked_; }
  const Model& model() const { return *engine_->model; }

 private:
  // A point of the conversation to come back to.
  struct Place {
    MemoryMark mark;
    std::unique_ptr<PositionCounter> positions;
    Transcript::Point said;
  };

  // What was changed to keep the budget: how many frames of an input are looked at or, without an
  // input, how much of every group stays. A later change replaces one of the same thing.
  struct Change {
    std::optional<size_t> input;
    std::string text;
  };

  // session_prompt.cc
  Prompt plan_prompt(const std::vector<ContentPart>& parts) const;
  void find_kept(Prompt& prompt) const;
  void count_tokens(Prompt& prompt) const;
  std::vector<int32_t> ids_of(const Prompt& prompt) const;
  void check_positions(const Prompt& prompt);

  // session_budget.cc
  Prompt plan_within_budget(const std::vector<ContentPart>& parts);
  Forecast cost_of(const Prompt& prompt) const;
  int64_t kept_rows(const Prompt& prompt) const;
  int64_t row_bytes_before(const Prompt& prompt) const;
  int64_t working_bytes() const;
  int64_t row_budget() const;  // bytes that rows may take; the largest number without a budget
  bool lower_ratio(const Prompt& prompt, const Forecast& cost);
  bool look_less_often(const Prompt& prompt, const Forecast& cost);
  bool has_row_budget() const;
  void note_change(Change change);
  std::vector<std::string> change_texts() const;
  std::string budget_text() const;
  int64_t answer_room(int64_t wanted);

  // session_prefill.cc
  // Runs [kept, runs_end) of the prompt; returns the last hidden row.
  Tensor prefill(const Prompt& prompt, size_t runs_end, const CancelToken& cancel,
                 SpanRecorder& spans, Answer& answer);
  std::unique_ptr<VisualFeed> start_feed(const Prompt& prompt, size_t runs_end,
                                         const CancelToken& cancel, SpanRecorder& spans);
  void end_input(VisualInput& input, const ReadReport& report, Answer& answer);

  // Leaves everything as it was when `work` throws.
  template <typename Work>
  void undo_on_failure(const Prompt& prompt, const Work& work);
  Place here() const;
  void go_back(const Place& place);
  void go_back_to(size_t place);

  std::shared_ptr<const EngineState> engine_;
  SessionOptions options_;
  Retention retention_;
  std::unique_ptr<Progress> progress_;
  MemoryBudget::Share share_;  // of what the engine's sessions may hold
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<PositionCounter> positions_;
  Conversation conversation_;            // turns answered so far
  std::vector<VisualSegment> segments_;  // in those turns, numbered as in the prompt
  Transcript transcript_;                // what is in memory, answers included
  std::vector<Place> places_;            // ends of inputs and of questions, to come back to
  std::vector<VisualInput> inputs_;      // of the whole conversation
  size_t inputs_asked_ = 0;              // those after these belong to the next question
  std::vector<Change> changes_;          // reported with the next answer
  int64_t warned_tokens_ = 0;            // of the prompt that was last reported as long
};

}  // namespace kinora
