#include "attention/policies/sparse_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "attention/cuda/runner_cuda.h"
#include "attention/cuda/wide_rows.h"
#include "attention/observer.h"
#include "attention/policies/delta.h"
#include "attention/runner.h"

namespace kinora {
namespace {

int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// Heads that a plan covers.
std::set<int32_t> heads_of(const Plan& plan) {
  std::set<int32_t> heads;
  for (const Tile& tile : plan.tiles) {
    for (int32_t head = tile.head; head < tile.head + tile.heads; ++head) heads.insert(head);
  }
  return heads;
}

}  // namespace

RunTimer::RunTimer() : start_(now()) {}

double RunTimer::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::duration(now() - start_)).count();
}

int64_t last_text(const QueryView& queries, int64_t most) {
  int64_t count = 0;
  while (count < std::min(most, queries.count()) &&
         queries.modalities[static_cast<size_t>(queries.count() - count - 1)] == Modality::text) {
    ++count;
  }
  return count;
}

bool SparseAttention::falls_back(int layer, const QueryView& queries, const RowSet& rows) const {
  return queries.count() - last_text(queries, options_.dense_last) < options_.least_queries ||
         !queries.parents.empty() || rows.count() < options_.dense_below ||
         layer < options_.dense_layers || dense_is_faster(layer, queries, rows);
}

bool SparseAttention::dense_is_faster(int layer, const QueryView& queries,
                                      const RowSet& rows) const {
  if (options_.dense_below == 0 || queries.queries.device().is_cpu()) return false;
  std::optional<GpuWorkload> work = gpu_workload(layer, queries, rows);
  if (!work) return false;
  if (options_.delta_stride > 0) work->measured += 1 / static_cast<double>(options_.delta_stride);
  const GpuCall call{queries.count(), rows.count(), queries.queries.size(1),
                     queries.queries.size(2)};
  return dense_seconds(call) < sparse_seconds(call, *work);
}

std::vector<LabelledPlan> SparseAttention::plans(const Context& context, int layer,
                                                 const QueryView& queries, const RowSet& rows,
                                                 float scale) {
  const int64_t last = last_text(queries, options_.dense_last);
  const int64_t first = queries.count() - last;
  std::vector<LabelledPlan> planned;
  if (first == 0) {
    planned.push_back({"dense", dense_plan(queries, rows)});
    return planned;
  }
  planned = sparse_plans(context, layer, slice(queries, 0, first), rows, scale);
  for (LabelledPlan& labelled : planned) {
    PlanBuilder builder(queries, rows);
    builder.begin_queries();
    builder.add_query_range(first, queries.count());
    builder.begin_segments();
    builder.add_rows(0, rows.count());
    for (const int32_t head : heads_of(labelled.plan)) {
      if (last > 0) builder.add_tile(head);
    }
    labelled.plan.query_count = queries.count();
    append(labelled.plan, builder.take());
  }
  return planned;
}

void SparseAttention::attend(const Context& context, int layer, const QueryView& queries,
                             const RowSet& given, float scale, TensorView out) {
  const WideRows wide(context, given);  // once for all that reads them
  const RowSet& rows = wide.rows();
  ++report_.calls;
  report_.dense_pairs += dense_pairs(queries.queries.size(1), queries, rows);
  if (falls_back(layer, queries, rows)) {
    ++report_.dense_calls;
    attend_densely(context, "dense", queries, rows, scale, out, 0);
    return;
  }
  const int64_t last = last_text(queries, options_.dense_last);
  const int64_t first = queries.count() - last;
  if (context.device.is_cpu()) {
    attend_sparsely(context, layer, slice(queries, 0, first), rows, scale, out.rows(0, first));
  } else {
    attend_on_gpu(context, layer, slice(queries, 0, first), rows, scale, out.rows(0, first));
  }
  if (last == 0) return;
  attend_densely(context, "last queries", queries, rows, scale, out, first);
}

void SparseAttention::attend_densely(const Context& context, const char* label,
                                     const QueryView& all, const RowSet& rows, float scale,
                                     TensorView all_out, int64_t first) {
  const QueryView queries = first == 0 ? all : slice(all, first, all.count() - first);
  const TensorView out = all_out.rows(first, queries.count());
  const int64_t heads = queries.queries.size(1);
  const int64_t pairs = dense_pairs(heads, queries, rows);
  RunOptions options = gpu_run();
  if (state_.max != nullptr) {
    options.state = {state_.max + first * heads, state_.sum + first * heads};
  }
  if (!context.device.is_cpu()) {
    gpu_work_.begin(context, label, heads);
    gpu_work_.planned(context);
    run_dense(context, queries, rows, scale, out, options);
    return gpu_work_.end(context, pairs);
  }
  const RunTimer watch;
  run_dense(context, queries, rows, scale, out, options);
  AttentionReport::Part& part = report_.parts[label];
  part.heads += heads;
  part.pairs += pairs;
  part.seconds += watch.seconds();
  report_.pairs += pairs;
  report_.run_seconds += watch.seconds();
}

void SparseAttention::attend_sparsely(const Context& context, int layer, const QueryView& queries,
                                      const RowSet& rows, float scale, TensorView out) {
  const RunTimer index_watch;
  std::vector<LabelledPlan> planned = sparse_plans(context, layer, queries, rows, scale);
  report_.index_seconds += index_watch.seconds();
  run(context, std::move(planned), queries, rows, scale, out);
  if (options_.delta_stride == 0) return;
  const RunTimer watch;
  const SampledQueries sampled(context, queries, options_.delta_stride);
  const QueryView view = sampled.view();
  Tensor exact(DType::f32, view.queries.shape());
  run_dense(context, view, rows, scale, exact);
  apply_delta(context, exact, sampled.places(), out);
  AttentionReport::Part& part = report_.parts["delta"];
  const int64_t pairs = dense_pairs(queries.queries.size(1), view, rows);
  part.heads += queries.queries.size(1);
  part.pairs += pairs;
  part.seconds += watch.seconds();
  report_.pairs += pairs;
  report_.run_seconds += watch.seconds();
}

const AttentionReport* SparseAttention::report() const {
  gpu_work_.settle(report_);
  report_.launches = launches_;
  return &report_;
}

void SparseAttention::clear_report() {
  gpu_work_.clear();
  launches_ = {};
  report_ = {};
  report_.dtype = options_.dtype;
}

void SparseAttention::attend_on_gpu(const Context& context, int layer, const QueryView& queries,
                                    const RowSet& rows, float scale, TensorView out) {
  const int64_t heads = queries.queries.size(1);
  const bool by_data = plans_by_data(layer, static_cast<int>(heads));
  const int plan_layer = plans_alike() ? 0 : layer;
  const StoredGpuPlan* stored = by_data ? nullptr : gpu_plans_.find(plan_layer, queries, rows, out);
  if (stored == nullptr) {
    const RunTimer watch;
    const Context host(*context.threads);
    std::vector<LabelledPlan> planned;
    if (by_data) {
      const HostCall call({layer, queries, std::span(&rows, 1), scale});
      planned = sparse_plans(host, layer, call.queries(), call.rows(), scale);
    } else {
      planned = sparse_plans(host, layer, queries, rows, scale);
    }
    Plan joined;
    StoredGpuPlan made;
    for (LabelledPlan& labelled : planned) {
      made.label += (made.label.empty() ? "" : ", ") + labelled.label;
      if (joined.tiles.empty()) {
        joined = std::move(labelled.plan);
      } else {
        append(joined, labelled.plan);
      }
    }
    validate(joined, queries, rows);
    made.pairs = attended_pairs(joined, queries, rows);
    made.plan = cuda_attention::device_plan(context, joined, queries, rows, out);
    stored = &gpu_plans_.put(plan_layer, queries, rows, out, std::move(made));
    report_.index_seconds += watch.seconds();
  }
  gpu_work_.begin(context, stored->label, heads);
  gpu_work_.planned(context);
  cuda_attention::run_plan(context, stored->plan, queries, rows, scale, out, gpu_run());
  gpu_work_.end(context, stored->pairs);
  correct_on_gpu(context, queries, rows, scale, options_.delta_stride, out);
}

void SparseAttention::correct_on_gpu(const Context& context, const QueryView& queries,
                                     const RowSet& rows, float scale, int64_t stride,
                                     TensorView out) {
  if (stride == 0) return;
  const SampledQueries sampled(context, queries, stride);
  const QueryView view = sampled.view();
  gpu_work_.begin(context, "delta", queries.queries.size(1));
  gpu_work_.planned(context);
  Tensor exact(out.dtype(), view.queries.shape(), context.device);
  run_dense(context, view, rows, scale, exact, {.dtype = options_.dtype, .launches = &launches_});
  apply_delta(context, exact, sampled.places(), out);
  gpu_work_.end(context, dense_pairs(queries.queries.size(1), view, rows));
}

// All plans in one go: with many cores each by itself would have too few tiles for them.
void SparseAttention::run(const Context& context, std::vector<LabelledPlan> planned,
                          const QueryView& queries, const RowSet& rows, float scale,
                          TensorView out) {
  struct Share {
    AttentionReport::Part* part;
    size_t tiles_end;
    double seconds = 0;
  };
  // Counting is for the report alone, so no time is booked for it.
  std::vector<Share> shares;
  std::vector<Plan> plans;
  size_t tiles = 0;
  for (LabelledPlan& labelled : planned) {
    AttentionReport::Part& part = report_.parts[labelled.label];
    const int64_t pairs = attended_pairs(labelled.plan, queries, rows, context.threads);
    part.heads += static_cast<int64_t>(heads_of(labelled.plan).size());
    part.pairs += pairs;
    report_.pairs += pairs;
    tiles += labelled.plan.tiles.size();
    shares.push_back({&part, tiles});
    plans.push_back(std::move(labelled.plan));
  }
  if (shares.empty()) return;
  const RunTimer watch;
  const Plan joined = join(std::move(plans), context.threads);
  std::vector<double> tile_seconds(joined.tiles.size());
  run_plan(context, joined, queries, rows, scale, out,
           {.state = state_, .tile_seconds = tile_seconds.data()});
  // A pattern's part of the whole is its part of what the threads did.
  size_t tile = 0;
  double total = 0;
  for (Share& share : shares) {
    for (; tile < share.tiles_end; ++tile) share.seconds += tile_seconds[tile];
    total += share.seconds;
  }
  const double passed = watch.seconds();
  report_.run_seconds += passed;
  for (const Share& share : shares) {
    if (total > 0) share.part->seconds += passed * share.seconds / total;
  }
}

}  // namespace kinora
