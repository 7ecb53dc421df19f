// The weights of a draft: one decoder layer that guesses what a larger model, its target, will say
// next. It is fed what the target knows: each token's embedding joined with the target's state of
// the text token before it,
//
//   z = FC(embedding(x[t]) ⊕ state[t − 1]),   ŝ[t] = layer(z),   p(x[t + 1]) = head(norm(ŝ[t])),
//
// and, from guess to guess, its own ŝ in place of a state. Pictures are in the states already, so
// the draft itself never reads a visual row. A directory holds model.safetensors (fc, layers.0,
// norm and, for a vocabulary of its own, lm_head and d2t) and a config.json of model_type
// "sparrow". Shared by all sessions; sparrow.h drafts with it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "model/decoder/transformer_decoder.h"
#include "model/model.h"

namespace kinora {

// A guess of one token.
struct Guess {
  int32_t token = 0;
  float log_probability = 0;
};

class DraftModel {
 public:
  // Reads every weight. Throws bad_input for files that are damaged or hold a NaN, and for a draft
  // made for another target, which must outlive this one.
  DraftModel(const Context& context, const FileSystem& files, const std::string& directory,
             const Model& target);

  // What a draft is made of, for benchmarks that have no files.
  struct Parts {
    DecoderConfig config;         // of one layer
    DecoderWeights weights;       // that layer, the norm and perhaps a head
    LinearWeights fc;             // [hidden, 2 × hidden] in the type of activations
    std::vector<int32_t> tokens;  // of the draft's own vocabulary; empty: the target's
    int state_layer = 0;
  };
  DraftModel(const Context& context, const Decoder& target, Parts parts);

  int state_layer() const { return state_layer_; }  // of the target, whose output is fed
  int64_t hidden_size() const { return decoder_->hidden_size(); }
  RowLayout rows() const;
  // Runs the one layer. Sessions share its scratch space and captured graphs, so they take turns.
  Forwarded forward(const Sequence& sequence) const;
  const Context& context() const { return context_; }  // where it computes

  // z of tokens and the states before them, f32 [ids, hidden].
  Tensor join(std::span<const int32_t> ids, ConstTensorView states) const;
  // The likeliest tokens after each row of the draft's normed output, likeliest first.
  std::vector<std::vector<Guess>> next(const Tensor& normed, int64_t count) const;

 private:
  Context context_;
  const Decoder& target_;
  int state_layer_ = 0;
  DType activations_ = DType::f32;
  LinearWeights fc_;                             // [hidden, 2 × hidden]
  std::unique_ptr<TransformerDecoder> decoder_;  // the one layer, the norm and perhaps a head
  std::vector<int32_t> tokens_;  // of the draft's own vocabulary, in the target's; empty: the same
  mutable std::mutex turn_;
  mutable std::unique_ptr<DecoderRunner> runner_;
};

}  // namespace kinora
