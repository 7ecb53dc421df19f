// Collects runs of tokens into prefill groups. Small runs are joined so that matrix products stay
// large; a group is run as soon as it is large enough, so that activations stay bounded. When
// memory is pruned, every group of frames is a separate prefill group and is pruned in every layer
// as soon as that layer's attention has used it.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/cancel.h"
#include "base/progress.h"
#include "engine/budget/memory_budget.h"
#include "engine/engine_state.h"
#include "engine/stage_clock.h"
#include "generate/drafter.h"
#include "model/model.h"

namespace kinora {

struct GroupPrefillOptions {
  int64_t max_tokens =
      std::numeric_limits<int64_t>::max();  // a group is closed when it has this many
  int64_t max_row_bytes = std::numeric_limits<int64_t>::max();
  MemoryBudget::Share* share = nullptr;  // of what all sessions may take, grown with the rows
  int64_t expected_tokens = 0;           // in all, for the progress
  // For a memory that needs it: the question, positioned as if the video ended here.
  std::vector<int32_t> question;
  const PositionCounter* positions = nullptr;
  // What attention the last of the expected tokens gives is added here; may be null.
  RowMass* mass = nullptr;
  AttentionObserver* observer = nullptr;  // is shown every group
  // May be null. One that wants states is shown the text, `text_tokens` of which came before.
  Drafter* drafter = nullptr;
  int64_t text_tokens = 0;
  CancelToken cancel;
};

class GroupPrefill {
 public:
  GroupPrefill(const EngineState& engine, Memory& memory, Attention& attention,
               GroupPrefillOptions options, Progress& progress, SpanRecorder& spans);

  // rows: f32 [tokens, hidden], of visual tokens [tokens, (1 + deep levels) × hidden]; the ids are
  // those of the text tokens among them. Runs the group when it is full.
  void add(Tensor rows, std::vector<TokenInfo> tokens, std::span<const int32_t> ids = {});
  // A group of frames ends here: it is run now if memory is pruned.
  void end_frames();
  // Runs what is left, so that memory holds all that was added.
  void run_waiting();
  // The same; returns the last hidden row, [1, hidden].
  Tensor finish();

  int64_t tokens() const { return tokens_; }  // that were run
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  // Of the token that is added next.
  int64_t next_ordinal() const {
    return memory_.token_count() + static_cast<int64_t>(waiting_.size());
  }
  double seconds() const { return clock_.seconds(); }  // complete after finish()

 private:
  void run();
  void check_memory() const;
  void add_question(Sequence& group) const;
  void show_text(const Sequence& group, std::span<const Tensor> states);

  const EngineState& engine_;
  Memory& memory_;
  Attention& attention_;
  const GroupPrefillOptions options_;
  Progress& progress_;
  StageClock clock_;
  std::vector<Tensor> pieces_;
  std::vector<TokenInfo> waiting_;
  std::vector<int32_t> waiting_ids_;  // of the text among them
  Tensor hidden_;
  int64_t tokens_ = 0;
  int64_t text_tokens_ = 0;
};

}  // namespace kinora
