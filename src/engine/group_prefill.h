// Collects runs of tokens into prefill groups: small runs are joined so that matrix products stay
// large, and a group is run as soon as it is large enough, so that activations stay bounded.
#pragma once

#include <cstdint>
#include <vector>

#include "base/cancel.h"
#include "base/progress.h"
#include "model/model.h"

namespace kinora {

class GroupPrefill {
 public:
  GroupPrefill(const Context& context, const Model& model, RowStore& store, Attention& attention,
               int64_t max_tokens, int64_t expected_tokens, Progress& progress,
               const CancelToken& cancel);

  // embeddings: f32 [tokens, hidden]. Runs the group when it is full.
  void add(Tensor embeddings, std::vector<TokenInfo> tokens);
  // Runs what is left, so that the store holds all that was added.
  void run_waiting();
  // The same; returns the last hidden row, [1, hidden].
  Tensor finish();

  int64_t tokens() const { return tokens_; }
  double seconds() const { return seconds_; }

 private:
  void run();

  const Context& context_;
  const Model& model_;
  RowStore& store_;
  Attention& attention_;
  const int64_t max_tokens_;
  const int64_t expected_tokens_;
  Progress& progress_;
  CancelToken cancel_;
  std::vector<Tensor> pieces_;
  std::vector<TokenInfo> waiting_;
  Tensor hidden_;
  int64_t tokens_ = 0;
  double seconds_ = 0;
};

}  // namespace kinora
