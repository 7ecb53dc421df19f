#include "memory/row_ops/attention_mass.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/gpu.h"
#include "ops/matmul.h"

namespace kinora {
namespace {

// Queries whose scores a GPU holds at a time: with thousands of rows they are many.
constexpr int64_t most_tokens = 64;
// Queries of one head that a thread adds up. Sums do not depend on the number of threads.
constexpr int64_t pairs_together = 8;

// What w normal numbers with a standard deviation of t add to the logarithm of their mean e^x.
float spread_gain(float t, float log_weight) {
  if (!(log_weight > 0)) return 0;  // one number, or none
  const float most = std::sqrt(2 * log_weight);
  return t < most ? t * t / 2 : most * (t - most / 2);
}

void check(ConstTensorView queries, ConstTensorView keys, int64_t kv_heads, int64_t weights) {
  if (queries.size(1) % kv_heads == 0 && keys.size(1) == kv_heads * queries.size(2) &&
      weights == keys.size(0)) {
    return;
  }
  throw Error(ErrorKind::internal, "attention mass: queries, keys and weights do not fit");
}

}  // namespace

Tensor attention_mass_there(const Context& context, ConstTensorView queries, ConstTensorView keys,
                            int64_t kv_heads, ConstTensorView log_weights, bool softmax,
                            ConstTensorView spreads) {
  check(queries, keys, kv_heads, log_weights.size(0));
  const int64_t count = keys.size(0), size = queries.size(2), share = queries.size(1) / kv_heads;
  Tensor mass(DType::f32, {count}, context.device);
  if (queries.size(0) == 0)
    clear_async(context, mass.view().raw(), static_cast<size_t>(mass.bytes()));
  const float scale = softmax ? 1 / std::sqrt(static_cast<float>(size)) : 1.0f;
  // Scores, their statistics and the queries' lengths, in one piece: making memory takes as long as
  // starting a kernel. Pairs begin at even places.
  const auto room_for = [](int64_t rows) { return (rows + 15) / 16 * 16; };
  const int64_t most = kv_heads * room_for(std::min(most_tokens, queries.size(0)) * share);
  Tensor scratch(DType::f32, {most * (count + 3) + 1}, context.device);
  const auto part = [&](int64_t begin, const Shape& shape) {
    return scratch.view().rows(begin, shape.elements()).reshaped(shape);
  };
  for (int64_t first = 0; first < queries.size(0); first += most_tokens) {
    const int64_t tokens = std::min(most_tokens, queries.size(0) - first), each = tokens * share;
    const cuda::MassQueries how{kv_heads, each, room_for(each)};
    Tensor arranged(keys.dtype(), {kv_heads, how.room, size}, context.device);
    const TensorView scores = part(0, {kv_heads, how.room, count});
    const int64_t past = (scores.elements() + 1) / 2 * 2;
    const TensorView statistics = part(past, {kv_heads, how.room, 2});
    const TensorView lengths = part(past + statistics.elements(), {kv_heads, how.room});
    cuda::arrange_queries(context, queries.rows(first, tokens), scale, how, arranged.view(),
                          lengths);
    if (!cuda::score_keys(context, arranged, keys, scores)) {
      for (int64_t head = 0; head < kv_heads; ++head) {
        matmul(context, arranged.view()[head].rows(0, each), keys.columns(head * size, size),
               scores[head].rows(0, each));
      }
    }
    cuda::sum_attention_mass(context, scores, how, {log_weights, spreads, lengths}, softmax,
                             first > 0, statistics, mass.view());
  }
  return mass;
}

std::vector<double> attention_mass(const Context& context, ConstTensorView queries,
                                   ConstTensorView keys, int64_t kv_heads,
                                   std::span<const float> log_weights, bool softmax,
                                   std::span<const float> spreads) {
  const int64_t tokens = queries.size(0), heads = queries.size(1), size = queries.size(2);
  const int64_t count = keys.size(0);
  check(queries, keys, kv_heads, std::ssize(log_weights));
  if (count == 0) return {};
  if (!context.device.is_cpu()) {
    const auto there = [&](std::span<const float> numbers) {
      Tensor out(DType::f32, {count}, context.device);
      copy_async(context, out.view().raw(), numbers.data(), numbers.size_bytes());
      return out;
    };
    const Tensor logs = there(log_weights), differ = spreads.empty() ? Tensor() : there(spreads);
    const Tensor mass =
        attention_mass_there(context, queries, keys, kv_heads, logs, softmax,
                             spreads.empty() ? ConstTensorView() : ConstTensorView(differ));
    std::vector<float> out(static_cast<size_t>(count));
    synchronize(context);
    copy_bytes(out.data(), Device::cpu(), mass.view().raw(), context.device,
               out.size() * sizeof(float));
    return {out.begin(), out.end()};
  }
  const auto rows = static_cast<size_t>(count);
  const float scale = softmax ? 1 / std::sqrt(static_cast<float>(size)) : 1.0f;
  const int64_t pairs = tokens * heads, parts = (pairs + pairs_together - 1) / pairs_together;
  std::vector<double> partial(static_cast<size_t>(parts) * rows);
  context.threads->parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scores(rows);
    for (int64_t pair = begin * pairs_together; pair < std::min(pairs, end * pairs_together);
         ++pair) {
      double* sums = partial.data() + static_cast<size_t>(pair / pairs_together) * rows;
      const int64_t head = pair % heads, column = head / (heads / kv_heads) * size;
      const float* query = queries.row<float>(pair / heads) + head * queries.stride(1);
      float squares = 0;
      for (int64_t i = 0; i < size; ++i) squares += query[i] * query[i];
      const float length = scale * std::sqrt(squares);
      float largest = -INFINITY;
      for (size_t row = 0; row < rows; ++row) {
        if (log_weights[row] == -INFINITY) continue;
        const float* key = keys.row<float>(static_cast<int64_t>(row)) + column;
        float dot = 0;
        for (int64_t i = 0; i < size; ++i) dot += query[i] * key[i];
        if (!softmax) {
          sums[row] += double{dot};
          continue;
        }
        scores[row] = dot * scale + log_weights[row];
        if (!spreads.empty()) scores[row] += spread_gain(length * spreads[row], log_weights[row]);
        largest = std::max(largest, scores[row]);
      }
      if (!softmax) continue;
      double sum = 0;
      for (size_t row = 0; row < rows; ++row) {
        if (log_weights[row] == -INFINITY) continue;
        sum += double{scores[row] = std::exp(scores[row] - largest)};
      }
      for (size_t row = 0; row < rows; ++row) {
        if (log_weights[row] > -INFINITY) sums[row] += double{scores[row]} / sum;
      }
    }
  });
  std::vector<double> out(rows);
  for (int64_t part = 0; part < parts; ++part) {
    const double* sums = partial.data() + static_cast<size_t>(part) * rows;
    for (size_t row = 0; row < rows; ++row) out[row] += sums[row];
  }
  return out;
}

}  // namespace kinora
