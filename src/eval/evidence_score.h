// How well the times that an answer names (Answer::evidence) fit those at which its facts are seen.
#pragma once

#include <span>
#include <vector>

#include <kinora/session.h>

#include "eval/dataset.h"

namespace kinora {

// A span names a stretch if the middle of the shorter of the two lies in the longer.
bool names(const EvidenceSpan& span, const TimeStretch& stretch);

struct EvidenceScore {
  bool judged = false;   // the question has times, and one video
  bool several = false;  // all of its times are needed
  // Several facts: the share of them that some span names. One fact: 1 if the first span names a
  // time at which it is seen, else 0.
  double found = 0;
  // The same for spans of the same lengths anywhere in the video.
  double guessed = 0;
  double length = 0;  // of the first span, as a share of the video
};

// Of a video whose sampled frames cover [begin, end].
EvidenceScore score_evidence(const EvalItem& item, std::span<const EvidenceSpan> spans,
                             double begin, double end);

}  // namespace kinora
