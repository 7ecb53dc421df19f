#include "bench/attention_error.h"

#include <algorithm>
#include <cmath>

#include "attention/cuda/runner_cuda.h"
#include "base/random.h"

namespace kinora::cli {
namespace {

constexpr int64_t looked_at = 16;  // queries, the last ones

std::vector<float> floats_on_host(const ConstTensorView& view) {
  std::vector<bf16> codes(static_cast<size_t>(view.elements()));
  copy_bytes(codes.data(), Device::cpu(), view.raw(), view.device(), codes.size() * sizeof(bf16));
  std::vector<float> values(codes.size());
  std::transform(codes.begin(), codes.end(), values.begin(),
                 [](bf16 code) { return code.to_float(); });
  return values;
}

// One query of one head: out [d].
void attend_exactly(const float* query, const float* keys, const float* values, int64_t rows,
                    int64_t pitch, int64_t d, double scale, double* out) {
  std::vector<double> scores(static_cast<size_t>(rows));
  double high = -INFINITY;
  for (int64_t row = 0; row < rows; ++row) {
    double dot = 0;
    for (int64_t i = 0; i < d; ++i) dot += double{query[i]} * double{keys[row * pitch + i]};
    scores[static_cast<size_t>(row)] = dot * scale;
    high = std::max(high, dot * scale);
  }
  double sum = 0;
  std::fill_n(out, d, 0.0);
  for (int64_t row = 0; row < rows; ++row) {
    const double weight = std::exp(scores[static_cast<size_t>(row)] - high);
    sum += weight;
    for (int64_t i = 0; i < d; ++i) out[i] += weight * double{values[row * pitch + i]};
  }
  for (int64_t i = 0; i < d; ++i) out[i] /= sum;
}

AttentionError compare(const Context& context, const std::string& name, const QueryView& queries,
                       const RowSet& rows, float scale) {
  const int64_t count = queries.count(), heads = queries.queries.size(1);
  const int64_t d = queries.queries.size(2), kv_heads = rows.keys.size(1);
  const std::vector<float> q = floats_on_host(queries.queries);
  const std::vector<float> k = floats_on_host(rows.keys), v = floats_on_host(rows.values);
  std::vector<double> exact(q.size());
  context.threads->parallel_for(count * heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      const int64_t kv_head = pair % heads / (heads / kv_heads);
      const int64_t seen = queries.ordinals[static_cast<size_t>(pair / heads)] + int64_t{1};
      attend_exactly(q.data() + pair * d, k.data() + kv_head * d, v.data() + kv_head * d, seen,
                     kv_heads * d, d, double{scale}, exact.data() + pair * d);
    }
  });
  const auto error_in = [&](AttentionDtype dtype) {
    Tensor out(DType::f32, queries.queries.shape(), context.device);
    cuda_attention::run_dense(context, queries, rows, scale, out,
                              {.dtype = dtype, .least_fp8_queries = 0});
    const Tensor here = out.to(Device::cpu());
    double wrong = 0, all = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
      const double difference = double{here.data<float>()[i]} - exact[i];
      wrong += difference * difference;
      all += exact[i] * exact[i];
    }
    return std::sqrt(wrong / all);
  };
  return {name, error_in(AttentionDtype::bf16), error_in(AttentionDtype::fp8)};
}

// Normal numbers; with `outliers`, two columns of the keys lie far from zero and two spread far.
Tensor normal_rows(Random& random, int64_t rows, int64_t heads, int64_t d, bool outliers,
                   Device device) {
  Tensor tensor(DType::bf16, {rows, heads, d});
  std::vector<float> noise(1 << 16);
  for (float& value : noise) value = static_cast<float>(random.normal());
  bf16* to = tensor.data<bf16>();
  for (int64_t row = 0; row < rows * heads; ++row) {
    const auto offset = static_cast<size_t>(random.below(1 << 16));
    for (int64_t i = 0; i < d; ++i) {
      float value = noise[(offset + static_cast<size_t>(i) * 31) & 0xffff];
      if (outliers && (i == d / 16 || i == d / 3)) value += 16;
      if (outliers && (i == d / 2 + 5 || i == d - 9)) value *= 16;
      to[row * d + i] = bf16::from_float(value);
    }
  }
  return tensor.to(device);
}

}  // namespace

std::vector<AttentionError> attention_errors(const Context& context,
                                             const AttentionBenchOptions& options, int64_t tokens) {
  const AttentionShape& shape = options.shape;
  const int64_t count = std::min(tokens, looked_at);
  std::vector<AttentionError> errors;
  std::vector<int32_t> ordinals(static_cast<size_t>(tokens));
  for (size_t i = 0; i < ordinals.size(); ++i) ordinals[i] = static_cast<int32_t>(i);
  const std::vector<Modality> modalities(ordinals.size(), Modality::video);
  const auto last = static_cast<size_t>(tokens - count);
  const auto queries_of = [&](const ConstTensorView& queries) {
    return QueryView{queries, std::span(ordinals).subspan(last),
                     std::span(modalities).subspan(last)};
  };
  for (const bool outliers : {false, true}) {
    Random random(3);
    const int64_t d = shape.head_size;
    const Tensor q = normal_rows(random, count, shape.heads, d, false, context.device);
    const Tensor k = normal_rows(random, tokens, shape.kv_heads, d, outliers, context.device);
    const Tensor v = normal_rows(random, tokens, shape.kv_heads, d, false, context.device);
    errors.push_back(compare(context, outliers ? "a few large columns" : "normal",
                             queries_of(q.view()), {k.view(), v.view(), ordinals, modalities},
                             1 / std::sqrt(static_cast<float>(d))));
  }
  const VideoKeys input(context, shape, tokens, options.keys);
  errors.push_back(compare(context, "like those of video models",
                           queries_of(input.queries().queries.rows(tokens - count, count)),
                           input.rows(), input.scale()));
  return errors;
}

}  // namespace kinora::cli
