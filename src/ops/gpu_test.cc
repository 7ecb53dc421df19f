// What only GPUs have: activations in bf16, and the shapes at which the GPU changes its way.
#include <gtest/gtest.h>

#include <tuple>

#include "ops/activation.h"
#include "ops/elementwise.h"
#include "ops/gather.h"
#include "ops/layer_norm.h"
#include "ops/matmul.h"
#include "ops/norm_matmul.h"
#include "ops/op_test_support.h"
#include "ops/pool.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/softmax.h"

namespace kinora {
namespace {

using namespace testing;

// A result rounded once to bf16 is within 2^-9 of each value, so within it of the norm.
constexpr double once_rounded = 0x1p-8;

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (cuda_devices(&why).empty()) GTEST_SKIP() << why;
  }
  ThreadPool pool_{2};
  Context context_{pool_, Device::cuda()};
};

double silu_exact(double x) { return x / (1 + std::exp(-x)); }

std::vector<double> product(const std::vector<double>& a, const std::vector<double>& weight,
                            int64_t m, int64_t n, int64_t k) {
  std::vector<double> out(static_cast<size_t>(m * n), 0.0);
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t column = 0; column < n; ++column) {
      out[static_cast<size_t>(row * n + column)] =
          exact_dot(a.data() + row * k, weight.data() + column * k, k).sum;
    }
  }
  return out;
}

TEST_F(Gpu, MultipliesBf16) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t m : {1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 130}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 8},
                               {16, 32},
                               {37, 136},
                               {37, 64},
                               {129, 520},
                               {515, 1032},
                               {2121, 192},  // several blocks share the columns from here on
                               {2777, 1032},
                               {1060, 1088},
                               {64, 131}}) {
      for (const DType out_type : {DType::f32, DType::bf16}) {
        for (const bool accumulate : {false, true}) {
          const int64_t padding = k % 8 == 0 ? 8 : m % 3;
          SCOPED_TRACE("m " + std::to_string(m) + ", n " + std::to_string(n) + ", k " +
                       std::to_string(k) + ", out " + std::string(dtype_name(out_type)) +
                       (accumulate ? ", accumulate" : ""));
          auto a = TestTensor::random(random, DType::bf16, {m, k}, padding);
          auto weight = TestTensor::random(random, DType::bf16, {n, k}, padding);
          auto bias = TestTensor::random(random, n % 2 == 0 ? DType::bf16 : DType::f32, {n});
          auto out = accumulate ? TestTensor::random(random, out_type, {m, n}, 3)
                                : TestTensor::poisoned(out_type, {m, n}, 3);
          auto expected = product(a.values(), weight.values(), m, n, k);
          const auto before = out.values(), shift = bias.values();
          for (size_t i = 0; i < expected.size(); ++i) {
            expected[i] += shift[i % static_cast<size_t>(n)] + (accumulate ? before[i] : 0.0);
          }
          matmul(context_, a.on(context_), weight.on(context_), out.on(context_),
                 {.bias = bias.on(context_), .accumulate = accumulate});
          // Where the library has no way to add the bias, the product is rounded before it is
          // added.
          expect_close(out, expected, out_type == DType::f32 ? 1e-5 : 2 * once_rounded);
        }
      }
    }
  }
}

TEST_F(Gpu, JoinsGateAndUpInBf16) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t m : {1, 2, 8, 9, 31, 33, 64, 65}) {
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{8, 64}, {40, 192}, {37, 128}, {1064, 320}, {264, 1032}}) {
      for (const bool biased : {false, true}) {
        SCOPED_TRACE("m " + std::to_string(m) + ", n " + std::to_string(n) + ", k " +
                     std::to_string(k) + (biased ? ", biased" : ""));
        auto a = TestTensor::random(random, DType::bf16, {m, k}, 8);
        auto weight = TestTensor::random(random, DType::bf16, {2 * n, k}, 16);
        auto bias = TestTensor::random(random, DType::f32, {2 * n});
        auto out = TestTensor::poisoned(DType::bf16, {m, n}, 3);
        auto both = product(a.values(), weight.values(), m, 2 * n, k);
        const auto shift = bias.values();
        std::vector<double> expected(static_cast<size_t>(m * n));
        for (int64_t row = 0; row < m; ++row) {
          for (int64_t i = 0; i < n; ++i) {
            const auto value = [&](int64_t column) {
              return both[static_cast<size_t>(row * 2 * n + column)] +
                     (biased ? shift[static_cast<size_t>(column)] : 0.0);
            };
            expected[static_cast<size_t>(row * n + i)] = silu_exact(value(i)) * value(n + i);
          }
        }
        gated_matmul(context_, a.on(context_), weight.on(context_), out.on(context_),
                     biased ? bias.on(context_) : ConstTensorView());
        // Gate and up are rounded before they meet where they are products of their own.
        expect_close(out, expected, 3 * once_rounded);
      }
    }
  }
}

// matmul with a bias, added to what is there, or gated_matmul with a bias, against the definition.
void check_product(const Context& context, Random& random, int64_t m, int64_t n, int64_t k,
                   bool gated) {
  SCOPED_TRACE("m " + std::to_string(m) + ", n " + std::to_string(n) + ", k " + std::to_string(k) +
               (gated ? ", gated" : ""));
  const int64_t weights = gated ? 2 * n : n;
  auto a = TestTensor::random(random, DType::bf16, {m, k}, 8);
  auto weight = TestTensor::random(random, DType::bf16, {weights, k}, 16);
  auto bias = TestTensor::random(random, DType::f32, {weights});
  auto out = gated ? TestTensor::poisoned(DType::bf16, {m, n}, 3)
                   : TestTensor::random(random, DType::f32, {m, n}, 3);
  const auto both = product(a.values(), weight.values(), m, weights, k);
  const auto before = out.values(), shift = bias.values();
  std::vector<double> expected(static_cast<size_t>(m * n));
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t i = 0; i < n; ++i) {
      const auto value = [&](int64_t column) {
        return both[static_cast<size_t>(row * weights + column)] +
               shift[static_cast<size_t>(column)];
      };
      const auto at = static_cast<size_t>(row * n + i);
      expected[at] = gated ? silu_exact(value(i)) * value(n + i) : before[at] + value(i);
    }
  }
  if (gated) {
    gated_matmul(context, a.on(context), weight.on(context), out.on(context), bias.on(context));
  } else {
    matmul(context, a.on(context), weight.on(context), out.on(context),
           {.bias = bias.on(context), .accumulate = true});
  }
  expect_close(out, expected, gated ? 3 * once_rounded : 1e-5);
}

// The shapes that matmul_strips takes: one or two strips a warp, one or two passes.
TEST_F(Gpu, MultipliesSomeRowsByVeryManyOutputs) {
  KINORA_FRESH_RANDOM(random);
  for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{2, 8192, 384},
                                {9, 21127, 256},
                                {16, 43007, 128},
                                {17, 8192, 128},
                                {32, 8209, 256},
                                {33, 21127, 384},
                                {48, 22001, 128},
                                {31, 43007, 128}}) {
    check_product(context_, random, m, n, k, false);
    check_product(context_, random, m, n / 2, k, true);
  }
}

// The shapes that matmul_tiles takes: blocks that share columns, or not, some of them without any;
// warpgroups with one strip or four, of which the last has eight rows or sixteen.
TEST_F(Gpu, MultipliesDozensOfRows) {
  KINORA_FRESH_RANDOM(random);
  for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{17, 16, 8},
                                {31, 48, 72},
                                {32, 112, 4104},
                                {33, 528, 520},
                                {48, 1040, 1032},
                                {47, 3584, 264},
                                {49, 4608, 136},
                                {63, 2064, 648},
                                {64, 6160, 192},
                                {64, 20016, 64},
                                {18, 24, 264},
                                {29, 1048, 200},
                                {32, 3592, 1000},
                                {33, 24, 136},
                                {41, 264, 4488},
                                {48, 1048, 5256}}) {
    check_product(context_, random, m, n, k, false);
    if (n / 2 % 8 == 0) check_product(context_, random, m, n / 2, k, true);
  }
  check_product(context_, random, 50, 12008, 64, true);
}

// Large enough for algorithms to be timed; the later numbers of rows take what the first one found.
TEST_F(Gpu, MultipliesLargeBf16) {
  KINORA_FRESH_RANDOM(random);
  const int64_t n = 264, k = 392;
  auto weight = TestTensor::random(random, DType::bf16, {n, k});
  for (const int64_t m : {1537, 1663, 1536}) {
    SCOPED_TRACE("m " + std::to_string(m));
    auto a = TestTensor::random(random, DType::bf16, {m, k});
    auto out = TestTensor::random(random, DType::f32, {m, n});
    auto expected = product(a.values(), weight.values(), m, n, k);
    const auto before = out.values();
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
    matmul(context_, a.on(context_), weight.on(context_), out.on(context_),
           {.bias = {}, .accumulate = true});
    expect_close(out, expected, 1e-5);
  }
}

TEST_F(Gpu, NormsInBf16) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t d : {1, 63, 128, 1280, 3584, 5001}) {
    for (const DType from : {DType::f32, DType::bf16}) {
      for (const DType to : {DType::f32, DType::bf16}) {
        SCOPED_TRACE("d " + std::to_string(d));
        auto x = TestTensor::random(random, from, {5, d}, 4);
        auto weight = TestTensor::random(random, DType::bf16, {d});
        auto bias = TestTensor::random(random, DType::bf16, {d});
        const auto values = x.values(), w = weight.values(), b = bias.values();
        std::vector<double> rms(values.size()), layer(values.size());
        for (size_t row = 0; row < 5; ++row) {
          double squares = 0, sum = 0, deviation = 0;
          const auto width = static_cast<size_t>(d);
          for (size_t i = row * width; i < (row + 1) * width; ++i) {
            squares += values[i] * values[i];
            sum += values[i];
          }
          const double mean = sum / static_cast<double>(d);
          for (size_t i = row * width; i < (row + 1) * width; ++i) {
            deviation += (values[i] - mean) * (values[i] - mean);
          }
          const auto inverse = [&](double total) {
            return 1 / std::sqrt(total / static_cast<double>(d) + 1e-6);
          };
          for (size_t i = 0; i < width; ++i) {
            const size_t at = row * width + i;
            rms[at] = values[at] * inverse(squares) * w[i];
            layer[at] = (values[at] - mean) * inverse(deviation) * w[i] + b[i];
          }
        }
        const double tolerance = to == DType::f32 ? 2e-6 : once_rounded;
        auto out = TestTensor::poisoned(to, {5, d}, 8);
        rms_norm(context_, x.on(context_), weight.on(context_), 1e-6f, out.on(context_));
        expect_close(out, rms, tolerance);
        layer_norm(context_, x.on(context_), weight.on(context_), bias.on(context_), 1e-6f,
                   out.on(context_));
        // With one element the deviation is 0 and rounding is all that is left.
        expect_close(out, layer, d == 1 ? 1e-2 : tolerance);
      }
    }
  }
}

TEST_F(Gpu, MapsElementsInBf16) {
  KINORA_FRESH_RANDOM(random);
  for (const Shape& shape : {Shape{1, 9}, Shape{3, 63}, Shape{65, 128}, Shape{2, 3, 20}}) {
    for (const int64_t padding : {0, 4, 5}) {
      auto x = TestTensor::random(random, DType::bf16, shape, padding, 3.0);
      auto y = TestTensor::random(random, DType::bf16, shape, padding);
      const auto a = x.values(), b = y.values();
      std::vector<double> gated(a.size()), gelu(a.size()), sum(a.size()), half(a.size());
      for (size_t i = 0; i < a.size(); ++i) {
        gated[i] = silu_exact(a[i]) * b[i];
        gelu[i] = a[i] / 2 * (1 + std::erf(a[i] / std::sqrt(2.0)));
        sum[i] = a[i] + b[i];
        half[i] = a[i] / 2;
      }
      auto out = TestTensor::poisoned(DType::bf16, shape, padding);
      silu_mul(context_, x.on(context_), y.on(context_), out.on(context_));
      expect_close(out, gated, once_rounded);
      gelu_erf(context_, x.on(context_), out.on(context_));
      expect_close(out, gelu, once_rounded);
      add(context_, x.on(context_), y.on(context_), out.on(context_));
      expect_close(out, sum, once_rounded);
      scale(context_, x.on(context_), 0.5f, out.on(context_));
      expect_close(out, half, 0);
    }
  }
}

TEST_F(Gpu, MovesAndPoolsBf16) {
  KINORA_FRESH_RANDOM(random);
  auto x = TestTensor::random(random, DType::bf16, {6, 36}, 4);
  const auto values = x.values();
  const std::vector<int32_t> rows{5, 0, 3};
  std::vector<double> expected;
  for (const int32_t row : rows) {
    expected.insert(expected.end(), values.begin() + row * 36, values.begin() + (row + 1) * 36);
  }
  for (const DType to : {DType::f32, DType::bf16}) {
    auto out = TestTensor::poisoned(to, {3, 36}, 1);
    gather_rows(context_, x.on(context_), rows, out.on(context_));
    expect_close(out, expected, 0);
  }
  auto grid = TestTensor::random(random, DType::bf16, {4, 6, 5});
  const auto cells = grid.values();
  std::vector<double> pooled(2 * 3 * 5, 0.0);
  for (size_t i = 0; i < cells.size(); ++i) {
    const size_t y = i / 30, column = i / 5 % 6, c = i % 5;
    pooled[(y / 2 * 3 + column / 2) * 5 + c] += cells[i] / 4;
  }
  auto out = TestTensor::poisoned(DType::f32, {2, 3, 5});
  average_pool(context_, grid.on(context_), 2, out.on(context_));
  expect_close(out, pooled, 1e-6);
}

}  // namespace

TEST(NormMatmul, MultipliesNormedRows) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t m : {1, 3, 20}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{2, 8},
                               {74, 136},
                               {258, 3584},
                               {34, 63},
                               {130, 2056},
                               {4306, 264}}) {
      for (const DType type : {DType::f32, DType::bf16}) {
        for (const bool gated : {false, true}) {
          SCOPED_TRACE("m " + std::to_string(m) + ", n " + std::to_string(n) + ", k " +
                       std::to_string(k) + ", room " + std::string(dtype_name(type)) +
                       (gated ? ", gated" : ""));
          auto x = TestTensor::random(random, DType::f32, {m, k}, 0, 3.0);
          auto norm = TestTensor::random(random, DType::bf16, {k});
          auto weight = TestTensor::random(random, DType::bf16, {n, k}, 8 - k % 8, 0.2);
          auto bias = TestTensor::random(random, DType::bf16, {n});
          auto values = x.values();
          const auto scale = norm.values(), shift = bias.values();
          for (int64_t row = 0; row < m; ++row) {
            double squares = 0;
            for (int64_t i = 0; i < k; ++i) {
              const double value = values[static_cast<size_t>(row * k + i)];
              squares += value * value;
            }
            const double factor = 1 / std::sqrt(squares / static_cast<double>(k) + 1e-5);
            for (int64_t i = 0; i < k; ++i) {
              values[static_cast<size_t>(row * k + i)] *= factor * scale[static_cast<size_t>(i)];
            }
          }
          const auto multiply = [&](const std::vector<double>& normed) {
            auto both = product(normed, weight.values(), m, n, k);
            for (size_t i = 0; i < both.size(); ++i) both[i] += shift[i % shift.size()];
            if (!gated) return both;
            std::vector<double> out;
            for (int64_t row = 0; row < m; ++row) {
              for (int64_t column = 0; column < n / 2; ++column) {
                const auto at = static_cast<size_t>(row * n + column);
                out.push_back(silu_exact(both[at]) * both[at + static_cast<size_t>(n / 2)]);
              }
            }
            return out;
          };
          const std::vector<double> expected = multiply(values);
          // What rounding the rows loses: much where a few products cancel.
          for (double& one : values) one = bf16::from_float(static_cast<float>(one)).to_float();
          const std::vector<double> rounded = multiply(values);
          const double lost =
              relative_error(std::span<const double>(rounded), std::span<const double>(expected));
          for_each_context([&](const Context& context) {
            if (type == DType::bf16 && context.device.is_cpu()) return;
            auto room = TestTensor::poisoned(type, {m, k}, 8 - k % 8);
            auto out = TestTensor::poisoned(type, {m, gated ? n / 2 : n}, 2);
            const NormedRows rows{x.on(context), norm.on(context), 1e-5f, room.on(context)};
            (gated ? norm_gated_matmul : norm_matmul)(context, rows, weight.on(context),
                                                      bias.on(context), out.on(context));
            // Rows are rounded once before the product and its result once after it.
            expect_close(out, expected,
                         type == DType::f32 ? 2e-5 + lost * 0x1p-10 : 2 * once_rounded + 2 * lost);
          });
        }
      }
    }
  }
}

// A value, and what computing it in f32 may lose: five standard deviations of roundings that are
// taken as independent.
struct Rounded {
  double value, error;
};

// silu(gate) · up, rounded to bf16 or not. |silu′| ≤ 1.1; eight operations lead to the result.
Rounded joined(const Rounded& gate, const Rounded& up, double narrow) {
  const double silu = silu_exact(gate.value), value = silu * up.value;
  const double gate_error = 1.1 * gate.error, up_error = up.error;
  const double error = gate_error * std::abs(up.value) + up_error * std::abs(silu) +
                       gate_error * up_error + 8 * 0x1p-24 * std::abs(value);
  return {value, error + 1.01 * narrow * (std::abs(value) + error)};
}

TEST(GatedMatmul, IsSiluOfGateTimesUp) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t m : {1, 5, 8, 13, 40}) {
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{1, 8}, {37, 136}, {130, 65}, {65, 2056}, {2153, 264}}) {
      for (const DType type : {DType::f32, DType::bf16}) {
        SCOPED_TRACE("m " + std::to_string(m) + ", n " + std::to_string(n) + ", k " +
                     std::to_string(k) + ", rows " + std::string(dtype_name(type)));
        auto a = TestTensor::random(random, type, {m, k}, 8 - k % 8);
        auto weight = TestTensor::random(random, DType::bf16, {2 * n, k}, 8 - k % 8, 0.2);
        auto bias = TestTensor::random(random, DType::bf16, {2 * n});
        const double narrow = type == DType::bf16 ? 0x1p-8 : 0;
        const auto rows = a.values(), matrix = weight.values(), shift = bias.values();
        const auto sum = [&](int64_t row, int64_t output) {
          const Dot terms = exact_dot(&rows[static_cast<size_t>(row * k)],
                                      &matrix[static_cast<size_t>(output * k)], k);
          const double added = shift[static_cast<size_t>(output)], value = terms.sum + added;
          const double terms_norm = std::sqrt(terms.squares + added * added);
          const double spread = std::sqrt(static_cast<double>(k + 1)) * terms_norm;
          // Products may be rounded to bf16 before the bias is added, and the sums again.
          return Rounded{value, 5 * 0x1p-24 * (spread + std::abs(value)) +
                                    1.01 * narrow * (std::abs(terms.sum) + std::abs(value))};
        };
        std::vector<double> expected, bounds;
        for (int64_t row = 0; row < m; ++row) {
          for (int64_t column = 0; column < n; ++column) {
            const Rounded one = joined(sum(row, column), sum(row, n + column), narrow);
            expected.push_back(one.value);
            bounds.push_back(one.error);
          }
        }
        for_each_context([&](const Context& context) {
          if (type == DType::bf16 && context.device.is_cpu()) return;
          auto out = TestTensor::poisoned(type, {m, n}, 2);
          gated_matmul(context, a.on(context), weight.on(context), out.on(context),
                       bias.on(context));
          expect_within(out, expected, bounds);
        });
      }
    }
  }
}

TEST(RopeSplit, TurnsQueriesAndKeysAndCopiesValues) {
  KINORA_FRESH_RANDOM(random);
  constexpr int64_t rows = 7, heads = 6, kv_heads = 2, d = 12, half = d / 2;
  std::vector<int64_t> positions;
  for (int64_t row = 0; row < rows; ++row) positions.push_back(random.below(100'000));
  const auto frequencies = rope_inverse_frequencies(d, 1e4);
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const DType row_type : {DType::f32, DType::bf16}) {
      auto qkv = TestTensor::random(random, type, {rows, (heads + 2 * kv_heads) * d}, 3);
      const auto x = qkv.values();
      std::vector<double> queries, keys, values;
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t head = 0; head < heads + 2 * kv_heads; ++head) {
          for (int64_t i = 0; i < d; ++i) {
            const auto first =
                static_cast<size_t>((row * (heads + 2 * kv_heads) + head) * d + i % half);
            const double x1 = x[first], x2 = x[first + half];
            const double angle = static_cast<double>(positions[static_cast<size_t>(row)]) *
                                 frequencies[static_cast<size_t>(i % half)];
            const double turned = i < half ? x1 * std::cos(angle) - x2 * std::sin(angle)
                                           : x2 * std::cos(angle) + x1 * std::sin(angle);
            if (head < heads) {
              queries.push_back(turned);
            } else if (head < heads + kv_heads) {
              keys.push_back(turned);
            } else {
              values.push_back(i < half ? x1 : x2);
            }
          }
        }
      }
      for_each_context([&](const Context& context) {
        if (type == DType::bf16 && context.device.is_cpu()) return;
        auto q = TestTensor::poisoned(type, {rows, heads, d});
        auto k = TestTensor::poisoned(row_type, {rows, kv_heads, d});
        auto v = TestTensor::poisoned(row_type, {rows, kv_heads, d});
        rope_split(context, rope_table(context, frequencies, positions), qkv.on(context),
                   q.on(context), k.on(context), v.on(context));
        expect_close(q, queries, type == DType::f32 ? 2e-7 : once_rounded);
        expect_close(k, keys, row_type == DType::f32 ? 2e-7 : once_rounded);
        expect_close(v, values, row_type == DType::f32 ? 0 : once_rounded);
      });
    }
  }
}

TEST(ExpSum, AddsInDoublePrecision) {
  KINORA_FRESH_RANDOM(random);
  auto x = TestTensor::random(random, DType::f32, {15001}, 0, 4.0);
  double expected = 0;
  for (const double value : x.values()) expected += std::exp((value - 9.5) * 0.75);
  for_each_context([&](const Context& context) {
    EXPECT_NEAR(exp_sum(context, x.on(context), 9.5f, 0.75f), expected, 1e-9 * expected);
  });
}

}  // namespace kinora
