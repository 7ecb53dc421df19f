#include "attention/search/probe.h"

#include <algorithm>
#include <array>

#include "ops/matmul.h"
#include "ops/packed_rows.h"
#include "ops/softmax.h"

namespace kinora {
namespace {

// Keys of one kv head as a matrix [rows, head size]; those of 8 bits are widened into `room`.
ConstTensorView keys_of(const Context& context, const RowSet& rows, int64_t kv_head, Tensor& room) {
  const ConstTensorView& keys = rows.keys;
  const ConstTensorView head(keys.raw() + kv_head * keys.stride(1) * dtype_size(keys.dtype()),
                             keys.dtype(), {keys.size(0), 1, keys.size(2)},
                             {keys.stride(0), keys.stride(1), 1}, keys.device());
  const ConstTensorView plain = plain_rows(context, head, room);
  return {plain.raw(),
          plain.dtype(),
          {plain.size(0), plain.size(2)},
          {plain.stride(0), 1},
          plain.device()};
}

}  // namespace

Probe probe_region(const Context& context, const QueryView& queries, const RowSet& rows,
                   const Region& region, int head, float scale, ProbeOf of, int64_t count) {
  Probe probe;
  probe.columns.assign(region.rows.size(), 0.0f);
  std::vector<size_t> chosen;
  std::array<int64_t, 4> taken{};  // by modality
  for (size_t i = region.queries.size(); i > 0; --i) {
    if (region.query_reach[i - 1] < region.row_coordinates.front()) break;
    const auto query = static_cast<size_t>(region.queries[i - 1]);
    const auto modality =
        of == ProbeOf::region ? size_t{0} : static_cast<size_t>(queries.modalities[query]);
    if (taken[modality]++ < count) chosen.push_back(i - 1);
  }
  if (chosen.empty()) return probe;
  probe.queries = static_cast<int64_t>(chosen.size());
  probe.diagonals.assign(static_cast<size_t>(region.query_coordinates[chosen.front()]) + 1, 0.0f);

  const ConstTensorView& q = queries.queries;
  const int64_t head_size = q.size(2);
  Tensor picked(DType::f32, {probe.queries, head_size});
  for (size_t i = 0; i < chosen.size(); ++i) {
    const float* from = q.row<float>(region.queries[chosen[i]]) + head * q.stride(1);
    float* to = picked.data<float>() + static_cast<int64_t>(i) * head_size;
    for (int64_t c = 0; c < head_size; ++c) to[c] = from[c] * scale;
  }
  const int64_t kv_head = head / (q.size(1) / rows.keys.size(1));
  Tensor scores(DType::f32, {probe.queries, rows.count()});
  Tensor room;
  matmul(context, picked, keys_of(context, rows, kv_head, room), scores);

  for (size_t i = 0; i < chosen.size(); ++i) {
    float* score = scores.data<float>() + static_cast<int64_t>(i) * rows.count();
    const int64_t coordinate = region.query_coordinates[chosen[i]];
    const auto seen =
        static_cast<size_t>(region.place_of(int64_t{region.query_reach[chosen[i]]} + 1));
    // The k-th row of a region is never before row k, so that its scores move to the front in
    // place.
    if (region.rows.back() + 1 != region.row_count()) {
      for (size_t k = 0; k < seen; ++k) score[k] = score[region.rows[k]];
    }
    const auto weights = TensorView::of(score, {1, static_cast<int64_t>(seen)});
    softmax(context, weights, weights);
    for (size_t k = 0; k < seen; ++k) probe.columns[k] += score[k];
    if (region.unbroken) {
      float* diagonal =
          &probe.diagonals[static_cast<size_t>(coordinate - region.row_coordinates[0])];
      for (size_t k = 0; k < seen; ++k) *diagonal-- += score[k];
    } else {
      for (size_t k = 0; k < seen; ++k) {
        probe.diagonals[static_cast<size_t>(coordinate - region.row_coordinates[k])] += score[k];
      }
    }
  }
  return probe;
}

}  // namespace kinora
