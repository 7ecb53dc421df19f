// Delta correction (docs/methods/momo.md): every γ-th query is computed densely, and the error that
// the sparse result has there is added to the γ queries that follow. Works over any sparse result.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/attention.h"

namespace kinora {

// Every `stride`-th query of a group, as a view of the same memory.
class SampledQueries {
 public:
  SampledQueries(const QueryView& queries, int64_t stride);
  QueryView view() const { return {queries_, ordinals_, modalities_}; }

 private:
  ConstTensorView queries_;
  std::vector<int32_t> ordinals_;
  std::vector<Modality> modalities_;
};

// out[i] += dense[⌊i / stride⌋] − out[⌊i / stride⌋ · stride], with out as it was before.
//   out [count, heads, d] f32;  dense [⌈count / stride⌉, heads, d] f32
void apply_delta(const Context& context, ConstTensorView dense, int64_t stride, TensorView out);

}  // namespace kinora
