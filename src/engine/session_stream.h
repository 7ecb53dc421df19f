// A source that a session takes in as it comes. Its rows stand at the end of what the session keeps
// for good: questions and answers come after them and are taken out of memory again before more of
// the source is read, so that the video stays open and its positions go on counting.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <optional>

#include "engine/ingest/ingest.h"
#include "engine/span_recorder.h"
#include "model/conversation.h"

namespace kinora {

struct OpenSource {
  std::optional<VisualRequest> request;  // none: opened from a saved memory
  bool as_it_came = true;                // false: of a saved memory that was made of whole files
  Conversation opening;                  // the turns that come before the video
  size_t place = 0;                      // of the session: its newest end; 0: nothing has come yet
  bool ended = false;                    // nothing more will come
  bool closed = false;                   // its closing tokens are in memory
  std::deque<TokenGroup> waiting;        // encoded, not yet in memory
  int64_t next_unit = 0;                 // number of the unit that comes next
  double offset = 0;                     // seconds before the source was last opened
  double newest = 0;                     // time of the newest frame that came
  std::chrono::steady_clock::time_point came;  // when it did
  int64_t dropped = 0;                         // frames that were told of
  std::exception_ptr error;  // what ended it, to be told when all that came is in memory
  SpanRecorder spans;
  std::unique_ptr<Ingest> ingest;

  void number(TokenGroup& group);
};

}  // namespace kinora
