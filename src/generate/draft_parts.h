// What a draft is made of, and the directories it is read from: kinora's own, and those that others
// publish, EAGLE's two generations and MSD's. Which of them a directory is, its config.json says.
// DraftModel (draft_model.h) runs what is read here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/context.h"
#include "base/file.h"
#include "base/tensor.h"
#include "model/config.h"
#include "model/model.h"
#include "model/weights/weights.h"

namespace kinora {

// How a draft is fed, which is what the kinds differ in.
struct DraftFeed {
  std::string kind = "sparrow";  // as reports name it
  std::vector<int> layers;       // of the target, whose outputs are fed, increasing
  bool normed = false;           // they go through the target's final norm first
  // FC makes one state of those of several layers, and a token's embedding stands beside it. Else
  // FC joins the embedding and the state.
  bool fused = false;
  // The first token of the text, which no state comes before, has a row too, with zeros for it.
  bool first_row = true;
};

struct DraftParts {
  DecoderConfig config;         // of one layer
  DecoderWeights weights;       // that layer, and the norm and the head if the draft has them
  LinearWeights fc;             // [hidden, 2 × hidden], or [hidden, layers × target's hidden]
  Tensor embeddings;            // [target's vocabulary, hidden]; undefined: the target's
  Tensor state_norm;            // [hidden] of states on their way in; undefined: none
  std::vector<int32_t> tokens;  // that the head knows, by the target's numbers; empty: all
  DraftFeed feed;
};

// Reads every weight; FC, the embeddings and the norm of states are then where the context
// computes, in the type of activations. Throws bad_input for files that are damaged or hold a NaN
// and for a draft made for another target, unsupported for what kinora does not have.
DraftParts read_draft(const Context& context, const FileSystem& files, const std::string& directory,
                      const Model& target);

}  // namespace kinora
