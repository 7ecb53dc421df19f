// A loaded model as the engine sees it: prompts become token runs and visual slots, frames become
// visual tokens, tokens get positions, and the decoder turns them into K/V rows and logits. One
// class per family implements it (qwen2_5_vl.cc, llava_onevision.cc, text_model.cc); weights are
// read-only and shared by all sessions, so every method is const and thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/context.h"
#include "base/file.h"
#include "base/frame_group.h"
#include "base/tensor.h"
#include "memory/row_store.h"
#include "model/conversation.h"
#include "model/decoder/decoder.h"
#include "model/generation_defaults.h"
#include "model/visual_plan.h"
#include "text/tokenizer.h"

namespace kinora {

// What `kinora info` shows and the engine plans with.
struct ModelInfo {
  std::string family;  // "qwen2_5_vl", "llava_onevision", "llama", "qwen2", "qwen3"
  std::string name;    // of the directory
  DType weight_dtype = DType::f32;
  int64_t parameters = 0;
  int64_t decoder_parameters = 0;  // of those, that every token is multiplied with
  int64_t vision_parameters = 0;   // and every patch
  int64_t weight_bytes = 0;
  int64_t max_position = 0;  // largest position + 1 that the model was made for
  int64_t vocabulary = 0;
  RowLayout rows;                    // layers, kv heads, head size; dtype is the session's choice
  bool sees = false;                 // has a vision tower
  std::vector<int32_t> stop_tokens;  // from generation_config.json
  GenerationDefaults generation;     // likewise
};

// One run of a prompt: text tokens, or the place of visual item number `visual`.
struct PromptRun {
  std::vector<int32_t> ids;  // empty for a visual slot
  int visual = -1;
};

// Hands out positions along a prompt, in order.
class PositionCounter {
 public:
  virtual ~PositionCounter() = default;
  virtual void text(int64_t count, std::vector<TokenInfo>& out) = 0;
  // Units [first, first + count) of a visual item, then `trailing` tokens. `times` gives the time
  // in seconds of each unit. The first call for an item fixes where it begins.
  virtual void visual(const VisualPlan& plan, int64_t first, int64_t count,
                      std::span<const double> times, bool last, std::vector<TokenInfo>& out) = 0;
  // The position that the next text token would get.
  virtual int64_t next() const = 0;
  // A copy at this point of the prompt, to come back to.
  virtual std::unique_ptr<PositionCounter> clone() const = 0;
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelInfo& info() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  virtual const Decoder& decoder() const = 0;

  // The prompt of a conversation exactly as the family's chat template and processor give it, cut
  // at visual slots; the conversation's visual items are numbered in order of appearance.
  virtual std::vector<PromptRun> render(const Conversation& conversation) const = 0;

  // Throws unsupported when the model cannot see.
  virtual VisualPlan plan_visual(const VisualSource& source, const VisualLimits& limits) const = 0;

  // Frames of consecutive units → visual tokens [units × tokens_per_unit (+ trailing), hidden],
  // f32. `last` says that the item ends with this group; only then may the last unit be short.
  virtual Tensor encode(const Context& context, const VisualPlan& plan, const FrameGroup& frames,
                        bool last) const = 0;

  virtual std::unique_ptr<PositionCounter> positions() const = 0;

  // Which of `total` frames (at `fps` a second) the family looks at by itself when a person gives
  // no rate: presentation indices. `count` above 0 asks for so many. Empty: by Qwen's rule, at
  // default_fps and at most default_max_frames.
  virtual std::vector<int64_t> choose_frames(int64_t /*total*/, double /*fps*/,
                                             int64_t /*count*/) const {
    return {};
  }
  // What choose_frames comes to: a rate (0 where the number is fixed) and the most frames.
  virtual double default_fps() const = 0;
  virtual int64_t default_max_frames() const = 0;
};

struct LoadOptions {
  bool check_finite = false;  // reads every weight; names the first tensor with a NaN or infinity
  // Rounds the decoder's activations to bf16 where weights are bf16 and the CPU multiplies such
  // natively: faster prefill, no longer equal to f32.
  bool native_bf16 = false;
  // On a GPU: f32 activations whatever the weights are, to compare with the CPU. Slow.
  bool gpu_exact = false;
};

// Reads a directory as huggingface-cli leaves it. Every missing, extra or misshapen tensor is
// listed in one error.
std::unique_ptr<Model> load_model(const Context& context, const FileSystem& files,
                                  const std::string& directory, const LoadOptions& options = {});

}  // namespace kinora
