// A draft that runs: one decoder layer that guesses what a larger model, its target, will say next.
// It is fed what the target knows: each token's embedding and the target's state of the text token
// before it. kinora's own joins the two,
//
//   z = FC(embedding(x[t]) ⊕ state[t − 1]),   ŝ[t] = layer(z),   p(x[t + 1]) = head(norm(ŝ[t])),
//
// and, from guess to guess, its own ŝ takes the place of a state. EAGLE's have no norm; EAGLE-3's
// state is FC(three layers' states), and its layer reads the embedding beside it. Pictures are in
// the states already, so a draft itself never reads a visual row. draft_parts.h reads the
// directories; sparrow.h drafts. Shared by all sessions.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "generate/device_tree/device_tree.h"
#include "generate/draft_pace.h"
#include "generate/draft_parts.h"
#include "generate/draft_tree.h"
#include "model/decoder/transformer_decoder.h"
#include "model/model.h"

namespace kinora {

// The likeliest tokens by each row of logits, likeliest first.
std::vector<std::vector<Guess>> likeliest(const Context& context, ConstTensorView logits,
                                          int64_t count);

class DraftModel {
 public:
  // As read_draft. The target must outlive the draft.
  DraftModel(const Context& context, const FileSystem& files, const std::string& directory,
             const Model& target);
  DraftModel(const Context& context, const Decoder& target, DraftParts parts);

  // False on a GPU that runs the target in less time than the host takes to start a draft's many
  // small kernels, where it has to.
  bool could_pay() const;
  const DraftFeed& feed() const { return parts_.feed; }
  int64_t hidden_size() const { return decoder_->hidden_size(); }
  RowLayout rows() const;
  // Runs the one layer. Sessions share its scratch space and captured graphs, so they take turns.
  Forwarded forward(const Sequence& sequence) const;
  const Context& context() const { return context_; }  // where it computes
  // Tells drafts apart by their numbers: rows that one made are of no use to another.
  std::string key() const;

  // What sessions that draft trees of this shape have learnt so far; nothing before the first.
  std::optional<KnownPace> known_pace(const TreeShape& shape) const;
  void remember(const TreeShape& shape, const KnownPace& pace) const;

  // What the draft is told of tokens, f32 [tokens, hidden]: the target's rows of the layers it is
  // fed, one tensor for each, as one state.
  Tensor state(std::span<const Tensor> layers) const;
  // Tokens and the states before them as the input of a sequence.
  void join(std::span<const int32_t> ids, const Tensor& states, Sequence& sequence) const;
  // The likeliest tokens after each row of the draft's output, likeliest first.
  std::vector<std::vector<Guess>> next(const Tensor& hidden, int64_t count) const;
  // Whether a GPU grows trees of this shape without the host, with …
  bool grows(const TreeShape& shape) const;
  // … the whole tree below some text. Chains are no longer than `deepest`.
  GrownTree grow(const TreeShape& shape, int64_t deepest, const TreeStart& start) const;

 private:
  Tensor embed(std::span<const int32_t> ids) const;
  DeviceTrees& trees() const;  // made when first asked for

  Context context_;
  const Decoder& target_;
  int64_t target_bytes_ = 0;  // of weights; 0: not known
  DraftParts parts_;          // without the layer's weights
  DType activations_ = DType::f32;
  bool own_head_ = false;
  std::unique_ptr<TransformerDecoder> decoder_;  // the one layer, and the norm and head if any
  mutable std::mutex turn_;
  mutable std::unique_ptr<DecoderRunner> runner_;
  mutable std::unique_ptr<DeviceTrees> trees_;
  mutable std::mutex known_turn_;
  mutable std::map<TreeShape, KnownPace> known_;
};

}  // namespace kinora
