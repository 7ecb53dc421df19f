#include "attention/search/sampled_attention.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <numbers>

#include "attention/cpu/mass_cpu.h"
#include "base/error.h"
#include "base/gpu.h"
#include "ops/elementwise.h"

namespace kinora {
namespace {

constexpr int64_t block_rows = 256;

// The smallest number of weights, each in 0 … 1, that add up to `wanted`. Weights are counted by
// the first bits of their floats, which are in the order of the numbers; only those of the bits
// where the sum gets there are sorted.
class FewestWeights {
 public:
  int64_t count(std::span<const float> weights, double wanted) {
    std::fill(counts_.begin(), counts_.end(), 0);
    std::fill(sums_.begin(), sums_.end(), 0.0);
    for (const float weight : weights) {
      ++counts_[bucket(weight)];
      sums_[bucket(weight)] += double{weight};
    }
    int64_t taken = 0;
    double held = 0;
    size_t at = buckets - 1;
    for (; at > 0 && held + sums_[at] < wanted; --at) {
      held += sums_[at];
      taken += counts_[at];
    }
    some_.clear();
    for (const float weight : weights) {
      if (bucket(weight) == at) some_.push_back(weight);
    }
    std::sort(some_.begin(), some_.end(), std::greater<>());
    for (const float weight : some_) {
      if (held >= wanted) break;
      held += double{weight};
      ++taken;
    }
    return taken;
  }

 private:
  static constexpr int dropped_bits = 16;
  static constexpr size_t buckets = (std::bit_cast<uint32_t>(1.0f) >> dropped_bits) + 1;
  static size_t bucket(float weight) { return std::bit_cast<uint32_t>(weight) >> dropped_bits; }

  std::vector<int64_t> counts_ = std::vector<int64_t>(buckets);
  std::vector<double> sums_ = std::vector<double>(buckets);
  std::vector<float> some_;
};

// The sampled rows of the queries in f32, [places, heads, d].
Tensor sampled_queries(const Context& host, const ConstTensorView& queries,
                       std::span<const int32_t> places) {
  const auto count = static_cast<int64_t>(places.size());
  Tensor rows(queries.dtype(), {count, queries.size(1), queries.size(2)});
  for (int64_t i = 0; i < count; ++i) {
    const ConstTensorView row = queries[places[static_cast<size_t>(i)]];
    copy_bytes(rows.view()[i].raw(), Device::cpu(), row.raw(), row.device(),
               static_cast<size_t>(row.bytes()));
  }
  if (rows.dtype() == DType::f32) return rows;
  Tensor wide(DType::f32, rows.shape());
  convert(host, rows, wide);
  return wide;
}

// 2^(score − max) of some query heads that share a kv head, over the first rows of memory.
class QueryWeights {
 public:
  // Returns ln Σ exp(score) of every head.
  std::vector<double> weigh(const ConstTensorView& keys, int64_t kv_head, int64_t rows,
                            std::span<const float* const> queries, float scale) {
    const float factor = scale * std::numbers::log2e_v<float>;
    rows_ = rows;
    scores_.resize(queries.size() * static_cast<size_t>(rows));
    const int64_t element = dtype_size(keys.dtype());
    std::array<const std::byte*, block_rows> block{};
    for (int64_t begin = 0; begin < rows; begin += block_rows) {
      const int64_t count = std::min(block_rows, rows - begin);
      for (int64_t i = 0; i < count; ++i) {
        block[static_cast<size_t>(i)] =
            keys.raw() + ((begin + i) * keys.stride(0) + kv_head * keys.stride(1)) * element;
      }
      attention_cpu::score_rows(keys.dtype(), std::span(block).first(static_cast<size_t>(count)),
                                queries, keys.size(2), factor, scores_.data() + begin, rows);
    }
    sums_.clear();
    std::vector<double> log_sums;
    for (size_t head = 0; head < queries.size(); ++head) {
      const float max = attention_cpu::weigh_scores(of(head)).max;
      double sum = 0;
      for (const float weight : of(head)) sum += double{weight};
      sums_.push_back(sum);
      log_sums.push_back((double{max} + std::log2(sum)) * std::numbers::ln2);
    }
    return log_sums;
  }
  std::span<float> of(size_t head) {
    return std::span(scores_).subspan(head * static_cast<size_t>(rows_),
                                      static_cast<size_t>(rows_));
  }
  double sum(size_t head) const { return sums_[head]; }

 private:
  int64_t rows_ = 0;
  std::vector<float> scores_;  // [heads, rows]
  std::vector<double> sums_;
};

}  // namespace

std::vector<int32_t> spread_places(int64_t count, int64_t wanted) {
  wanted = std::min(count, wanted);
  std::vector<int32_t> places;
  for (int64_t i = 0; i < wanted; ++i) {
    // The golden ratio's multiples fall everywhere between the ends of their stretch.
    const double turn = static_cast<double>(i) * (std::numbers::phi - 1);
    const double within = turn - std::floor(turn);
    const int64_t begin = count * i / wanted, end = count * (i + 1) / wanted;
    places.push_back(static_cast<int32_t>(
        begin + static_cast<int64_t>(within * static_cast<double>(end - begin))));
  }
  return places;
}

SampledAttention sample_attention(const Context& context, const QueryView& queries,
                                  const RowSet& rows, float scale, std::span<const int32_t> places,
                                  double share) {
  if (rows.weighted() || rows.listed() || !rows.serves.empty() || !queries.parents.empty()) {
    throw Error(ErrorKind::internal, "sampled attention: rows with weights or lists, or a tree");
  }
  const Context host(*context.threads);
  const int64_t heads = queries.queries.size(1), kv_heads = rows.keys.size(1);
  const int64_t group = heads / kv_heads;
  synchronize(context);
  const Tensor sample = sampled_queries(host, queries.queries, places);
  Tensor copy;
  ConstTensorView keys = rows.keys;
  if (!keys.device().is_cpu()) {
    copy = Tensor(keys.dtype(), keys.shape());
    copy_bytes(copy.view().raw(), Device::cpu(), keys.raw(), keys.device(),
               static_cast<size_t>(copy.bytes()));
    keys = copy;
  }

  SampledAttention result;
  result.heads = heads;
  result.places.assign(places.begin(), places.end());
  result.log_sums.resize(places.size() * static_cast<size_t>(heads));
  std::vector<int64_t> needed(result.log_sums.size());
  std::vector<int64_t> seen;  // rows that each query may read
  for (const int32_t place : places) {
    const int32_t ordinal = queries.ordinals[static_cast<size_t>(place)];
    seen.push_back(std::upper_bound(rows.ordinals.begin(), rows.ordinals.end(), ordinal) -
                   rows.ordinals.begin());
  }
  const auto look = [&](int64_t at, QueryWeights& weights, FewestWeights& fewest) {
    const auto i = static_cast<size_t>(at / kv_heads);
    const int64_t kv_head = at % kv_heads;
    std::vector<const float*> pointers;
    for (int64_t head = 0; head < group; ++head) {
      pointers.push_back(sample.data<float>() +
                         (at / kv_heads * heads + kv_head * group + head) * keys.size(2));
    }
    const auto log_sums = weights.weigh(keys, kv_head, seen[i], pointers, scale);
    for (size_t head = 0; head < pointers.size(); ++head) {
      const size_t to =
          i * static_cast<size_t>(heads) + static_cast<size_t>(kv_head * group) + head;
      result.log_sums[to] = log_sums[head];
      needed[to] = fewest.count(weights.of(head), share * weights.sum(head));
    }
  };
  const auto pieces = static_cast<int64_t>(places.size()) * kv_heads;
  context.threads->parallel_for(pieces, 1, [&](int64_t begin, int64_t end) {
    QueryWeights weights;
    FewestWeights fewest;
    for (int64_t at = begin; at < end; ++at) look(at, weights, fewest);
  });

  int64_t visible = 0;
  for (const int64_t count : seen) visible += count;
  for (int64_t head = 0; head < heads; ++head) {
    int64_t keys_needed = 0;
    for (size_t i = static_cast<size_t>(head); i < needed.size(); i += static_cast<size_t>(heads)) {
      keys_needed += needed[i];
    }
    result.needed.push_back(static_cast<double>(keys_needed) / static_cast<double>(visible));
  }
  return result;
}

std::vector<double> held_mass(const Context& context, const SampledAttention& sampled,
                              SoftmaxState state) {
  const auto heads = static_cast<size_t>(sampled.heads);
  std::vector<double> held(heads);
  std::vector<float> max(heads), sum(heads);
  synchronize(context);
  for (size_t i = 0; i < sampled.places.size(); ++i) {
    const int64_t row = sampled.places[i] * sampled.heads;
    copy_bytes(max.data(), Device::cpu(), state.max + row, context.device, heads * sizeof(float));
    copy_bytes(sum.data(), Device::cpu(), state.sum + row, context.device, heads * sizeof(float));
    for (size_t head = 0; head < heads; ++head) {
      if (sum[head] == 0) continue;  // it read nothing
      held[head] += std::exp(double{max[head]} + std::log(double{sum[head]}) -
                             sampled.log_sums[i * heads + head]);
    }
  }
  for (double& share : held) share /= static_cast<double>(sampled.places.size());
  return held;
}

}  // namespace kinora
