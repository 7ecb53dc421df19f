#include "memory/row_ops/attention_mass.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/threads.h"
#include "ops/op_test_support.h"
#include "support/random_data.h"

namespace kinora {
namespace {

struct Case {
  int64_t tokens, heads, kv_heads, size, rows;
  bool softmax;
  bool spread = false;
  DType type = DType::f32;  // of the keys, and of what a GPU makes of queries
};

// What w numbers with a standard deviation of t add; and by how much that changes with both at
// most, for factors of 1 + u: its slopes are t² or less and τ t or less.
double gain(double t, double log_weight, double u, double& wrong) {
  if (!(log_weight > 0)) return 0;
  const double most = std::sqrt(2 * log_weight);
  const double out = t < most ? t * t / 2 : most * (t - most / 2);
  wrong += 2 * u * (t * std::min(t, most) + most * std::max(t, most));
  return out;
}

// In double precision, and by how much it may be wrong: factors are rounded by u at most, sums of
// n products by n more, and e^s is wrong by the factor that s is wrong by.
void check(const Context& context, const Case& c, Random& random) {
  const int64_t width = c.kv_heads * c.size;
  const auto count = static_cast<size_t>(c.rows);
  const auto queries =
      testing::random_floats(random, static_cast<size_t>(c.tokens * c.heads * c.size), 1.0);
  auto keys = testing::random_floats(random, count * static_cast<size_t>(width), 1.0);
  Tensor there(c.type, {c.rows, width}, context.device);
  if (c.type == DType::bf16) {
    std::vector<bf16> narrow;
    for (float& key : keys) key = narrow.emplace_back(bf16::from_float(key)).to_float();
    copy_bytes(there.view().raw(), context.device, narrow.data(), Device::cpu(),
               narrow.size() * sizeof(bf16));
  } else {
    copy_bytes(there.view().raw(), context.device, keys.data(), Device::cpu(),
               keys.size() * sizeof(float));
  }
  std::vector<float> logs(count);
  for (float& log : logs) {
    log = random.below(4) == 0 ? -INFINITY : std::log(static_cast<float>(1 + random.below(9)));
  }
  std::vector<float> spreads(c.spread ? count : 0);
  for (float& spread : spreads) spread = static_cast<float>(random.below(4)) * 0.3f;
  Tensor asked(DType::f32, {c.tokens, c.heads, c.size}, context.device);
  copy_bytes(asked.view().raw(), context.device, queries.data(), Device::cpu(),
             queries.size() * sizeof(float));
  const auto found = attention_mass(context, asked, there, c.kv_heads, logs, c.softmax, spreads);
  ASSERT_EQ(found.size(), count);

  const double u =
      static_cast<double>(c.size + 4) * 6e-8 + (c.type == DType::bf16 ? 1.0 / 512 : 0.0);
  std::vector<double> expected(count), bound(count, 1e-6);
  for (int64_t pair = 0; pair < c.tokens * c.heads; ++pair) {
    const float* query = queries.data() + pair * c.size;
    const int64_t column = pair % c.heads / (c.heads / c.kv_heads) * c.size;
    std::vector<double> scores(count), wrong(count);
    double largest = -INFINITY, worst = 0, sum = 0, squares = 0;
    for (int64_t i = 0; i < c.size; ++i) squares += double{query[i]} * double{query[i]};
    for (size_t row = 0; row < count; ++row) {
      const float* key = keys.data() + static_cast<int64_t>(row) * width + column;
      const double scale = c.softmax ? 1 / std::sqrt(static_cast<double>(c.size)) : 1;
      for (int64_t i = 0; i < c.size; ++i) {
        const double part = scale * double{query[i]} * double{key[i]};
        scores[row] += part;
        wrong[row] += u * std::abs(part);
      }
      if (c.softmax) {
        scores[row] += double{logs[row]};
        if (c.spread) {
          const double t = scale * std::sqrt(squares) * double{spreads[row]};
          scores[row] += gain(t, double{logs[row]}, u, wrong[row]);
        }
        if (logs[row] > -INFINITY) wrong[row] += u * std::abs(scores[row]);
      }
      if (logs[row] == -INFINITY) continue;
      worst = std::max(worst, wrong[row]);
      largest = std::max(largest, scores[row]);
    }
    for (size_t row = 0; row < count; ++row) {
      if (logs[row] > -INFINITY) sum += std::exp(scores[row] - largest);
    }
    for (size_t row = 0; row < count; ++row) {
      if (logs[row] == -INFINITY) continue;
      const double share = c.softmax ? std::exp(scores[row] - largest) / sum : scores[row];
      expected[row] += share;
      // The GPU's e^x is good to about 2^-21 of it, and of x.
      bound[row] += c.softmax ? share * (std::expm1(2 * worst) + 1e-5) : wrong[row];
    }
  }
  for (size_t row = 0; row < count; ++row) {
    ASSERT_NEAR(found[row], expected[row], bound[row]) << row << " of " << count;
    if (logs[row] == -INFINITY) {
      ASSERT_EQ(found[row], 0);
    }
  }
}

TEST(AttentionMass, EqualsItsDefinition) {
  KINORA_FRESH_RANDOM(random);
  testing::for_each_context([&](const Context& context) {
    for (const bool softmax : {true, false}) {
      check(context, {1, 1, 1, 4, 1, softmax}, random);
      check(context, {3, 6, 2, 16, 65, softmax}, random);
      check(context, {65, 4, 4, 32, 129, softmax}, random);
      check(context, {129, 8, 2, 64, 63, softmax}, random);
      check(context, {7, 28, 4, 128, 1001, softmax}, random);
      check(context, {1, 1, 1, 4, 1, softmax, true}, random);
      check(context, {65, 6, 2, 64, 129, softmax, true}, random);
      check(context, {7, 28, 4, 128, 1001, softmax, true}, random);
    }
  });
}

// On a GPU keys are kept in bf16: heads of usual sizes meet whole sixteens of them on the tensor
// cores, all others go through products of matrices.
TEST(AttentionMass, EqualsItsDefinitionOfNarrowKeys) {
  KINORA_FRESH_RANDOM(random);
  testing::for_each_context([&](const Context& context) {
    if (context.device.is_cpu()) return;
    for (const bool softmax : {true, false}) {
      for (const int64_t size : {6, 32, 64, 80, 96, 112, 128}) {
        for (const int64_t rows : {16, 63, 64, 65, 1008}) {
          const int64_t tokens = 1 + random.below(70), kv_heads = 1 + random.below(3);
          const int64_t share = 1 + random.below(4);
          check(context,
                {tokens, share * kv_heads, kv_heads, size, rows, softmax, true, DType::bf16},
                random);
        }
      }
    }
  });
}

TEST(AttentionMass, IsTheSameForAnyNumberOfThreads) {
  KINORA_FRESH_RANDOM(random);
  const auto seed = random.next();
  std::vector<std::vector<double>> results;
  for (const int threads : {1, 3}) {
    const ThreadPool pool(threads);
    const Context own(pool);
    Random same(seed);
    Tensor queries(DType::f32, {17, 6, 8}), keys(DType::f32, {77, 16});
    for (int64_t i = 0; i < queries.elements(); ++i) {
      queries.data<float>()[i] = static_cast<float>(same.normal());
    }
    for (int64_t i = 0; i < keys.elements(); ++i) {
      keys.data<float>()[i] = static_cast<float>(same.normal());
    }
    results.push_back(attention_mass(own, queries, keys, 2, std::vector<float>(77)));
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace kinora
