#include "attention/policies/dense.h"

#include <algorithm>

#include "attention/cuda/runner_cuda.h"
#include "attention/cuda/wide_rows.h"
#include "attention/policies/policy.h"
#include "attention/runner_checks.h"

namespace kinora {

const PatternKind& dense_pattern() {
  static const PatternKind kind{.name = "dense",
                                .resolve =
                                    [](const SizeValues&, const Region&, const Probe&) {
                                      LineIndex index;
                                      index.everything = true;
                                      return index;
                                    },
                                .read =
                                    [](std::span<const GivenSetting> given, int32_t) {
                                      match_settings(given, {});
                                      return SizeValues();
                                    }};
  return kind;
}

AttentionPolicy dense_policy() {
  AttentionPolicy policy;
  policy.info = {"dense", "all rows"};
  policy.runs_on_gpu = true;
  policy.pattern = {std::shared_ptr<void>(), &dense_pattern()};
  policy.check = [](std::span<const GivenSetting> given) { match_settings(given, {}); };
  policy.make = [](std::span<const GivenSetting> given, const AttentionOptions& options) {
    match_settings(given, {});
    return std::make_unique<DenseAttention>(options.sparse.dtype);
  };
  return policy;
}

Plan dense_plan(const QueryView& queries, const RowSet& rows, int64_t tile_rows) {
  PlanBuilder builder(queries, rows);
  const auto heads = static_cast<int>(queries.queries.size(1));
  const auto kv_heads = static_cast<int>(rows.keys.size(1));
  const int group = heads / kv_heads;
  const int64_t step = std::max<int64_t>(1, tile_rows / group);
  for (int64_t begin = 0; begin < queries.count(); begin += step) {
    builder.begin_queries();
    builder.add_query_range(begin, std::min(begin + step, queries.count()));
    builder.begin_segments();
    builder.add_rows(0, rows.count());
    for (int kv_head = 0; kv_head < kv_heads; ++kv_head) builder.add_tile(kv_head * group, group);
  }
  return builder.take();
}

void run_dense(const Context& context, const QueryView& queries, const RowSet& rows, float scale,
               TensorView out, const RunOptions& options) {
  if (!context.device.is_cpu()) {
    check_attention(context, queries, rows, out, options);
    const WideRows wide(context, rows);
    return cuda_attention::run_dense(context, queries, wide.rows(), scale, out, options);
  }
  run_plan(context, dense_plan(queries, rows), queries, rows, scale, out, options);
}

void DenseAttention::attend(const Context& context, int, const QueryView& queries,
                            const RowSet& rows, float scale, TensorView out) {
  if (!context.device.is_cpu()) {
    ++report_.calls;
    ++report_.dense_calls;
  }
  run_dense(context, queries, rows, scale, out,
            {.dtype = report_.dtype, .launches = &report_.launches});
}

}  // namespace kinora
