#include "attention/policies/delta.h"

#include <fmt/core.h>

#include <algorithm>

#include "attention/cuda/delta_cuda.h"
#include "base/error.h"

namespace kinora {

SampledQueries::SampledQueries(const QueryView& queries, int64_t stride) {
  if (stride < 1) {
    throw Error(ErrorKind::usage,
                fmt::format("a query stride of {}; it must be at least 1", stride));
  }
  const ConstTensorView& q = queries.queries;
  const int64_t count = (queries.count() + stride - 1) / stride;
  queries_ = ConstTensorView(q.raw(), q.dtype(), {count, q.size(1), q.size(2)},
                             {q.stride(0) * stride, q.stride(1), q.stride(2)}, q.device());
  for (int64_t i = 0; i < count; ++i) {
    places_.push_back(static_cast<int32_t>(i * stride));
    ordinals_.push_back(queries.ordinals[static_cast<size_t>(i * stride)]);
    modalities_.push_back(queries.modalities[static_cast<size_t>(i * stride)]);
  }
}

void apply_delta(const Context& context, ConstTensorView dense, std::span<const int32_t> places,
                 TensorView out) {
  if (!context.device.is_cpu()) return cuda_attention::apply_delta(context, dense, places, out);
  const int64_t heads = out.size(1), head_size = out.size(2);
  context.threads->parallel_for(std::ssize(places), 4, [&](int64_t begin, int64_t end) {
    std::vector<float> delta(static_cast<size_t>(head_size));
    for (int64_t sample = begin; sample < end; ++sample) {
      const auto at = static_cast<size_t>(sample);
      const int64_t first = places[at];
      const int64_t last = at + 1 < places.size() ? places[at + 1] : out.size(0);
      for (int64_t head = 0; head < heads; ++head) {
        const float* exact = dense.row<float>(sample) + head * dense.stride(1);
        const float* sparse = out.row<float>(first) + head * out.stride(1);
        for (int64_t c = 0; c < head_size; ++c) {
          delta[static_cast<size_t>(c)] = exact[c] - sparse[c];
        }
        for (int64_t i = first; i < last; ++i) {
          float* to = out.row<float>(i) + head * out.stride(1);
          for (int64_t c = 0; c < head_size; ++c) to[c] += delta[static_cast<size_t>(c)];
        }
      }
    }
  });
}

}  // namespace kinora
