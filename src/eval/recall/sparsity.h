// How sparse the attention of a model's heads is, and whether lines found in one place hold in
// another (figures 2b, 2c and 12 of MMInference's paper). Looks on at prompts that are read
// densely; `kinora eval --sparsity` prints it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "attention/observer.h"
#include "attention/plan/line_plan.h"
#include "base/cancel.h"
#include "eval/run.h"

namespace kinora {

// The smallest share of the keys that a query sees with which `wanted` of its attention is caught,
// on average over the queries of one modality.
struct HeadSparsity {
  int layer = 0;
  int head = 0;
  Modality modality = Modality::text;
  double share = 0;
  int64_t queries = 0;
};

// What queries of one modality find along lines that others were asked for.
struct LineReuse {
  Modality made = Modality::text;  // whose queries the lines are from
  Modality used = Modality::text;  // whose queries read along them
  bool other_prompt = false;       // the lines are from the prompt before, the same group of it
  double recall = 0;               // share of the attention there, a mean over queries and heads
  double keys = 0;                 // share of the keys that the lines have
  int64_t queries = 0;             // × heads
};

class SparsityStudy final : public AttentionObserver {
 public:
  // Groups that read fewer than `least_rows` are left out: attention over a few keys says nothing
  // about long prompts.
  explicit SparsityStudy(double wanted = 0.95, int64_t least_rows = 0)
      : wanted_(wanted), least_rows_(least_rows) {}

  void begin_prompt();
  void begin_group(const PromptGroup& group) override;
  void see(const Context& context, const AttentionCall& call) override;

  std::vector<HeadSparsity> heads() const;  // by layer, head and modality
  // Lines of the last 64 queries of a modality in each group, as many as vertical-slash has, read
  // by the 64 before them of each modality.
  std::vector<LineReuse> reuse() const;

 private:
  struct Sum {
    double value = 0, keys = 0;
    int64_t count = 0;
  };
  using HeadKey = std::tuple<int, int, Modality>;           // layer, head, queries
  using LineKey = std::tuple<int64_t, int, int, Modality>;  // group, layer, head, queries

  double wanted_;
  int64_t least_rows_;
  int64_t length_ = 0;  // of the prompt
  int64_t group_ = 0;   // of the prompt, from 1
  std::map<HeadKey, Sum> needed_;
  std::map<std::tuple<Modality, Modality, bool>, Sum> found_;
  std::map<LineKey, LineIndex> lines_, before_;  // of this prompt and of the one before
};

struct SparsityOptions {
  int64_t prompts = 2;
  CancelToken cancel;
  std::function<void(int64_t done, int64_t total)> progress;
};

// On the first prompts of a set. Throws what reading a prompt throws.
SparsityStudy measure_sparsity(const Engine& engine, const EvalData& data,
                               const SessionOptions& reading, const SparsityOptions& options);

}  // namespace kinora
