// What a Session is made of: the K/V rows of one conversation and how far the prompt has come.
// Asking again prefills only what is new. A question is planned in session_plan.cc and read into
// memory in session_prefill.cc; a source without an end is taken in in session_stream.cc.
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
#include "engine/budget/budget_planner.h"
#include "engine/engine_state.h"
#include "engine/evidence/evidence.h"
#include "engine/ingest/visual_input.h"
#include "engine/prompt.h"
#include "engine/span_recorder.h"
#include "engine/tokens/tokens.h"
#include "engine/transcript.h"
#include "generate/generation.h"
#include "memory/retention/retention.h"

namespace kinora {

class Archive;
class AttentionObserver;
class GroupPrefill;
class Ingest;
struct OpenSource;
struct SavedAbout;
struct TokenGroup;

// A question before anything is done for it.
struct QuestionPlan {
  Prompt prompt;
  BudgetPlan budget;
  std::vector<std::optional<VisualLook>> fewer;  // by input, where the budget asks for fewer frames
  std::vector<std::string> changes;              // the same in words
  std::vector<std::string> warnings;             // of what is allowed, but may end badly
};

class SessionState {
 public:
  SessionState(std::shared_ptr<const EngineState> engine, const SessionOptions& options);
  ~SessionState();

  // Adds an input to the next question. Opens and plans it at once.
  const VisualInput& add(const VisualRequest& request, const CancelToken& cancel);
  // Opens a source to be taken in as it comes; see Session.
  const VisualInput& open(const VisualRequest& request, const CancelToken& cancel);
  TakenIn take_in(int64_t least_frames, const CancelToken& cancel, int64_t most_frames);
  void resume(const CancelToken& cancel);

  // See Session. Each part that is not text stands for the next new input; there must be exactly
  // as many parts as new inputs.
  Forecast forecast(const std::vector<ContentPart>& parts) const;
  Answer prepare(const CancelToken& cancel);
  // The same where text stands between or before the inputs: everything up to the last input.
  Answer prepare(const std::vector<ContentPart>& parts, const CancelToken& cancel);
  // What is to be found out about where an answer looked.
  struct Looking {
    bool evidence = false;          // spans, in the answer
    HeadEvidence* heads = nullptr;  // every head by itself, instead
  };
  Answer ask(const std::vector<ContentPart>& parts, const GenerateOptions& options,
             const std::function<void(std::string_view)>& on_piece, const Looking& looking);
  void clear();

  // session_fork.cc: what a server needs, where many conversations are about one video.
  // Another session that stands where this one does. Rows so far are stored once, and this session
  // counts them in the budget: it must outlive the fork. `progress` is the fork's own.
  std::unique_ptr<SessionState> fork(decltype(SessionOptions::progress) progress = nullptr);
  // Takes these turns for what was said so far, whatever that was; the next question builds on what
  // of them is in memory. Parts that are not text stand for the inputs, in order.
  void adopt(const std::vector<Turn>& turns);
  MemoryBytes bytes() const { return memory_->bytes(); }
  // So far, of rows that wait in a file.
  FetchCounts fetched() const { return memory_->fetched(); }

  // session_saved.cc; see Session.
  MemoryFile save(const std::string& path, const CancelToken& cancel);
  std::string memory_key() const;
  // A fresh session becomes what was saved.
  void load(const std::shared_ptr<const Archive>& file);

  // Shows an observer the attention of every group that is read from now on; null: nobody. It must
  // outlive what it is shown.
  void observe(AttentionObserver* observer) { observer_ = observer; }
  // Tokens of one frame of the first video, for patterns that follow frames; 0 without a video, or
  // where frames differ in what reaches the decoder.
  int64_t frame_tokens() const;
  // Of an input: those that reach, or will reach, the decoder.
  int64_t visual_tokens(const VisualLook& look) const;

  const std::vector<VisualInput>& inputs() const { return inputs_; }
  const RowLayout& layout() const { return memory_->layout(); }
  size_t new_inputs() const { return inputs_.size() - asked_.inputs; }
  const Model& model() const { return *engine_->model; }

 private:
  // A point of the conversation to come back to.
  struct Place {
    MemoryMark mark;
    std::unique_ptr<PositionCounter> positions;
    Transcript::Point said;
  };

  // session_plan.cc
  QuestionPlan plan(const std::vector<ContentPart>& parts) const;
  Prompt plan_prompt(const std::vector<ContentPart>& parts, const Looks& looks) const;
  void check_positions(QuestionPlan& plan) const;
  BudgetRequest budget_request(const Prompt& prompt) const;
  // All of the prompt, visual tokens by the number that stands for them.
  std::vector<int32_t> ids_of(const Prompt& prompt) const;
  int64_t row_bytes_before(const Prompt& prompt) const;
  // Tokens that the answer may have when rows may take this many bytes.
  int64_t answer_room(int64_t wanted, int64_t row_room);

  // session_prefill.cc
  // Runs [kept, runs_end) of the prompt; returns the last hidden row.
  Tensor prefill(const QuestionPlan& plan, size_t runs_end, const CancelToken& cancel,
                 SpanRecorder& spans, Answer& answer, RowMass* mass = nullptr);
  std::unique_ptr<Ingest> start_ingest(const Prompt& prompt, size_t runs_end, SpanRecorder& spans);
  void end_input(VisualInput& input, const ReadReport& report, Answer& answer);
  // A group is closed when it has this many tokens.
  int64_t group_tokens() const;
  // The next tokens of an input with the positions that they have among all of it, to be added
  // from this ordinal on.
  std::vector<TokenInfo> place(size_t input, const TokenGroup& group, int64_t ordinal);

  // session_stream.cc
  void gather(int64_t wanted_frames, const CancelToken& cancel);
  void absorb(const CancelToken& cancel, TakenIn& taken);
  // What waits as the prompt has it, from where memory ends to the newest unit.
  std::vector<PromptRun> waiting_runs() const;
  void check_reach(int64_t tokens) const;
  int64_t row_room() const;

  // session_evidence.cc
  std::optional<RowMass> watch(const Looking& looking) const;
  void look(const Looking& looking, const RowMass& mass, Answer& answer) const;
  // The units of an input, with a mass of 0.
  std::vector<UnitMass> units_of(const VisualInput& input) const;

  // session_saved.cc
  // The prompt of a first question about all inputs, as far as it does not depend on the question.
  Prompt first_prompt() const;
  // The first point at which all inputs were in memory and nothing had been asked.
  Place last_read(const Prompt& prompt) const;
  // Walks along the first `items` of the prompt as if they were read: positions, transcript and
  // places of frames come to be what they were. Memory has the tokens already.
  void replay(const Prompt& prompt, size_t items, const SavedAbout& about);
  // A visual part of it as the ingest gave it, with the tokens that memory has from `ordinal` on.
  TokenGroup group_of(const VisualSegment& segment, const SavedAbout& about, int64_t ordinal) const;
  SavedAbout about() const;

  // How many pictures there are decides how some models look at each. Plans one that is about to be
  // added and, anew, those that are there; what was read of one that changes is given up, and the
  // next question reads it again.
  void plan_pictures(VisualInput& fresh);
  // Does what was planned, and leaves everything as it was when `work` throws.
  template <typename Work>
  void carry_out(QuestionPlan& plan, const Work& work);
  Place here() const;
  void go_back(const Place& place);
  void go_back_to(size_t place);

  std::shared_ptr<const EngineState> engine_;
  SessionOptions options_;
  Retention retention_;  // as asked for; a budget may let less stay
  TokenChoice tokens_;   // that reach the decoder
  std::vector<LayerHeads> evidence_heads_;
  std::unique_ptr<Progress> progress_;
  MemoryBudget::Share share_;  // of what the engine's sessions may hold
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Attention> attention_;
  AttentionObserver* observer_ = nullptr;
  std::shared_ptr<Drafter> drafter_;
  std::unique_ptr<PositionCounter> positions_;
  Asked asked_;
  Transcript transcript_;                // what is in memory, answers included
  std::vector<Place> places_;            // ends of inputs and of questions, to come back to
  std::vector<VisualInput> inputs_;      // of the whole conversation
  std::vector<VisualRows> visual_rows_;  // in memory, in order
  std::vector<std::string> changes_;     // made to keep the budget, for the next answer to report
  std::unique_ptr<OpenSource> source_;   // the first input, if it is taken in as it comes
};

std::unique_ptr<SessionState> reopen_session(std::shared_ptr<const EngineState> engine,
                                             const std::string& path, const SessionOptions& options,
                                             const CancelToken& cancel);

// What could not be decoded of an input, in words.
std::vector<std::string> damage_of(const VisualInput& input, const ReadReport& report);

// How the rest of kinora gets at what a Session holds; users of the library cannot.
struct SessionAccess {
  static SessionState& state(Session& session) { return *session.state_; }
};

}  // namespace kinora
