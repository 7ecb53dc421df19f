// How much of dense attention sparse policies capture on real input. The session that is observed
// reads densely, so that all policies are judged on the same queries and keys. Each policy's plan,
// output and time are compared with dense attention; all of them run in turn on every call, on the
// CPU. Used by eval/recall/recall.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attention/observer.h"
#include "attention/planner.h"
#include "attention/policies/dense.h"

namespace kinora {

struct Judgement {
  std::string policy;
  double recall = 0;  // mean share of the dense attention that its keys hold
  double error = 0;   // mean of |output - dense output| / |dense output| over heads
  double share = 0;   // of the multiply-adds of dense attention
  double time = 0;    // of dense attention's, planning included
  double index = 0;   // the part of it that goes to measuring, searching and planning
};

class AttentionJudge final : public AttentionObserver {
 public:
  // On long input it is enough to judge one group out of every N, the middle one.
  explicit AttentionJudge(int64_t every = 1) : every_(every) {}

  // Policies that do not plan what they read, or keep no report of it (dense), are left out of the
  // judgement.
  void add(std::string name, std::unique_ptr<Attention> policy);

  void begin_group(const PromptGroup& group) override;
  bool wants(int layer) const override;
  void see(const Context& context, const AttentionCall& call) override;

  // In the order of `add`, over all calls so far in which a policy did not fall back to dense
  // attention.
  std::vector<Judgement> judgements() const;

 private:
  struct Candidate {
    std::string name;
    std::unique_ptr<Attention> policy;
    Planner* planner = nullptr;  // the policy's own
    double recall = 0;           // sums over queries × heads, …
    double weight = 0;
    double error = 0;  // … over heads
    double heads = 0;
    double dense_seconds = 0;  // of the same calls
  };
  void judge(Candidate& candidate, const Context& context, int layer, const QueryView& queries,
             const RowSet& rows, float scale, const std::vector<float>& dense_sums,
             ConstTensorView dense_out, double dense_seconds);

  const int64_t every_;
  int64_t groups_ = 0;  // begun so far
  DenseAttention dense_;
  std::vector<Candidate> candidates_;
};

}  // namespace kinora
