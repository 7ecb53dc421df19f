// The times of a video that an answer rests on: where its tokens, from the last one of the question
// on, looked in the rows of the frames. Heads that point at what an answer is about are chosen by a
// calibration (evidence_heads.h); what they looked at is added up for every unit of frames, and the
// highest peaks become spans.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kinora/session.h>

namespace kinora {

// Where the rows of some units of an input are among all tokens.
struct VisualRows {
  size_t input = 0;
  int64_t first = 0;  // ordinal
  int64_t count = 0;
  int64_t first_unit = 0;
  int64_t tokens_per_unit = 1;

  // The unit of a row; what follows the last unit belongs to it.
  int64_t unit_of(int64_t row, int64_t units) const;
};

// Frames that are encoded together, and how much attention their rows got.
struct UnitMass {
  double start = 0;  // seconds in their video
  double end = 0;    // where the next unit begins
  double mass = 0;
};

// The most that a span may have: a twentieth of the units, or as many as two sampled frames are.
int64_t longest_span(int64_t units, int64_t frames_per_unit);

// The highest peak of all inputs, grown on both sides while its neighbours have a fair part of it
// and it is not longer than `longest` units of the input allow; then other peaks that have at least
// half as much. The largest share first; at most `most` of them.
struct InputMass {
  std::vector<UnitMass> units;
  int64_t longest = 1;
};
std::vector<EvidenceSpan> find_evidence(std::span<const InputMass> inputs, size_t most = 3);

// What every head of the model looked at, for choosing among them. Of one input.
struct HeadEvidence {
  std::vector<UnitMass> units;  // without masses
  std::vector<float> mass;      // [layers × heads, units]
  int64_t longest = 1;          // units of a span
};

}  // namespace kinora
