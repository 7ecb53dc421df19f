#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "ops/matmul.h"
#include "ops/op_test_support.h"
#include "ops/packed_matmul.h"
#include "ops/packed_test_support.h"

namespace kinora {
namespace {

using namespace testing;

struct Case {
  int64_t m, n, k, group;
  bool zeros = false;
  bool bias = false;
  bool accumulate = false;
  int64_t padding = 0;
};

struct Expected {
  std::vector<double> values, bounds;
  std::vector<double> computing;  // the bounds without what rounding rows adds
};

// `rounded`: rows may be rounded to 8 bits, or to 16 where the weights are e4m3.
Expected reference(const Case& c, const std::vector<double>& a, const std::vector<double>& weight,
                   const std::vector<double>& bias, const std::vector<double>& before,
                   bool rounded) {
  // No code, nor its distance from the zero point, stands for more than this (random_packed); sums
  // are of such numbers.
  constexpr double most = 0.03 * 512;
  const double step = std::ldexp(static_cast<double>(c.k) / 16 + 8, -24);
  Expected out;
  for (int64_t row = 0; row < c.m; ++row) {
    double rows = 0, largest = 0;
    for (int64_t j = 0; j < c.k; ++j) {
      const double x = std::abs(a[static_cast<size_t>(row * c.k + j)]);
      rows += x;
      largest = std::max(largest, x);
    }
    for (int64_t column = 0; column < c.n; ++column) {
      double sum = c.accumulate ? before[static_cast<size_t>(row * c.n + column)] : 0;
      double size = std::abs(sum), weights = 0;
      if (c.bias) sum += bias[static_cast<size_t>(column)];
      if (c.bias) size += std::abs(bias[static_cast<size_t>(column)]);
      const Dot terms = exact_dot(a.data() + row * c.k, weight.data() + column * c.k, c.k);
      sum += terms.sum;
      size += terms.size;
      for (int64_t j = 0; j < c.k; ++j) {
        weights += std::abs(weight[static_cast<size_t>(column * c.k + j)]);
      }
      out.values.push_back(sum);
      const double computing = step * (most * rows + size);
      out.computing.push_back(computing);
      out.bounds.push_back(computing + (rounded ? weights * largest / 253 + size / 256 : 0));
    }
  }
  return out;
}

// What the errors of all elements together, as a norm, stay below but for one time in 10¹⁵ because
// rows are rounded to 8 bits. The error of a row is Wδ; the δ are independent and lie evenly in a
// step σ√12 of the row, which makes their tail no heavier than a normal one. With
// Σ = σ²WᵀW, ‖Wδ‖² ≤ tr Σ + 2 √(t tr Σ²) + 2 t ‖Σ‖ but for a chance of exp −t (Hsu, Kakade and
// Zhang, 2012). Columns that share most of their weights have errors in common, and tr Σ² is large.
double rounded_bound(const Case& c, const std::vector<double>& a,
                     const std::vector<double>& weight) {
  constexpr double t = 35;
  double trace = 0, squares = 0;  // of WWᵀ and of its square
  for (int64_t i = 0; i < c.n; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      const double dot = exact_dot(weight.data() + i * c.k, weight.data() + j * c.k, c.k).sum;
      squares += (i == j ? 1 : 2) * dot * dot;
      if (i == j) trace += dot;
    }
  }
  double variances = 0, fourth = 0, largest_variance = 0;
  for (int64_t row = 0; row < c.m; ++row) {
    double largest = 0;
    for (int64_t j = 0; j < c.k; ++j) {
      largest = std::max(largest, std::abs(a[static_cast<size_t>(row * c.k + j)]));
    }
    const double variance = std::pow(largest / 126.5, 2) / 12;
    variances += variance;
    fourth += variance * variance;
    largest_variance = std::max(largest_variance, variance);
  }
  return std::sqrt(variances * trace + 2 * std::sqrt(t * fourth * squares) +
                   2 * t * largest_variance * std::sqrt(squares));
}

double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}
double distance(std::vector<double> a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return norm(a);
}

std::vector<const cpu::PanelKernels*> kernel_sets() {
  std::vector<const cpu::PanelKernels*> sets = {nullptr, &cpu::portable_panel_kernels()};
  for (const auto* set :
       {cpu::arm_dot_kernels(), cpu::arm_matrix_kernels(), cpu::vnni_panel_kernels()}) {
    if (set != nullptr) sets.push_back(set);
  }
  return sets;
}

// On every set of kernels and with one and three threads. `whole`: the rows are whole numbers that
// 8 bits hold, so that nothing is rounded.
void check(Random& random, const Case& c, PackedKind kind, bool eight_bits, bool whole = false) {
  SCOPED_TRACE(std::string(packed_kind_name(kind)) + ", m " + std::to_string(c.m) + ", n " +
               std::to_string(c.n) + ", k " + std::to_string(c.k) + ", group " +
               std::to_string(c.group) + (c.zeros ? ", zeros" : "") + (c.bias ? ", bias" : "") +
               (c.accumulate ? ", accumulate" : "") + (eight_bits ? ", 8 bits" : ""));
  const PackedWeights weights = random_packed(random, kind, c.n, c.k, c.group, c.zeros);
  auto a = TestTensor::random(random, DType::f32, {c.m, c.k}, c.padding);
  if (whole) {
    std::vector<float> values;
    for (int64_t i = 0; i < c.m * c.k; ++i) {
      values.push_back(i % c.k % 32 == 0 ? 127.0f : static_cast<float>(random.below(255)) - 127);
    }
    a = TestTensor::of(values, {c.m, c.k});
  }
  auto bias = TestTensor::random(random, DType::f32, {c.n});
  const auto before = c.accumulate ? TestTensor::random(random, DType::f32, {c.m, c.n}, c.padding)
                                   : TestTensor::poisoned(DType::f32, {c.m, c.n}, c.padding);
  const bool rounded = eight_bits && !whole;
  const Expected expected =
      reference(c, a.values(), weights.values, bias.values(), before.copy().values(), rounded);
  const double usual = 3e-6 * std::sqrt(static_cast<double>(c.k) + 16) / 4;
  const double together =
      rounded ? norm(expected.computing) + rounded_bound(c, a.values(), weights.values) : 0;
  const std::vector<double> biases = bias.values();
  const std::vector<float> own_bias(biases.begin(), biases.end());
  const ThreadPool one(1), three(3);
  for (const ThreadPool* pool : {&one, &three}) {
    for (const cpu::PanelKernels* kernels : kernel_sets()) {
      TestTensor out = before.copy();
      const TensorView rows = a.view(), to = out.view();
      cpu::PackedWork product;
      product.work = {c.m,
                      c.n,
                      c.k,
                      rows.data<float>(),
                      rows.stride(0),
                      nullptr,
                      DType::f32,
                      0,
                      to.data<float>(),
                      to.stride(0),
                      c.bias ? own_bias.data() : nullptr,
                      c.accumulate};
      product.matrix = weights.packed.get();
      cpu::packed_matmul(Context(*pool), {&product, 1}, eight_bits, kernels);
      expect_within(out, expected.values, expected.bounds);
      // Errors of many elements do not all point the same way.
      if (rounded) {
        EXPECT_LE(distance(out.values(), expected.values), together);
      } else if (c.m * c.n >= 64) {
        expect_close(out, expected.values, usual);
      }
    }
  }
}

TEST(PackedMatrix, WidensToWhatItStandsFor) {
  KINORA_FRESH_RANDOM(random);
  for (const PackedKind kind : packed_kinds) {
    for (const int64_t k : {1, 31, 32, 33, 129, 260}) {
      for (const int64_t group : {int64_t{32}, int64_t{128}, k}) {
        const int64_t n = 1 + static_cast<int64_t>(random.below(70));
        const PackedWeights weights = random_packed(random, kind, n, k, group, k % 2 == 0);
        Tensor out(DType::f32, {n, k});
        weights.packed->widen(0, n, out);
        for (int64_t i = 0; i < n * k; ++i) {
          const double expected = weights.values[static_cast<size_t>(i)];
          ASSERT_NEAR(out.data<float>()[i], expected, 1e-6 * (1 + std::abs(expected))) << i;
        }
        Tensor some(DType::bf16, {1, k});
        weights.packed->widen(n - 1, 1, some);
        EXPECT_EQ(some.data<bf16>()[k - 1].bits,
                  bf16::from_float(out.data<float>()[n * k - 1]).bits);
      }
    }
  }
}

// Where there are so many codes that they get pages of their own.
TEST(PackedMatrix, MayBeLarge) {
  KINORA_FRESH_RANDOM(random);
  const int64_t n = 1101, k = 2048;
  const PackedWeights weights = random_packed(random, PackedKind::int8, n, k, 128, true);
  Tensor out(DType::f32, {1, k});
  for (const int64_t row : {int64_t{0}, n / 2, n - 1}) {
    weights.packed->widen(row, 1, out);
    for (int64_t i = 0; i < k; ++i) {
      const double expected = weights.values[static_cast<size_t>(row * k + i)];
      ASSERT_NEAR(out.data<float>()[i], expected, 1e-6 * (1 + std::abs(expected))) << i;
    }
  }
}

TEST(PackedMatrix, HoldsLittleMoreThanItsBits) {
  KINORA_FRESH_RANDOM(random);
  EXPECT_EQ(random_packed(random, PackedKind::int4, 64, 512, 128, false).packed->bytes(),
            64 * 512 / 2 + 64 * 4 * 4);
  EXPECT_EQ(random_packed(random, PackedKind::int8, 64, 512, 512, false).packed->bytes(),
            64 * 512 + 64 * 4);
  EXPECT_TRUE(PackedMatrix::takes_group(100, 100));
  EXPECT_TRUE(PackedMatrix::takes_group(100, 32));
  EXPECT_FALSE(PackedMatrix::takes_group(100, 16));
  EXPECT_FALSE(PackedMatrix::takes_group(100, 48));
}

TEST(PackedMatmul, EqualsTheReferenceAsExactlyAsF32) {
  KINORA_FRESH_RANDOM(random);
  for (const PackedKind kind : packed_kinds) {
    for (int64_t m = 1; m <= 17; ++m) {
      const int64_t group = m % 3 == 0 ? 32 : m % 3 == 1 ? 128 : 131;
      check(random, {m, 37, 131, group, m % 2 == 0, m % 2 == 1, m % 3 == 0, m % 5}, kind, false);
    }
    check(random, {1, 1, 1, 1}, kind, false);
    check(random, {1, 130, 1030, 128}, kind, false);
    check(random, {63, 65, 257, 64, true, true}, kind, false);
    check(random, {530, 9, 65, 32, true, true, true, 3}, kind, false);
  }
}

TEST(PackedMatmul, RoundsRowsToEightBitsWhenAsked) {
  KINORA_FRESH_RANDOM(random);
  for (const PackedKind kind : packed_kinds) {
    for (const int64_t m : {1, 2, 3, 4, 5, 7, 8, 9, 16, 33}) {
      check(random, {m, 45, 515, 128, m % 2 == 0, m % 3 == 0, m % 4 == 0, m % 3}, kind, true);
    }
  }
}

// More rows than are decoded at once, which some CPUs multiply in another way.
TEST(PackedMatmul, ManyRowsEqualTheReference) {
  KINORA_FRESH_RANDOM(random);
  for (const PackedKind kind : packed_kinds) {
    for (const bool eight_bits : {false, true}) {
      for (const int64_t m : {21, 33, 50, 97}) {
        for (const int64_t n : {1, 8, 31, 33, 65}) {
          for (const int64_t k : {1, 31, 33, 127, 257}) {
            const int64_t group = std::array<int64_t, 6>{32, 64, 96, 128, 256, k}[random.below(6)];
            check(random, {m, n, k, group, n % 2 == 0, k % 4 == 1, m % 2 == 0, n % 3}, kind,
                  eight_bits);
          }
        }
      }
      // Several blocks of columns, which groups do not divide.
      check(random, {99, 40, 2081, 96, true, true}, kind, eight_bits);
      check(random, {99, 40, 3000, 2048, true, true}, kind, eight_bits);
      check(random, {99, 40, 3000, 3000, false, false, true}, kind, eight_bits);
      // Several blocks of rows of the weights.
      check(random, {70, 300, 300, 64, true, true}, kind, eight_bits);
      check(random, {129, 270, 140, 128, false, false, true, 1}, kind, eight_bits);
    }
  }
}

TEST(PackedMatmul, DoesNotDependOnTheNumberOfThreads) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool one(1), five(5);
  for (const PackedKind kind : packed_kinds) {
    const PackedWeights weights = random_packed(random, kind, 407, 611, 128, true);
    for (const int64_t m : {1, 9, 20, 21, 40, 300}) {
      for (const bool eight_bits : {false, true}) {
        MatmulOptions options;
        options.native_bf16 = eight_bits;
        auto a = TestTensor::random(random, DType::f32, {m, 611});
        auto first = TestTensor::poisoned(DType::f32, {m, 407});
        auto second = TestTensor::poisoned(DType::f32, {m, 407});
        matmul(Context(one), a.view(), *weights.packed, first.view(), options);
        matmul(Context(five), a.view(), *weights.packed, second.view(), options);
        EXPECT_EQ(first.values(), second.values())
            << packed_kind_name(kind) << ", rows: " << m << (eight_bits ? ", 8 bits" : "");
      }
    }
  }
}

TEST(PackedMatmul, LosesNothingOfRowsThatFitEightBits) {
  KINORA_FRESH_RANDOM(random);
  for (const PackedKind kind : {PackedKind::int4, PackedKind::int8}) {
    for (const int64_t m : {1, 2, 3, 5, 8, 13, 21, 50}) {
      check(random, {m, 29, 387, 64, m % 2 == 0}, kind, true, true);
    }
  }
}

TEST(PackedMatmul, SeveralProductsOfOneInputEqualEachAlone) {
  KINORA_FRESH_RANDOM(random);
  const int64_t k = 160;
  for (const int64_t m : {1, 4, 20}) {
    auto a = TestTensor::random(random, DType::f32, {m, k});
    auto plain = TestTensor::random(random, DType::bf16, {11, k});
    std::vector<PackedWeights> weights;
    for (const PackedKind kind : packed_kinds) {
      weights.push_back(random_packed(random, kind, 30, k, 32, true));
      weights.push_back(random_packed(random, kind, 7, k, 160, false));
      weights.push_back(random_packed(random, kind, 65, k, 160, false));
    }
    const ThreadPool pool(3);
    const Context context(pool);
    std::vector<TestTensor> together;
    for (const PackedWeights& one : weights) {
      together.push_back(TestTensor::poisoned(DType::f32, {m, one.packed->rows()}));
    }
    auto plain_out = TestTensor::poisoned(DType::f32, {m, 11});
    std::vector<MatmulPart> parts = {{plain.view(), {}, plain_out.view()}};
    for (size_t i = 0; i < weights.size(); ++i) {
      parts.push_back({{}, {}, together[i].view(), weights[i].packed.get()});
    }
    matmul_parts(context, a.view(), parts);
    for (size_t i = 0; i < weights.size(); ++i) {
      auto alone = TestTensor::poisoned(DType::f32, {m, weights[i].packed->rows()});
      matmul(context, a.view(), *weights[i].packed, alone.view());
      EXPECT_EQ(together[i].values(), alone.values()) << "product " << i << ", m " << m;
    }
    auto plain_alone = TestTensor::poisoned(DType::f32, {m, 11});
    matmul(context, a.view(), plain.view(), plain_alone.view());
    EXPECT_EQ(plain_out.values(), plain_alone.values());
  }
}

// So that guessed tokens that are checked together give what they give one by one.
TEST(PackedMatmul, ARowOfWholeNumbersDoesNotDependOnTheOthers) {
  KINORA_FRESH_RANDOM(random);
  for (const PackedKind kind : {PackedKind::int4, PackedKind::int8}) {
    for (const bool eight_bits : {false, true}) {
      const int64_t m = 11, n = 43, k = 391;
      const PackedWeights weights = random_packed(random, kind, n, k, 128, true);
      auto a = TestTensor::random(random, DType::f32, {m, k});
      auto together = TestTensor::poisoned(DType::f32, {m, n});
      const ThreadPool pool(2);
      MatmulOptions options;
      options.native_bf16 = eight_bits;
      matmul(Context(pool), a.view(), *weights.packed, together.view(), options);
      for (int64_t row = 0; row < m; ++row) {
        auto alone = TestTensor::poisoned(DType::f32, {1, n});
        matmul(Context(pool), a.view().rows(row, 1), *weights.packed, alone.view(), options);
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(alone.view().row<float>(0)[i], together.view().row<float>(row)[i]) << row;
        }
      }
    }
  }
}

TEST(PackedMatmul, NumbersThatAreNoneStaySo) {
  KINORA_FRESH_RANDOM(random);
  for (const PackedKind kind : packed_kinds) {
    const PackedWeights weights = random_packed(random, kind, 9, 70, 32, false);
    for (const float bad : {std::nanf(""), HUGE_VALF}) {
      for (const int64_t m : {3, 100}) {
        for (const bool eight_bits : {false, true}) {
          Tensor a = Tensor::zeros(DType::f32, {m, 70});
          a.data<float>()[70 + 33] = bad;
          a.data<float>()[0] = 1e-42f;  // too small for the reciprocal of a scale
          Tensor out(DType::f32, {m, 9});
          const ThreadPool pool(1);
          MatmulOptions options;
          options.native_bf16 = eight_bits;
          matmul(Context(pool), a, *weights.packed, out, options);
          for (int64_t i = 0; i < m * 9; ++i) {
            EXPECT_EQ(std::isfinite(out.data<float>()[i]), i / 9 != 1) << i;
          }
        }
      }
    }
  }
}

TEST(PackedMatmul, RefusesWhatDoesNotFit) {
  KINORA_FRESH_RANDOM(random);
  const PackedWeights weights = random_packed(random, PackedKind::int8, 4, 64, 32, false);
  const ThreadPool pool(1);
  Tensor narrow(DType::f32, {2, 63}), a(DType::f32, {2, 64}), out(DType::f32, {2, 5});
  expect_error("as many columns", [&] { matmul(Context(pool), narrow, *weights.packed, out); });
  expect_error("out has shape [2, 5], expected [2, 4]",
               [&] { matmul(Context(pool), a, *weights.packed, out); });
}

}  // namespace
}  // namespace kinora
