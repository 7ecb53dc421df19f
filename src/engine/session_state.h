// What a Session is made of: the K/V rows of one conversation and how far the prompt has come.
// Asking again prefills only what is new.
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
#include "engine/visual_input.h"
#include "generate/generator.h"

namespace kinora {

class SessionState {
 public:
  SessionState(std::shared_ptr<const EngineState> engine, const SessionOptions& options);
  ~SessionState();

  // Adds an input to the next question. Opens and plans it at once.
  const VisualInput& add(const VisualRequest& request, const CancelToken& cancel);

  // Each part that is not text stands for the next of the new inputs, and there must be as many of
  // them. See Session::ask.
  Answer ask(std::vector<ContentPart> parts, const GenerateOptions& options,
             const std::function<void(std::string_view)>& on_piece);

  // See Session::clear.
  void clear();

  size_t new_inputs() const { return inputs_.size() - inputs_asked_; }
  const Model& model() const { return *engine_->model; }

 private:
  struct Prompt;
  struct Place;  // a point of the conversation to come back to

  Prompt plan_prompt(std::vector<ContentPart> parts) const;
  Tensor prefill(const Prompt& prompt, const CancelToken& cancel, Answer& answer);
  void encode_visual(VisualInput& input, class GroupPrefill& groups, const CancelToken& cancel,
                     Answer& answer);
  Place here() const;
  void go_back(const Place& place);
  void go_back_to(size_t place);

  std::shared_ptr<const EngineState> engine_;
  SessionOptions options_;
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<RowStore> store_;
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<PositionCounter> positions_;
  Conversation conversation_;        // turns answered so far
  std::vector<PromptRun> done_;      // runs whose rows are in the store, answers included
  std::vector<int32_t> history_;     // their text tokens
  std::vector<Place> places_;        // ends of inputs and of questions, to come back to
  std::vector<VisualInput> inputs_;  // of the whole conversation, numbered as in the prompt
  size_t inputs_asked_ = 0;          // those after these belong to the next question
};

}  // namespace kinora
