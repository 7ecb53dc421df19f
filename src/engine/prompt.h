// A question on its way into memory: which runs it has, which of them are already there, and which
// part of which input belongs at each visual slot. Pure functions; session_plan.cc joins them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/ingest/visual_input.h"
#include "engine/transcript.h"
#include "model/model.h"

namespace kinora {

// Units [first, first + count) of an input. An input is one segment unless subtitles cut it or the
// model wants its units apart.
struct VisualSegment {
  size_t input = 0;
  int64_t first = 0;
  int64_t count = 0;
};

// What a question adds to the store, and what of the store it can build on.
struct Prompt {
  Conversation conversation;
  std::vector<VisualSegment> segments;  // of the whole conversation, numbered as in the runs
  std::vector<PromptRun> runs;          // likewise
  std::optional<size_t> from_place;     // go back to this place first (0 is the empty store)
  size_t kept_runs = 0;                 // of `runs`, in the store whole …
  size_t kept_ids = 0;                  // … and this many ids of the next run
  bool closes_video = false;  // what is kept ends with an open video, which is closed first
  int64_t tokens = 0;         // to prefill
  int64_t text_tokens = 0;    // of those
  int64_t end = 0;            // the position after it
};

// How each input of the conversation is looked at.
using Looks = std::vector<const VisualLook*>;

// The parts that make up one input: the input itself or, if it has subtitles, its frames split at
// each subtitle, with the subtitle's text in between. Appends the segments to `segments`.
std::vector<ContentPart> lay_out(const VisualLook& look, const std::vector<Subtitle>& subtitles,
                                 size_t number, std::vector<VisualSegment>& segments);

// What was asked and answered so far.
struct Asked {
  Conversation conversation;
  std::vector<VisualSegment> segments;  // in its turns, numbered as in the prompt
  size_t inputs = 0;                    // those after these belong to the next question
};

// The conversation with one more question, whose parts that are not text stand for the new inputs,
// in order. Refuses a question that is empty or that has another number of inputs.
Prompt lay_out_question(const Asked& asked, const std::vector<ContentPart>& parts,
                        std::span<const VisualInput> inputs, const Looks& looks);

// The first input has grown since it was asked about: the conversation shows all of it. Nothing to
// do where it was not asked about.
void lay_out_anew(Asked& asked, const VisualLook& first);

// Of the items in memory, the first ones that a prompt can build on.
struct KeptItems {
  std::optional<size_t> place;  // to go back to; none: memory serves as it is
  size_t items = 0;
};

// Memory serves as it is when the prompt continues it; else as it was at the latest place that the
// prompt continues (an answer may read differently when it is tokenized as text). `places` are the
// items at each, ascending; the first is the empty memory, which is taken to begin `afresh`.
KeptItems find_kept(std::span<const int64_t> wanted, const Transcript& said,
                    std::span<const size_t> places, bool afresh);

// Sets how much of the runs is kept.
void keep_items(Prompt& prompt, size_t items);

// Positions of a segment's tokens, and with `last` of what trails them, some units at a time: a
// file may say that there are far more tokens than it has. `take` gets them in order.
void place_visual(PositionCounter& counter, const VisualPlan& plan, const VisualSegment& segment,
                  std::span<const double> times, bool last,
                  const std::function<void(std::span<const TokenInfo>)>& take);

// Walks the positions from where memory ends without doing any work, to know first how many tokens
// there are and where they end. Of each input this many tokens do not reach the decoder; the others
// keep their positions.
void count_tokens(Prompt& prompt, const PositionCounter& from, const Looks& looks,
                  std::span<const int64_t> left_out = {});

}  // namespace kinora
