// One layer of a prompt looked at: where its heads attend and what a policy would compute of it,
// added up over the groups that a session reads. Used by `kinora inspect attention`.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/observer.h"
#include "attention/search/attention_map.h"
#include "base/cancel.h"

namespace kinora {

// What became of one head.
struct HeadInspection {
  int head = 0;
  std::string pattern;  // what the policy chose for most tokens, in words
  double recall = 0;    // mean share of a token's attention that the policy's keys hold
  double share = 0;     // of the dense FLOPs
  PooledMap attention;
  PooledMap coverage;
};

struct InspectionOptions {
  int layer = 0;
  std::optional<int> head;  // none: all
  int side = 256;           // most cells along a side of a map; a cell has at least 32 tokens
  CancelToken cancel;
  std::function<void(int64_t tokens, int64_t total)> progress;
};

class LayerInspection final : public AttentionObserver {
 public:
  // `policy` only plans; whoever is observed decides what is computed.
  LayerInspection(InspectionOptions options, std::unique_ptr<Attention> policy);
  ~LayerInspection() override;

  void begin_group(const PromptGroup& group) override;
  bool wants(int layer) const override { return layer == options_.layer; }
  void see(const Context& context, const AttentionCall& call) override;

  std::vector<HeadInspection> heads() const;
  // Of every token that was read.
  const std::vector<Modality>& modalities() const { return modalities_; }

 private:
  struct Head;

  InspectionOptions options_;
  std::unique_ptr<Attention> policy_;
  PromptGroup group_;
  std::vector<Modality> modalities_;
  std::vector<Head> heads_;
};

}  // namespace kinora
