// A question on its way into memory: which runs it has, which of them are already there, and which
// part of which input belongs at each visual slot.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/visual_input.h"
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
  int64_t tokens = 0;                   // to prefill
  int64_t text_tokens = 0;              // of those
  int64_t end = 0;                      // the position after it
};

// The parts that make up one input: the input itself or, if it has subtitles, its frames split at
// each subtitle, with the subtitle's text in between; unit by unit, with their times, if the model
// wants that. Appends the segments to `segments`.
std::vector<ContentPart> lay_out(const VisualInput& input, size_t number,
                                 std::vector<VisualSegment>& segments);

}  // namespace kinora
