// One conversation about some videos and pictures. Part of the public API: plain types only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <kinora/api.h>
#include <kinora/cancel.h>
#include <kinora/engine.h>
#include <kinora/frames.h>
#include <kinora/memory_file.h>

namespace kinora {

struct SessionOptions {
  std::string system;  // system prompt; empty: the chat template's own
  // Of keys and values: exact (as computed), auto (bf16 where the weights are bf16, else f32), f32,
  // bf16; on CPUs also f16, and int8 or fp8 with a scale for 32 columns of a head.
  std::string row_type = "exact";
  // Attention while prefilling: dense (nothing approximated) or a sparse policy, with settings if
  // need be ("momo:k=64,exact=64"). docs/policies.md lists them.
  std::string attention = "dense";
  // What attention multiplies in while prefilling on a GPU: bf16, or fp8 (keys, values and weights
  // in e4m3), which is faster and rounds more; Hopper GPUs only. docs/methods/attention.md
  std::string attention_dtype = "bf16";
  bool dense_on_gpu = false;  // instead of refusing a sparse policy that runs on CPUs only
  // Rows under which a sparse policy runs densely, as it does on a GPU where that is faster; 0:
  // never.
  std::optional<int64_t> dense_below;
  // What a group of frames leaves in memory: all, or the best share of its rows by some rule
  // ("key-norm:0.5"; docs/policies.md). A rule that chooses by the question (attention-score)
  // serves one: a second question needs clear() or a session of its own.
  std::string retain = "all";
  // Which visual tokens reach the decoder: all, or the best share of every group of frames by some
  // rule ("evs:0.25"; docs/policies.md). Tokens keep their positions. Pictures are left whole.
  std::string tokens = "all";
  std::string memory = "flat";  // how rows are organised and which of them a question reads
  // What proposes tokens that the model then verifies together: none; ngram, which looks up where
  // the last words occurred before; a trained draft, which auto uses if the model came with one; or
  // pruned, the model itself over few rows of the video. The answer is the same.
  std::string draft = "auto";
  // The shares of a video's frames, and of their pixels, to look at; frames are evenly spread. A
  // model that takes only one picture size keeps that size.
  double frame_share = 1;
  double pixel_share = 1;
  // Frames of a video may be this share of the distance between two of them earlier or later where
  // that is cheaper to decode; 0: the very frames. A choice with a `snap` of its own keeps that.
  double snap_share = 0;
  int64_t frames_per_group = 16;  // decoded, encoded and prefilled together
  // A prefill group is closed when it reaches this; 0: a prompt is one group, unless frames are
  // pruned. Inputs that were read as part of one are read again for another question.
  int64_t max_group_tokens = 2048;
  // Limits, 0: none. They are kept by looking at fewer frames, or by pruning harder where pruning
  // was chosen; the answer's warnings say so. With `strict` the question is refused instead.
  int64_t memory_budget = 0;  // bytes: weights, rows and what works on them
  int64_t max_context = 0;    // tokens of the whole conversation
  bool strict = false;
  // Decode, vision and prefill at the same time. If false, an input is decoded completely, its
  // frames held in memory, before the rest begins; the answer is the same.
  bool overlap = true;
  int decode_threads = 0;  // 0: one per core
  // Called from any thread as work progresses: a stage ("decode" and "vision" in frames, "prefill"
  // in tokens), what is done and the total (0 while unknown).
  std::function<void(std::string_view stage, int64_t done, int64_t total)> progress;
};

// Sources lie about their size, hostile ones on purpose. Those that would cost more than is taken
// for safe (pixels of a picture, number of pictures, bytes of a pipe) are refused.
struct InputLimits {
  double times = 1;          // so many times as much is allowed
  bool other_hosts = false;  // a remote playlist may lead to other hosts than its own
  // As people do that with the caller's program; ends the message of a refusal. A literal.
  const char* how_to_raise = "";
};

// Which frames of a video, how large, and what is read along with them. A picture is one frame,
// whatever the choice.
struct InputOptions {
  FrameChoice frames = {};  // as the model was trained, unless said otherwise
  int64_t min_pixels = 0;   // of one frame; 0: the model's own
  int64_t max_pixels = 0;
  double folder_fps = 1;  // of a folder of pictures
  // Read along with a video: a file of subtitles (.srt, .vtt, .ass …); "embedded", those inside the
  // video, or "embedded:LANGUAGE" where there are several; empty: none.
  std::string subtitles = {};
  // The index of a large local file is kept in the user's cache, so that opening it again is
  // instant.
  bool keep_index = true;
  InputLimits limits = {};
  // Of Session::open only. A file is played this many times as fast as it was filmed; 0: as fast as
  // it is taken in.
  double speed = 0;
  // Frames that come faster than they are taken in are left out, those first that waited longest;
  // otherwise their source waits.
  bool drops = false;
  // Its end may be that of a connection: the video stays open for Session::resume.
  bool resumes = false;
  CancelToken cancel = {};
};

struct InputInfo {
  std::string source;
  std::string kind;   // "video" or "image"
  int64_t width = 0;  // as the model sees it
  int64_t height = 0;
  int64_t tokens = 0;         // that reach the decoder
  std::vector<double> times;  // of the sampled frames, seconds
  bool sound = false;         // it has some, which no model here hears
  int64_t subtitles = 0;      // read along
  // Languages of the subtitles inside it that could be read, "und" where it does not say.
  std::vector<std::string> languages;
};

// Part of a question: text, or the next of the inputs added since the last question.
struct QuestionPart {
  std::optional<std::string> text;
};

// What has come of a source that is taken in as it comes.
struct TakenIn {
  int64_t frames = 0;
  int64_t tokens = 0;   // prefilled for them
  int64_t dropped = 0;  // frames left out since the last call
  double until = 0;     // seconds: the newest frame of all, in the time of the source
  bool ended = false;   // nothing more will come
  std::vector<std::string> warnings;
};

// What a question will cost, known before any frame is decoded.
struct Forecast {
  int64_t frames = 0;
  int64_t tokens = 0;  // to prefill, visual ones included
  int64_t visual_tokens = 0;
  int64_t row_bytes = 0;     // keys and values held afterwards
  int64_t memory_bytes = 0;  // with the weights and what works on them
  double seconds = 0;        // until the answer begins; a guess
  // What each stage takes of that; they may overlap. Progress is weighed with them.
  double decode_seconds = 0;
  double vision_seconds = 0;
  double prefill_seconds = 0;
  double token_seconds = 0;           // of one token of the answer
  std::vector<std::string> changes;   // that asking will make, to keep the budget
  std::vector<std::string> warnings;  // of what is allowed, but may end badly
};

struct AnswerOptions {
  // Without a value: as the model's authors say in generation_config.json.
  std::optional<double> temperature;  // 0 is greedy
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  std::optional<double> repetition_penalty;
  double min_p = 0;
  uint64_t seed = 0;
  int64_t max_tokens = 512;
  std::vector<std::string> stop;    // the answer ends before the first of these
  bool ignore_stop_tokens = false;  // go on past the end of the turn
  bool evidence = true;             // find the times that the answer rests on
  CancelToken cancel;               // once raised, the call throws an error of kind cancelled
};

// Seconds by stage. Decoding overlaps with the other stages, so the parts may exceed the total.
struct Timings {
  double decode = 0;       // CPU seconds of the decoding threads
  double decode_wait = 0;  // time the other stages waited for frames
  double vision = 0;
  double prefill = 0;
  double generate = 0;
  double first_token = 0;  // from the call to the first token of the answer
  double total = 0;
};

// A piece of work on the time line of an answer.
struct Span {
  std::string lane;  // "decode 1", "vision", "prefill", "generate"
  std::string name;  // "decode 0.0 s to 8.0 s"; begins with the stage
  double begin = 0;  // seconds since the question was asked
  double end = 0;
};

// How drafting went.
struct DraftSummary {
  int64_t passes = 0;        // of the model, one token each at the least
  int64_t drafted = 0;       // tokens proposed
  int64_t right = 0;         // of these, the model's own
  double plain_seconds = 0;  // of a pass over one token, where it is known; else 0
  std::string kind;          // of a trained draft: "sparrow", "EAGLE", "EAGLE-3", "MSD, …"
};

// What sparse attention did for an answer.
struct AttentionSummary {
  struct Part {
    std::string name;   // a pattern, or a step of the policy
    int64_t heads = 0;  // summed over calls
    double share = 0;   // of the pairs of query and key that were computed
    double seconds = 0;
  };
  int64_t calls = 0;
  int64_t dense_calls = 0;    // of these, made densely because sparse would have been slower
  double computed_share = 1;  // of what dense attention would have computed
  double index_seconds = 0;   // measuring, searching, planning
  double run_seconds = 0;
  std::vector<Part> parts;
  // Where fp8 was asked for: launches on the GPU in fp8, and those it could not have, in bf16.
  std::string dtype = "bf16";
  int64_t fp8_launches = 0;
  int64_t bf16_launches = 0;
};

// A stretch of an input that the answer's tokens looked at more than at the rest.
struct EvidenceSpan {
  size_t input = 0;  // as in Session::inputs
  double start = 0;  // seconds
  double end = 0;
  double share = 0;  // of the attention given to all frames
};

struct Answer {
  std::string text;
  std::string stop;  // "stop-token", "stop-string", "max-tokens", "context-full", "budget-full"
  std::vector<int32_t> ids;
  // The whole prompt, rows in memory included; a visual token has the id of its placeholder.
  std::vector<int32_t> prompt_ids;
  int64_t frames = 0;         // read for this question
  int64_t seen_tokens = 0;    // that the vision tower gave …
  int64_t visual_tokens = 0;  // … and of those, that reached the decoder
  int64_t prompt_tokens = 0;  // prefilled for this question, visual ones included
  int64_t row_bytes = 0;      // keys and values held after it
  Timings timings;
  std::vector<EvidenceSpan> evidence;                // the largest share first; none without video
  std::optional<AttentionSummary> attention_report;  // of a sparse policy or fp8; else none
  std::optional<DraftSummary> draft;                 // where there was a draft to propose any
  std::vector<std::string> warnings;  // damaged stretches of the inputs, and the like
  std::vector<Span> spans;            // what was done when, in no order
};

// Bytes of keys and values, by where they lie.
struct HeldRows {
  int64_t device = 0;
  int64_t host = 0;
  int64_t disk = 0;
};

class SessionState;    // inside the library
struct SessionAccess;  // the way to it

// Used by one thread at a time; the cancel token of a call may be raised from any other.
class KINORA_API Session {
 public:
  explicit Session(const Engine& engine, const SessionOptions& options = {});
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  // Adds a video or picture (path, URL, folder of pictures, "-" for standard input) to the next
  // question. Opens, samples and plans it at once; frames are decoded when the question is asked.
  InputInfo add(const std::string& source, const InputOptions& options = {});

  // Opens a source that is looked at as it comes, and goes on being looked at between questions: a
  // pipe or "-", a camera or other live address, or a file. It must be the first thing in the
  // session. Frames are chosen by their rate (the model's own, unless said otherwise), or all.
  // Decoding begins at once and waits when nobody takes frames in.
  InputInfo open(const std::string& source, const InputOptions& options = {});
  // Takes in what has come of it since the last call; waits until there are `least_frames` new
  // frames, or the end. They come in groups of SessionOptions::frames_per_group. The next question
  // is about all that has been taken in; questions and answers so far are read again after it,
  // and nothing of the video is. Throws what ended the source, after what came before is taken in.
  // After any other exception nothing is lost: the next call goes on. With `most_frames` it returns
  // as soon as it has taken in that many, or a few more, so that others get their turn.
  TakenIn take_in(int64_t least_frames = 0, const CancelToken& cancel = {},
                  int64_t most_frames = 0);
  // Opens a source again that has ended or broken off (InputOptions::resumes), and goes on with the
  // same video: the time in between counts, and frames of another size are made to fit. Throws what
  // opening throws; then it can be tried again.
  void resume(const CancelToken& cancel = {});

  // Asks with the new inputs in front of the text. `on_piece` receives the answer as it is made,
  // in whole characters. Refuses, before any work starts, a prompt that reaches past the
  // model's largest position. After an exception the session is as it was before the call.
  Answer ask(const std::string& question, const AnswerOptions& options = {},
             const std::function<void(std::string_view)>& on_piece = nullptr);
  // The same with text and inputs in any order.
  Answer ask(const std::vector<QuestionPart>& parts, const AnswerOptions& options = {},
             const std::function<void(std::string_view)>& on_piece = nullptr);

  // Keys and values that are held now.
  HeldRows held() const;

  // The inputs of the conversation as they were looked at or, before the first question about them,
  // as they would be without a budget.
  std::vector<InputInfo> inputs() const;

  // What asking this will cost, with what `ask` will give up to keep the budget. Changes nothing.
  Forecast forecast(const std::string& question) const;

  // Reads the new inputs now, so that the next question need not wait for them. Returns what it
  // cost, without a text. Refused where rows are chosen by the question (attention-score).
  Answer prepare(const CancelToken& cancel = {});

  // Writes what was read of the inputs, without the conversation, to a file that `reopen` makes a
  // session of. New inputs are read first; of a source that is being taken in, what came so far is
  // written. All of the file is there when this returns; a failure, or a crash at any moment,
  // leaves what the file was before. Throws unsupported where rows were chosen by the question.
  MemoryFile save(const std::string& path, const CancelToken& cancel = {});
  // The key that a file of the inputs and options would have (MemoryFile::key), before anything is
  // read; empty where an input's content is not known. Reads the inputs' bytes.
  std::string memory_key() const;
  // A session that has read what the file holds. What shaped it is the file's, whatever the options
  // say: `system`, `row_type`, `memory`, `retain`, `attention` and the size of groups. Inputs may
  // be added; those of the file cannot be read again. Throws bad_input for a file that is damaged,
  // cut off or of another model.
  static Session reopen(const Engine& engine, const std::string& path,
                        const SessionOptions& options = {}, const CancelToken& cancel = {});

  // Forgets the conversation and keeps the inputs: the next question is the first one about them,
  // and what was prefilled of them is used again.
  void clear();

 private:
  friend struct SessionAccess;
  explicit Session(std::unique_ptr<SessionState> state);

  std::unique_ptr<SessionState> state_;
};

}  // namespace kinora
