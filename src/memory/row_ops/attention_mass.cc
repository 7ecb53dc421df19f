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

void check(ConstTensorView queries, ConstTensorView keys, int64_t kv_heads, int64_t weights) {
  if (queries.size(1) % kv_heads == 0 && keys.size(1) == kv_heads * queries.size(2) &&
      weights == keys.size(0)) {
    return;
  }
  throw Error(ErrorKind::internal, "attention mass: queries, keys and weights do not fit");
}

}  // namespace

Tensor attention_mass_there(const Context& context, ConstTensorView queries, ConstTensorView keys,
                            int64_t kv_heads, ConstTensorView log_weights, bool softmax) {
  check(queries, keys, kv_heads, log_weights.size(0));
  const int64_t count = keys.size(0), size = queries.size(2), share = queries.size(1) / kv_heads;
  Tensor mass(DType::f32, {count}, context.device);
  clear_async(context, mass.view().raw(), static_cast<size_t>(mass.bytes()));
  const float scale = softmax ? 1 / std::sqrt(static_cast<float>(size)) : 1.0f;
  for (int64_t first = 0; first < queries.size(0); first += most_tokens) {
    const int64_t tokens = std::min(most_tokens, queries.size(0) - first), rows = tokens * share;
    Tensor arranged(keys.dtype(), {kv_heads, rows, size}, context.device);
    cuda::arrange_queries(context, queries.rows(first, tokens), scale, arranged.view());
    Tensor scores(DType::f32, {kv_heads * rows, count}, context.device);
    for (int64_t head = 0; head < kv_heads; ++head) {
      matmul(context, arranged.view()[head], keys.columns(head * size, size),
             scores.view().rows(head * rows, rows));
    }
    cuda::add_attention_mass(context, scores.view(), log_weights, softmax, mass.view());
  }
  return mass;
}

std::vector<double> attention_mass(const Context& context, ConstTensorView queries,
                                   ConstTensorView keys, int64_t kv_heads,
                                   std::span<const float> log_weights, bool softmax) {
  const int64_t tokens = queries.size(0), heads = queries.size(1), size = queries.size(2);
  const int64_t count = keys.size(0);
  check(queries, keys, kv_heads, std::ssize(log_weights));
  if (count == 0) return {};
  if (!context.device.is_cpu()) {
    Tensor logs(DType::f32, {count}, context.device);
    copy_async(context, logs.view().raw(), log_weights.data(), log_weights.size_bytes());
    const Tensor mass = attention_mass_there(context, queries, keys, kv_heads, logs, softmax);
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
