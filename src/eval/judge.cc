#include "eval/judge.h"

#include <cmath>

#include "attention/policies/sparse_attention.h"
#include "attention/report.h"
#include "attention/search/metrics.h"

namespace kinora {

void JudgeAttention::add(std::string name, std::unique_ptr<Attention> policy) {
  Planner* planner = policy->planner();
  if (planner == nullptr) return;
  candidates_.push_back({std::move(name), std::move(policy), planner});
}

void JudgeAttention::attend(const Context& context, int layer, const QueryView& queries,
                            const RowsView& rows, float scale, TensorView out) {
  const RunTimer watch;
  dense_.attend(context, layer, queries, rows, scale, out);
  const double dense_seconds = watch.seconds();
  if (layer == 0) ++groups_;
  if ((groups_ - 1) % every_ != every_ / 2) return;
  std::vector<float> dense_sums;
  for (Candidate& candidate : candidates_) {
    if (candidate.planner->falls_back(layer, queries, rows)) continue;
    if (dense_sums.empty()) {
      dense_sums = log_sums(context, dense_plan(queries, rows), queries, rows, scale);
    }
    judge(candidate, context, layer, queries, rows, scale, dense_sums, out, dense_seconds);
  }
}

void JudgeAttention::judge(Candidate& candidate, const Context& context, int layer,
                           const QueryView& queries, const RowsView& rows, float scale,
                           const std::vector<float>& dense_sums, ConstTensorView dense_out,
                           double dense_seconds) {
  // Plans of one layer cover different heads; a head outside a plan has a sum of exp(-inf) there.
  for (const LabelledPlan& part : candidate.planner->plans(context, layer, queries, rows, scale)) {
    const std::vector<float> sums = log_sums(context, part.plan, queries, rows, scale);
    for (size_t i = 0; i < sums.size(); ++i) {
      if (std::isinf(sums[i]) || std::isnan(sums[i])) continue;
      candidate.recall += std::exp(static_cast<double>(sums[i]) - dense_sums[i]);
    }
  }
  candidate.weight += static_cast<double>(dense_sums.size());
  Tensor out(DType::f32, queries.queries.shape());
  const RunTimer watch;
  candidate.policy->attend(context, layer, queries, rows, scale, out);
  candidate.seconds += watch.seconds();
  candidate.dense_seconds += dense_seconds;
  const int64_t heads = queries.queries.size(1);
  for (int head = 0; head < heads; ++head) {
    candidate.error += output_error(out, dense_out, head);
  }
  candidate.heads += static_cast<double>(heads);
}

std::vector<Judgement> JudgeAttention::judgements() const {
  std::vector<Judgement> out;
  for (const Candidate& candidate : candidates_) {
    if (candidate.weight == 0) continue;
    const AttentionReport* report = candidate.policy->report();
    const double share = report != nullptr ? report->share() : 1.0;
    out.push_back({candidate.name, candidate.recall / candidate.weight,
                   candidate.error / candidate.heads, share,
                   candidate.seconds / candidate.dense_seconds});
  }
  return out;
}

}  // namespace kinora
