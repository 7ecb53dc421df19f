// Measures what one tree of guesses costs for a model's shape, with a draft of random weights: the
// layer, the head over all tokens or some of them, and the host's work between levels. Used by
// cli/commands/bench.cc.
#pragma once

#include <cstdint>

#include "base/context.h"
#include "generate/draft_tree.h"
#include "model/config.h"
#include "model/decoder/decoder.h"

namespace kinora::cli {

struct DraftFigure {
  double seconds = 0;     // to draft one tree, the median
  double tree_bytes = 0;  // weights that its levels read
  int64_t tokens = 0;     // of the tree, the newest one included
};

// `config` is the target's; `own` the size of the draft's vocabulary, 0: the target's.
DraftFigure measure_draft(const Context& context, const Decoder& target,
                          const DecoderConfig& config, const TreeShape& shape, int64_t own);

}  // namespace kinora::cli
