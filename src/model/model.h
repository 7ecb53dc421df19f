// A loaded model as the engine sees it: prompts become token runs and visual slots, frames become
// visual tokens, tokens get positions, and the decoder turns them into K/V rows and logits. The
// families implement it (families/); weights are read-only and shared by all sessions, so every
// method is const and thread-safe.
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
#include "memory/memory.h"
#include "model/conversation.h"
#include "model/decoder/decoder.h"
#include "model/generation_defaults.h"
#include "model/visual_plan.h"
#include "text/tokenizer.h"

namespace kinora {

// What `kinora info` shows and the engine plans with.
struct ModelInfo {
  std::string family;  // as `model_type` of config.json spells it
  std::string name;    // of the directory
  DType weight_dtype = DType::f32;
  int64_t parameters = 0;
  int64_t decoder_parameters = 0;  // of those, used for every token
  int64_t vision_parameters = 0;   // of those, used for every patch
  int64_t weight_bytes = 0;
  int64_t stored_bytes = 0;  // of the weights in their files
  std::string quantization;  // how they are stored there; empty: in the weights' own type
  int64_t max_position = 0;  // largest position + 1 that the model was made for
  int64_t vocabulary = 0;
  RowLayout rows;                    // layers, kv heads, head size; dtype is the session's choice
  bool sees = false;                 // has a vision tower
  int64_t deep_levels = 0;           // rows beside the embedding of a visual token (DeepStack)
  std::vector<int32_t> stop_tokens;  // from generation_config.json
  GenerationDefaults generation;     // likewise
  int64_t heads = 0;                 // of queries, in every layer
  int32_t image_token = -1;          // stands for every token of a picture; −1: a text model
  int32_t video_token = -1;
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

  // Frames of consecutive units → visual tokens [units × tokens_per_unit (+ trailing),
  // (1 + deep levels) × hidden], f32: the embedding, then the rows that the decoder adds after its
  // first layers. `last` says that the item ends with this group; only then may the last unit be
  // short, or may there be no frames: then only trailing tokens are wanted.
  virtual Tensor encode(const Context& context, const VisualPlan& plan, const FrameGroup& frames,
                        bool last) const = 0;

  virtual std::unique_ptr<PositionCounter> positions() const = 0;

  // Which of `total` frames (at `source_fps` frames per second) the model looks at, by its family's
  // rule: indices in [0, total), ascending; a frame may occur twice. Empty means sampling by time,
  // the frame on screen every 1 / wish.fps seconds, and is returned only if a rate was wished for.
  // (A text model looks at none.)
  virtual std::vector<int64_t> choose_frames(int64_t total, double source_fps,
                                             const FrameWish& wish) const = 0;
  // What the family chooses without a wish: a rate (0 where the number is fixed) and the maximum
  // number of frames.
  virtual double default_fps() const = 0;
  virtual int64_t default_max_frames() const = 0;
};

// Which generation of transformers a model's video prompts follow, where generations differ:
// Qwen3-VL's before 5.10 have markers around every unit only, later ones around the video as well.
enum class VideoPromptForm { by_file, transformers_4_57, transformers_5_10 };

struct LoadOptions {
  bool check_finite = false;  // reads every weight; names the first tensor with a NaN or infinity
  // Rounds the decoder's activations to bf16 where weights are bf16 and the CPU has instructions
  // for it: faster prefill, no longer equal to f32.
  bool native_bf16 = false;
  // On a GPU: f32 activations whatever the weights are, to compare with the CPU. Slow.
  bool gpu_exact = false;
  VideoPromptForm video_prompt = VideoPromptForm::by_file;
};

// Reads a directory as huggingface-cli leaves it. Every missing, extra or misshapen tensor is
// listed in one error.
std::unique_ptr<Model> load_model(const Context& context, const FileSystem& files,
                                  const std::string& directory, const LoadOptions& options = {});

}  // namespace kinora
