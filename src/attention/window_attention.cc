#include "attention/window_attention.h"

#include <fmt/core.h>

#include <algorithm>

#include "attention/cuda/runner_cuda.h"
#include "attention/cuda/wide_rows.h"
#include "attention/runner.h"
#include "attention/runner_checks.h"
#include "base/error.h"

namespace kinora {
namespace {

constexpr int64_t tile_rows = 128;

void check_offsets(std::span<const int32_t> offsets, int64_t count) {
  bool good = !offsets.empty() && offsets.front() == 0 && offsets.back() == count;
  for (size_t i = 1; good && i < offsets.size(); ++i) good = offsets[i - 1] <= offsets[i];
  if (!good) {
    throw Error(
        ErrorKind::internal,
        fmt::format("attend_windows: the {} offsets do not divide {} rows", offsets.size(), count));
  }
}

}  // namespace

void attend_windows(const Context& context, ConstTensorView q, ConstTensorView k, ConstTensorView v,
                    std::span<const int32_t> offsets, float scale, TensorView out) {
  check_offsets(offsets, q.size(0));
  const QueryView queries{.queries = q, .ordinals = {}, .modalities = {}};
  const RowSet rows{.keys = k, .values = v, .ordinals = {}, .modalities = {}};
  if (!context.device.is_cpu()) {
    check_attention(context, queries, rows, out, {});
    const WideRows wide(context, rows);
    return cuda_attention::run_windows(context, q, wide.rows().keys, wide.rows().values, offsets,
                                       scale, out);
  }
  Plan plan;
  plan.heads = static_cast<int32_t>(q.size(1));
  plan.kv_heads = static_cast<int32_t>(k.size(1));
  plan.query_count = q.size(0);
  plan.row_count = k.size(0);
  plan.query_rows.resize(static_cast<size_t>(q.size(0)));
  for (size_t i = 0; i < plan.query_rows.size(); ++i) plan.query_rows[i] = static_cast<int32_t>(i);
  for (size_t window = 0; window + 1 < offsets.size(); ++window) {
    const int64_t begin = offsets[window];
    const int64_t end = offsets[window + 1];
    if (begin == end) continue;
    plan.segments.push_back({begin, end - begin, 1, false});
    const auto segment = static_cast<int64_t>(plan.segments.size()) - 1;
    for (int64_t row = begin; row < end; row += tile_rows) {
      for (int32_t head = 0; head < plan.heads; ++head) {
        plan.tiles.push_back(
            {head, 1, 0, row, std::min(row + tile_rows, end), segment, segment + 1});
      }
    }
  }
  run_plan(context, plan, queries, rows, scale, out);
}

}  // namespace kinora
