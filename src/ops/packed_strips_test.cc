// Packed weights in strips: the arrangement, and their products on every device. The reference
// multiplies the numbers that the codes stand for, in double precision.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "ops/cuda_kernels.h"
#include "ops/op_test_support.h"
#include "ops/packed_strips.h"
#include "ops/packed_test_support.h"

namespace kinora {
namespace {

using namespace testing;

struct Case {
  PackedKind kind;
  int64_t m, k, group;
  std::vector<int64_t> parts;  // rows of the matrices under one another
  bool zeros = false;
  bool paired = false;
  bool bias = false;
  bool accumulate = false;
  bool normed = false;
  DType out = DType::f32;
  int64_t padding = 0;
};

struct Made {
  std::vector<PackedWeights> parts;
  std::vector<const PackedMatrix*> packed;
  std::vector<double> values;  // [rows, k]
  int64_t rows = 0;
};

Made make(Random& random, const Case& c, int64_t scale_rows = 1) {
  Made made;
  for (const int64_t rows : c.parts) {
    made.parts.push_back(random_packed(random, c.kind, rows, c.k, c.group, c.zeros, scale_rows));
    const std::vector<double>& own = made.parts.back().values;
    made.values.insert(made.values.end(), own.begin(), own.end());
    made.rows += rows;
  }
  for (const PackedWeights& part : made.parts) made.packed.push_back(part.packed.get());
  return made;
}

struct Expected {
  std::vector<double> values, bounds;
};

// a [m, k] · weightsᵀ + bias, gated where they are paired, and how far from that a result may be.
// `rounded`: the weights, the rows and both factors of a gate may be rounded to bf16 once.
Expected product(const Case& c, const Made& made, const std::vector<double>& a,
                 const std::vector<double>& bias, bool rounded) {
  constexpr double bf16_step = 1.0 / 256;  // half of it is the largest error of one rounding
  const double sum_step = std::ldexp(static_cast<double>(c.k) / 64 + 8, -23);
  // Codes may be multiplied with what they are offset by, which is taken off again.
  constexpr double most_offset = 0.03 * 1300;
  const int64_t n = c.paired ? made.rows / 2 : made.rows;
  Expected out;
  for (int64_t row = 0; row < c.m; ++row) {
    struct Sum {
      double value, error;
    };
    const double* x = a.data() + row * c.k;
    double rows = 0;
    for (int64_t j = 0; j < c.k; ++j) rows += std::abs(x[j]);
    const auto element = [&](int64_t column) -> Sum {
      const double start = c.bias ? bias[static_cast<size_t>(column)] : 0;
      const Dot dot = exact_dot(x, made.values.data() + column * c.k, c.k);
      const double sum = start + dot.sum, size = std::abs(start) + dot.size;
      const double weights = rounded ? 1.01 * bf16_step * size : 0;
      return {sum, weights + sum_step * size + std::ldexp(most_offset, -20) * rows +
                       (rounded && c.paired ? bf16_step / 2 * std::abs(sum) : 0)};
    };
    for (int64_t column = 0; column < n; ++column) {
      const Sum own = element(column);
      Sum result = own;
      if (c.paired) {
        const Sum up = element(n + column);
        const double gate = own.value / (1 + std::exp(-own.value));
        // The gate's function is nowhere steeper than 1.1.
        result.value = gate * up.value;
        result.error = 1.1 * own.error * (std::abs(up.value) + up.error) +
                       std::abs(gate) * up.error + 1e-5 * std::abs(result.value);
      }
      out.values.push_back(result.value);
      out.bounds.push_back(result.error);
    }
  }
  return out;
}

std::vector<double> normed(const Case& c, const std::vector<double>& x,
                           const std::vector<double>& norm, float epsilon) {
  std::vector<double> out;
  for (int64_t row = 0; row < c.m; ++row) {
    double squares = 0;
    for (int64_t j = 0; j < c.k; ++j) squares += std::pow(x[static_cast<size_t>(row * c.k + j)], 2);
    const double factor = 1 / std::sqrt(squares / static_cast<double>(c.k) + epsilon);
    for (int64_t j = 0; j < c.k; ++j) {
      out.push_back(x[static_cast<size_t>(row * c.k + j)] * factor * norm[static_cast<size_t>(j)]);
    }
  }
  return out;
}

// `own_tolerance`: of the norm of all, where rows are rounded to 8 bits as well.
void check(Random& random, const Case& c, const Made& made, double own_tolerance = 0) {
  SCOPED_TRACE(std::string(packed_kind_name(c.kind)) + ", m " + std::to_string(c.m) + ", k " +
               std::to_string(c.k) + ", group " + std::to_string(c.group) + ", rows " +
               std::to_string(c.parts[0]) + " of " + std::to_string(c.parts.size()) +
               (c.zeros ? ", zeros" : "") + (c.paired ? ", paired" : "") +
               (c.normed ? ", normed" : "") + (c.out == DType::bf16 ? ", bf16" : ""));
  const int64_t n = c.paired ? made.rows / 2 : made.rows;
  auto norm = TestTensor::random(random, DType::bf16, {c.k});
  auto bias = TestTensor::random(random, DType::bf16, {made.rows});
  constexpr float epsilon = 1e-5f;
  for_each_context([&](const Context& context) {
    const bool gpu = !context.device.is_cpu();
    const DType rows_type = gpu && !c.normed ? DType::bf16 : DType::f32;
    const DType out_type = gpu ? c.out : DType::f32;
    auto a = TestTensor::random(random, rows_type, {c.m, c.k}, c.padding);
    const auto before = c.accumulate ? TestTensor::random(random, out_type, {c.m, n}, c.padding)
                                     : TestTensor::poisoned(out_type, {c.m, n}, c.padding);
    std::vector<double> rows = a.values();
    if (c.normed) rows = normed(c, rows, norm.values(), epsilon);
    // Only the result is rounded where the packed bytes themselves are multiplied.
    const bool exact = gpu && c.m <= 64 && !c.normed;
    const std::vector<double> held = before.copy().values();
    Expected expected = product(c, made, rows, bias.values(), !exact);
    for (size_t i = 0; i < expected.values.size(); ++i) {
      if (c.accumulate) expected.values[i] += held[i];
      expected.bounds[i] += std::ldexp(std::abs(expected.values[i]) + expected.bounds[i],
                                       out_type == DType::bf16 ? -8 : -22);
    }
    const PackedStrips strips(context, made.packed, c.paired);
    const auto expect_right = [&](TestTensor& actual) {
      own_tolerance > 0 ? expect_close(actual, expected.values, own_tolerance)
                        : expect_within(actual, expected.values, expected.bounds);
    };
    const ConstTensorView own_bias = c.bias ? bias.on(context) : TensorView();
    Tensor room(gpu ? DType::bf16 : DType::f32, {c.m, c.k}, context.device);
    const NormedRows unnormed{a.on(context), norm.on(context), epsilon, room};
    TestTensor out = before.copy();
    const TensorView to = out.on(context);
    MatmulOptions options;
    options.bias = own_bias;
    options.accumulate = c.accumulate;
    if (c.normed) {
      c.paired ? norm_gated_matmul(context, unnormed, strips, own_bias, to)
               : norm_matmul(context, unnormed, strips, own_bias, to);
    } else {
      c.paired ? gated_matmul(context, a.on(context), strips, to, own_bias)
               : matmul(context, a.on(context), strips, to, options);
    }
    expect_right(out);
    // However many blocks share a row of the weights.
    for (const int split : {1, 2, 4, 8}) {
      if (!gpu || c.normed || c.m > 64) break;
      SCOPED_TRACE("split " + std::to_string(split));
      TestTensor again = before.copy();
      cuda::packed_matmul(context, {a.on(context), {}, own_bias, again.on(context), c.accumulate},
                          strips, {}, split);
      expect_right(again);
    }
  });
}

void check(Random& random, const Case& c) { check(random, c, make(random, c)); }

// As many rows as fill a GPU, or a fifth of them where there is none.
int64_t enough(int64_t rows) { return cuda_devices().empty() ? rows / 5 : rows; }

TEST(PackedStrips, StandForTheSameNumbers) {
  KINORA_FRESH_RANDOM(random);
  for (const PackedKind kind : packed_kinds) {
    for (const int64_t k : {1, 63, 64, 65, 129, 260}) {
      for (const int64_t group : {int64_t{64}, int64_t{128}, k}) {
        for (const bool paired : {false, true}) {
          const auto n = static_cast<int64_t>(1 + random.below(40));
          Case c{kind, 1, k, group, {n, paired ? n : n + 3}};
          c.zeros = k % 2 == 0;
          const Made made = make(random, c);
          for_each_context([&](const Context& context) {
            const PackedStrips strips(context, made.packed, paired);
            ASSERT_EQ(strips.rows(), made.rows);
            TestTensor out = TestTensor::poisoned(DType::bf16, {made.rows, k}, 3);
            widen(context, strips, out.on(context));
            const std::vector<double> values = out.values();
            ASSERT_TRUE(out.padding_is_untouched());
            for (size_t i = 0; i < values.size(); ++i) {
              ASSERT_NEAR(values[i], made.values[i], 0.004 * std::abs(made.values[i])) << i;
            }
          });
        }
      }
    }
  }
}

TEST(PackedStrips, MultiplySomeRows) {
  KINORA_FRESH_RANDOM(random);
  for (const PackedKind kind : packed_kinds) {
    for (const int64_t m : {9, 16, 17, 31, 32, 33, 47, 63, 64, 65}) {
      // One group for the whole row, or of 64, 128 and 256 columns.
      const int64_t group = std::array<int64_t, 4>{128, 4096, 256, 64}[random.below(4)];
      Case c{kind, m, 8 * static_cast<int64_t>(1 + random.below(160)), group, {37, 16, 5}};
      c.zeros = random.below(2) == 0;
      c.bias = random.below(2) == 0;
      c.accumulate = random.below(2) == 0;
      c.padding = random.below(2) == 0 ? 0 : 8;
      c.out = random.below(2) == 0 ? DType::bf16 : DType::f32;
      check(random, c);
    }
    for (const int64_t m : {24, 64}) {
      check(random, {kind, m, 131, 64, {65}, true, false, true});
      check(random, {kind, m, 1024, 128, {enough(700), enough(700)}, true, true, true});
    }
    // Very many outputs: a block has more strips than its warps take at once.
    check(random, {kind, 18, 128, 128, {enough(44000)}});
    check(random, {kind, 34, 128, 128, {enough(30011)}});
  }
}

TEST(PackedStrips, MultiplyFewRows) {
  KINORA_FRESH_RANDOM(random);
  for (const PackedKind kind : packed_kinds) {
    for (int64_t m = 1; m <= 17; ++m) {
      Case c{kind, m, 131 + 8 * m, m % 3 == 1 ? 128 : 4096, {37, 16, 5}};
      c.zeros = m % 2 == 0;
      c.bias = m % 2 == 1;
      c.accumulate = m % 3 == 0;
      c.padding = m % 5;
      c.out = m % 4 == 0 ? DType::bf16 : DType::f32;
      check(random, c);
    }
    check(random, {kind, 1, 1, 1, {1}});
    check(random, {kind, 1, 1030, 128, {130}});
    check(random, {kind, 3, 4104, 128, {enough(2200)}});
    check(random, {kind, 31, 520, 64, {65}, true, false, true});
    check(random, {kind, 2, 70, 64, {enough(60000)}});
    check(random, {kind, 16, 30000, 128, {20}});
  }
}

// Rows that a GPU reads sixteen bytes at a time.
TEST(PackedStrips, MultiplyUpToEightRows) {
  KINORA_FRESH_RANDOM(random);
  for (const PackedKind kind : packed_kinds) {
    for (int64_t m = 1; m <= 8; ++m) {
      const int64_t group = std::array<int64_t, 4>{128, 4096, 256, 64}[random.below(4)];
      Case c{kind, m, 8 * static_cast<int64_t>(1 + random.below(300)), group, {37, 16, 5}};
      c.zeros = random.below(2) == 0;
      c.bias = random.below(2) == 0;
      c.accumulate = random.below(2) == 0;
      c.padding = random.below(2) == 0 ? 0 : 8;
      c.out = random.below(2) == 0 ? DType::bf16 : DType::f32;
      check(random, c);
    }
    // So many columns that blocks share them, so many outputs that a block has them in turns, and
    // both halves of a gated product.
    check(random, {kind, 8, 18944, 128, {50}});
    check(random, {kind, 5, 256, 128, {enough(20011)}, true, false, true});
    check(random, {kind, 3, 1024, 128, {enough(1300), enough(1300)}, true, true, true});
  }
}

TEST(PackedStrips, JoinGateAndUp) {
  KINORA_FRESH_RANDOM(random);
  for (const PackedKind kind : packed_kinds) {
    for (const int64_t m : {1, 2, 8, 9, 16, 19, 70}) {
      const int64_t n = 1 + static_cast<int64_t>(random.below(140));
      Case c{kind, m, 192 + 8 * m, 64, {n, n}, m % 2 == 0, true, m % 3 == 0};
      c.out = DType::bf16;
      check(random, c);
    }
  }
}

TEST(PackedStrips, NormOnTheWay) {
  KINORA_FRESH_RANDOM(random);
  for (const PackedKind kind : packed_kinds) {
    for (const int64_t m : {1, 2, 7, 8, 9, 33}) {
      for (const bool paired : {false, true}) {
        Case c{kind, m, 1000 + 8 * m, 4096, {50, 50}, false, paired, true};
        c.normed = true;
        c.out = DType::bf16;
        check(random, c);
      }
    }
  }
}

TEST(PackedStrips, MultiplyManyRows) {
  KINORA_FRESH_RANDOM(random);
  for (const PackedKind kind : packed_kinds) {
    check(random, {kind, 65, 257, 64, {63, 66}, true, false, true});
    check(random, {kind, 129, 512, 128, {40}, false, false, false, true});
  }
}

// Weights with one scale for 128 by 128 of them, as fp8 is published, and with one for each row: a
// GPU may round the rows to 8 bits as well.
TEST(PackedStrips, MultiplyManyRowsInEightBits) {
  KINORA_FRESH_RANDOM(random);
  for (const bool blocks : {true, false}) {
    for (const bool paired : {false, true}) {
      const int64_t m = 130 + static_cast<int64_t>(random.below(200)), n = 256, k = 384;
      Case c{PackedKind::fp8, m, k, blocks ? 128 : k, {n, n}, false, paired};
      c.out = paired ? DType::bf16 : DType::f32;
      const Made made = make(random, c, blocks ? 128 : 1);
      check(random, c, made, 6e-2);
    }
  }
}

TEST(PackedStrips, TakeWhatFitsTogether) {
  KINORA_FRESH_RANDOM(random);
  const auto one = [&](PackedKind kind, int64_t k, int64_t group) {
    return random_packed(random, kind, 8, k, group, false);
  };
  const PackedWeights a = one(PackedKind::int4, 256, 128), b = one(PackedKind::int4, 256, 64),
                      c = one(PackedKind::int8, 256, 128), d = one(PackedKind::int4, 128, 128),
                      e = one(PackedKind::int4, 256, 32), f = one(PackedKind::int4, 100, 100);
  const auto takes = [](std::initializer_list<const PackedWeights*> weights) {
    std::vector<const PackedMatrix*> parts;
    for (const PackedWeights* weight : weights)
      parts.push_back(weight ? weight->packed.get() : nullptr);
    return PackedStrips::takes(parts);
  };
  EXPECT_TRUE(takes({&a, &a}));
  EXPECT_TRUE(takes({&f}));
  EXPECT_FALSE(takes({&a, &b}));
  EXPECT_FALSE(takes({&a, &c}));
  EXPECT_FALSE(takes({&a, &d}));
  EXPECT_FALSE(takes({&e}));
  EXPECT_FALSE(takes({&a, nullptr}));
  EXPECT_FALSE(takes({}));
}

}  // namespace
}  // namespace kinora
