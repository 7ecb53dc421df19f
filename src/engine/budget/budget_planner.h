// What a question will cost, and what to give up so that it keeps within its limits. A pure
// function of numbers: a session fills in a BudgetRequest, and asking what a question would cost
// changes nothing. Used by session_plan.cc; budget_text.h puts plans into words.
//
// Given up are, in this order and never more than needed:
//   1. frames beyond the limit of tokens,
//   2. rows of every group of frames, where pruning was chosen, down to half the share asked for,
//   3. frames beyond the limits of memory.
// A cost never falls when there are more frames or a larger share stays, so the most that fit are
// found by bisection. A larger memory never gives fewer frames nor a smaller share.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "engine/speed.h"
#include "engine/tokens/tokens.h"
#include "memory/retention/retention.h"

namespace kinora {

// Room that is left for the answer: a short one.
inline constexpr int64_t answer_tokens = 64;

// One input of the conversation, in numbers.
struct InputShape {
  bool to_read = true;      // for this question; else it is in memory
  bool moves = false;       // a video: a choice of tokens concerns it
  bool may_shrink = false;  // a video of which no frame has been looked at
  int64_t frames = 1;       // wanted
  int64_t frames_per_unit = 1;
  int64_t tokens_per_unit = 1;
  int64_t trailing_tokens = 0;
  int64_t frame_pixels = 0;      // of a frame as the model sees it
  int64_t coded_pixels = 0;      // of a picture as it is stored
  int64_t decoded_pictures = 1;  // from the first frame looked at to the last
  int64_t indexed_pictures = 0;  // in the index of the file

  int64_t units(int64_t of_frames) const {
    return (of_frames + frames_per_unit - 1) / frames_per_unit;
  }
  // That the vision tower gives.
  int64_t tokens(int64_t of_frames) const {
    return units(of_frames) * tokens_per_unit + trailing_tokens;
  }
};

struct BudgetRequest {
  static constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();

  std::vector<InputShape> inputs;  // of the whole conversation
  // Text tokens to prefill when this many frames of each input are looked at: subtitles between
  // fewer frames are fewer pieces. A pure function that does not fall when there are more frames.
  std::function<int64_t(std::span<const int64_t> frames)> text_tokens;
  Retention retention;  // as asked for
  TokenChoice tokens;   // that reach the decoder

  int64_t tokens_before = 0;  // in memory, to build on
  int64_t row_bytes_before = 0;
  int64_t token_bytes = 0;  // of the rows of one token
  // Of its rows in one layer, once more while that layer is attended: rows of 8 bits on a GPU.
  int64_t widened_bytes = 0;
  int64_t weight_bytes = 0;
  int64_t hidden_size = 0;
  int64_t deep_levels = 0;  // rows beside the embedding of a visual token
  int64_t frames_per_group = 16;
  int64_t max_group_tokens = 2048;
  int decode_threads = 1;
  Speed speed;

  int64_t max_bytes = unlimited;      // of everything
  int64_t max_row_bytes = unlimited;  // of the rows of this session
  int64_t max_tokens = unlimited;     // of the conversation
  bool strict = false;                // give up nothing
};

struct Cost {
  int64_t frames = 0;
  int64_t tokens = 0;         // to prefill
  int64_t visual_tokens = 0;  // of those
  int64_t context = 0;        // tokens of the conversation afterwards
  int64_t row_bytes = 0;      // held afterwards
  int64_t weight_bytes = 0;
  // While it works: the program itself, indexes of files, decoders with their reference pictures,
  // frames on their way, and the activations of a prefill group, with them a layer's widened rows.
  int64_t program_bytes = 0;
  int64_t index_bytes = 0;
  int64_t decoder_bytes = 0;
  int64_t frame_bytes = 0;
  int64_t activation_bytes = 0;
  StageSeconds stages;
  double seconds = 0;  // of all of them together

  int64_t working_bytes() const {
    return program_bytes + index_bytes + decoder_bytes + frame_bytes + activation_bytes;
  }
  int64_t bytes() const { return weight_bytes + row_bytes + working_bytes(); }
};

enum class Limit { none, bytes, row_bytes, tokens };

struct BudgetPlan {
  bool fits = true;             // false: refused; what follows is then the least that can be done
  std::vector<int64_t> frames;  // of each input
  double share = 1;             // of the rows of a group of frames that stays
  Cost cost;
  Cost wanted;                                  // of everything that was asked for
  Limit frames_limit = Limit::none;             // why there are not more frames
  Limit share_limit = Limit::none;              // why the share is not larger
  Limit exceeded = Limit::none;                 // of a refusal
  int64_t smallest_limit = 0;                   // with which `exceeded` would not refuse
  int64_t row_room = BudgetRequest::unlimited;  // bytes that rows may take in this plan
};

BudgetPlan plan_budget(const BudgetRequest& request);

// What it costs to look at this many frames of each input and to keep this share of their rows.
Cost cost_of(const BudgetRequest& request, std::span<const int64_t> frames, double share);

// The frames of each input if inputs that may shrink have `units` units together: spread in
// proportion to what was wanted, one unit at least, and never fewer of one input when there are
// more units.
std::vector<int64_t> spread_units(std::span<const InputShape> inputs, int64_t units);

}  // namespace kinora
