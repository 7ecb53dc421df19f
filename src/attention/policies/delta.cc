#include "attention/policies/delta.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "attention/cuda/delta_cuda.h"
#include "base/error.h"
#include "ops/gather.h"

namespace kinora {

std::vector<int32_t> measured_queries(int64_t count, int64_t stride) {
  if (stride < 1) {
    throw Error(ErrorKind::usage,
                fmt::format("a query stride of {}; it must be at least 1", stride));
  }
  std::vector<int32_t> places;
  if (count == 0) return places;
  const int64_t first = (count - 1) % stride;
  if (first > 0) places.push_back(0);
  for (int64_t place = first; place < count; place += stride) {
    places.push_back(static_cast<int32_t>(place));
  }
  return places;
}

SampledQueries::SampledQueries(const Context& context, const QueryView& queries, int64_t stride)
    : places_(measured_queries(queries.count(), stride)), cancel_(queries.cancel) {
  const ConstTensorView& q = queries.queries;
  const auto count = static_cast<int64_t>(places_.size());
  queries_ = Tensor(q.dtype(), {count, q.size(1), q.size(2)}, q.device());
  for (const int32_t place : places_) {
    ordinals_.push_back(queries.ordinals[static_cast<size_t>(place)]);
    modalities_.push_back(queries.modalities[static_cast<size_t>(place)]);
  }
  if (!context.device.is_cpu()) {
    const int64_t width = q.size(1) * q.size(2);
    const ConstTensorView flat(q.raw(), q.dtype(), {q.size(0), width}, {q.stride(0), 1},
                               q.device());
    gather_rows(context, flat, places_, queries_.view().reshaped({count, width}));
    return;
  }
  const auto unit = static_cast<int64_t>(dtype_size(q.dtype()));
  const int64_t bytes = q.size(2) * unit;
  std::byte* to = queries_.view().raw();
  for (const int32_t place : places_) {
    for (int64_t head = 0; head < q.size(1); ++head, to += bytes) {
      std::memcpy(to, q.raw() + (place * q.stride(0) + head * q.stride(1)) * unit,
                  static_cast<size_t>(bytes));
    }
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
