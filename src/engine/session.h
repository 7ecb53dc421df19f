// One conversation about some videos and pictures. The session owns the K/V rows; asking again
// prefills only what is new. Used by one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "base/progress.h"
#include "engine/engine.h"
#include "engine/visual_input.h"
#include "generate/generator.h"

namespace kinora {

struct SessionOptions {
  std::optional<DType> row_dtype;   // f32 or bf16; default: bf16 for 16-bit weights, else f32
  int64_t frames_per_group = 16;    // decoded, encoded and prefilled together
  int64_t max_group_tokens = 2048;  // a prefill group is closed when it reaches this
  std::string system;               // system prompt; empty: the chat template's own
  VideoLimits video_limits;
  Progress* progress = nullptr;  // stages "decode", "prefill", "generate"
  CancelToken cancel;
};

// Seconds by stage. Decoding runs beside the others, so the parts may exceed the total.
struct Timings {
  double decode = 0;       // CPU seconds of the decoding threads
  double decode_wait = 0;  // that the rest of the road waited for frames
  double vision = 0;
  double prefill = 0;
  double generate = 0;
  double first_token = 0;  // from the call to the first token
  double total = 0;
};

struct Answer {
  std::string text;
  StopReason reason = StopReason::max_tokens;
  std::vector<int32_t> ids;
  int64_t frames = 0;  // read for this question
  int64_t visual_tokens = 0;
  int64_t prompt_tokens = 0;  // prefilled for this question, visual ones included
  int64_t row_bytes = 0;      // keys and values held after it
  Timings timings;
  std::vector<std::string> warnings;  // damaged stretches, and the like
};

class Session {
 public:
  Session(std::shared_ptr<const Engine> engine, const SessionOptions& options);
  ~Session();

  // Adds an input to the next question, in front of its text. Opens and plans it at once.
  const VisualInput& add(const VisualRequest& request);

  // Throws a usage error for an empty question or one that is not UTF-8, and refuses, before any
  // work starts, a prompt that reaches past the model's largest position. On an exception the
  // session is as it was before the call, inputs included.
  // Every input so far, asked about or not.
  const std::vector<VisualInput>& inputs() const { return inputs_; }

  Answer ask(const std::string& question, const GenerateOptions& options,
             const std::function<void(std::string_view)>& on_piece);

 private:
  struct Prompt;
  struct Place;  // a point of the conversation to come back to

  Prompt plan_prompt(const std::string& question) const;
  Tensor prefill(const Prompt& prompt, Answer& answer);
  void encode_visual(VisualInput& input, class GroupPrefill& groups, Answer& answer);
  Place here() const;
  void go_back(const Place& place);

  std::shared_ptr<const Engine> engine_;
  SessionOptions options_;
  std::unique_ptr<RowStore> store_;
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<PositionCounter> positions_;
  Conversation conversation_;           // turns answered so far
  std::vector<PromptRun> done_;         // runs whose rows are in the store, answers included
  std::vector<int32_t> history_;        // their text tokens
  std::unique_ptr<Place> last_prompt_;  // the end of the last question, before its answer
  std::vector<VisualInput> inputs_;     // of the whole conversation, numbered as in the prompt
  size_t inputs_asked_ = 0;             // those after these belong to the next question
};

}  // namespace kinora
