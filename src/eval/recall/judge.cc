#include "eval/recall/judge.h"

#include <cmath>

#include "attention/policies/sparse_attention.h"
#include "attention/report.h"
#include "attention/search/metrics.h"

namespace kinora {

void AttentionJudge::add(std::string name, std::unique_ptr<Attention> policy) {
  Planner* planner = policy->planner();
  if (planner == nullptr || policy->report() == nullptr) return;
  candidates_.push_back({std::move(name), std::move(policy), planner});
}

void AttentionJudge::begin_group(const PromptGroup& group) {
  ++groups_;
  for (Candidate& candidate : candidates_) candidate.planner->set_length(group.total);
}

bool AttentionJudge::wants(int) const {
  return !candidates_.empty() && (groups_ - 1) % every_ == every_ / 2;
}

void AttentionJudge::see(const Context& context, const AttentionCall& call) {
  const HostCall host(call);
  const QueryView& queries = host.queries();
  const RowSet& rows = host.rows();
  const Context here(*context.threads);
  std::vector<float> dense_sums;
  Tensor dense_out;
  double dense_seconds = 0;
  for (Candidate& candidate : candidates_) {
    if (candidate.planner->falls_back(call.layer, queries, rows)) continue;
    if (dense_sums.empty()) {
      dense_sums = log_sums(here, dense_plan(queries, rows), queries, rows, call.scale);
      dense_out = Tensor(DType::f32, queries.queries.shape());
      const RunTimer watch;
      dense_.attend(here, call.layer, queries, rows, call.scale, dense_out);
      dense_seconds = watch.seconds();
    }
    judge(candidate, here, call.layer, queries, rows, call.scale, dense_sums, dense_out,
          dense_seconds);
  }
}

void AttentionJudge::judge(Candidate& candidate, const Context& context, int layer,
                           const QueryView& queries, const RowSet& rows, float scale,
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
  // What it took stands in its report, without what counting for the report takes.
  candidate.policy->attend(context, layer, queries, rows, scale, out);
  candidate.dense_seconds += dense_seconds;
  const int64_t heads = queries.queries.size(1);
  for (int head = 0; head < heads; ++head) {
    candidate.error += output_error(out, dense_out, head);
  }
  candidate.heads += static_cast<double>(heads);
}

std::vector<Judgement> AttentionJudge::judgements() const {
  std::vector<Judgement> out;
  for (const Candidate& candidate : candidates_) {
    if (candidate.weight == 0) continue;
    const AttentionReport& report = *candidate.policy->report();
    const double seconds = report.index_seconds + report.run_seconds;
    out.push_back({candidate.name, candidate.recall / candidate.weight,
                   candidate.error / candidate.heads, report.share(),
                   seconds / candidate.dense_seconds,
                   report.index_seconds / candidate.dense_seconds});
  }
  return out;
}

}  // namespace kinora
