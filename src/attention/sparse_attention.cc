#include "attention/sparse_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "attention/delta.h"
#include "attention/runner.h"
#include "base/error.h"

namespace kinora {
namespace {

int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// Heads that a plan covers.
int64_t heads_of(const Plan& plan) {
  std::vector<bool> seen(static_cast<size_t>(plan.heads));
  for (const Tile& tile : plan.tiles) {
    for (int32_t head = tile.head; head < tile.head + tile.heads; ++head) {
      seen[static_cast<size_t>(head)] = true;
    }
  }
  return std::count(seen.begin(), seen.end(), true);
}

}  // namespace

RunTimer::RunTimer() : start_(now()) {}

double RunTimer::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::duration(now() - start_)).count();
}

std::string to_string(const AttentionReport& report) {
  std::string text = fmt::format(
      "attention: {:.1f} % of the dense FLOPs, index {:.3f} s, run {:.3f} s, {} of {} calls "
      "dense\n",
      100 * report.share(), report.index_seconds, report.run_seconds, report.dense_calls,
      report.calls);
  for (const auto& [label, part] : report.parts) {
    text += fmt::format(
        "  {}: {} heads, {:.1f} % of the computed pairs, {:.3f} s\n", label, part.heads,
        report.pairs > 0
            ? 100.0 * static_cast<double>(part.pairs) / static_cast<double>(report.pairs)
            : 0.0,
        part.seconds);
  }
  return text;
}

bool SparseAttention::falls_back(int layer, const QueryView& queries, const RowsView& rows) const {
  const auto& layers = options_.dense_layers;
  return queries.count() < least_queries || rows.count() < options_.dense_below ||
         std::find(layers.begin(), layers.end(), layer) != layers.end();
}

void SparseAttention::attend(const Context& context, int layer, const QueryView& queries,
                             const RowsView& rows, float scale, TensorView out) {
  if (!context.device.is_cpu()) {
    throw Error(ErrorKind::unsupported, fmt::format("--attention {} does not run on a GPU yet; use "
                                                    "--attention dense or --device cpu",
                                                    name()));
  }
  ++report_.calls;
  const int64_t heads = queries.queries.size(1);
  const int64_t pairs = dense_pairs(heads, queries, rows);
  report_.dense_pairs += pairs;
  if (!falls_back(layer, queries, rows)) {
    attend_sparsely(context, layer, queries, rows, scale, out);
    return;
  }
  ++report_.dense_calls;
  const RunTimer watch;
  dense_.attend(context, layer, queries, rows, scale, out);
  AttentionReport::Part& part = report_.parts["dense"];
  part.heads += heads;
  part.pairs += pairs;
  part.seconds += watch.seconds();
  report_.pairs += pairs;
  report_.run_seconds += watch.seconds();
}

void SparseAttention::attend_sparsely(const Context& context, int layer, const QueryView& queries,
                                      const RowsView& rows, float scale, TensorView out) {
  const RunTimer index_watch;
  const std::vector<LabelledPlan> planned = plans(context, layer, queries, rows, scale);
  report_.index_seconds += index_watch.seconds();
  run(context, planned, queries, rows, scale, out);
  if (options_.delta_stride == 0) return;
  const RunTimer watch;
  const SampledQueries sampled(queries, options_.delta_stride);
  const QueryView view = sampled.view();
  Tensor exact(DType::f32, view.queries.shape());
  dense_.attend(context, layer, view, rows, scale, exact);
  apply_delta(context, exact, options_.delta_stride, out);
  AttentionReport::Part& part = report_.parts["delta"];
  const int64_t pairs = dense_pairs(queries.queries.size(1), view, rows);
  part.heads += queries.queries.size(1);
  part.pairs += pairs;
  part.seconds += watch.seconds();
  report_.pairs += pairs;
  report_.run_seconds += watch.seconds();
}

void SparseAttention::run(const Context& context, const std::vector<LabelledPlan>& planned,
                          const QueryView& queries, const RowsView& rows, float scale,
                          TensorView out) {
  for (const LabelledPlan& labelled : planned) {
    const RunTimer watch;
    // A plan of all heads may leave queries that read nothing; plans of some heads must not touch
    // the others.
    run_plan(context, labelled.plan, queries, rows, scale, out, {.clear = planned.size() == 1});
    AttentionReport::Part& part = report_.parts[labelled.label];
    const int64_t pairs = attended_pairs(labelled.plan, queries, rows);
    part.heads += heads_of(labelled.plan);
    part.pairs += pairs;
    part.seconds += watch.seconds();
    report_.pairs += pairs;
    report_.run_seconds += watch.seconds();
  }
}

}  // namespace kinora
