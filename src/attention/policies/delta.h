// Delta correction (docs/methods/momo.md): every γ-th query is computed densely, and the error that
// the sparse result has there is added to the queries that follow. Works over any sparse result.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention.h"

namespace kinora {

// The queries of a group that are measured: every `stride`-th, counted back from the last one, from
// which generation may continue, and the first. Increasing. Every run of `stride` queries has one.
std::vector<int32_t> measured_queries(int64_t count, int64_t stride);

// These queries by themselves, copied.
class SampledQueries {
 public:
  // On a GPU the heads of a query must lie side by side.
  SampledQueries(const Context& context, const QueryView& queries, int64_t stride);
  QueryView view() const { return {queries_, ordinals_, modalities_, {}, cancel_}; }
  std::span<const int32_t> places() const { return places_; }  // in the group

 private:
  std::vector<int32_t> places_;
  Tensor queries_;
  std::vector<int32_t> ordinals_;
  std::vector<Modality> modalities_;
  const CancelToken* cancel_;
};

// With p the measured query before i or i itself: out[i] += dense[p] − out[p], with out as it was
// before.
//   out [count, heads, d] f32;  dense [measured, heads, d] f32; on a GPU both may be bf16
//   places: of the measured queries, the first of all among them
void apply_delta(const Context& context, ConstTensorView dense, std::span<const int32_t> places,
                 TensorView out);

}  // namespace kinora
