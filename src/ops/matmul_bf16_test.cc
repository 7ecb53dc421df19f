// Products of bf16 by every set of instructions that this CPU has, those that do not pay here too.
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "ops/matmul.h"
#include "ops/matmul_cpu.h"
#include "ops/op_test_support.h"

namespace kinora {
namespace {

using namespace testing;
using cpu::Bf16Product;

struct Product {
  TestTensor a, weight, bias, before;
  int64_t m, n, k;
  bool has_bias = false, accumulate = false;

  static Product random(Random& random, int64_t m, int64_t n, int64_t k, int64_t padding = 0,
                        double scale = 1.0) {
    return {TestTensor::random(random, DType::f32, {m, k}, padding, scale),
            TestTensor::random(random, DType::bf16, {n, k}, padding, scale),
            TestTensor::random(random, DType::f32, {n}, 0, scale * scale),
            TestTensor::random(random, DType::f32, {m, n}, padding, scale * scale),
            m,
            n,
            k};
  }

  cpu::MatmulWork work(TestTensor& out) {
    cpu::MatmulWork work;
    work.m = m;
    work.n = n;
    work.k = k;
    work.a = a.view().data<float>();
    work.a_stride = a.view().stride(0);
    work.weight = weight.view().raw();
    work.weight_type = DType::bf16;
    work.weight_stride = weight.view().stride(0);
    work.out = out.view().data<float>();
    work.out_stride = out.view().stride(0);
    work.bias = has_bias ? bias.view().data<float>() : nullptr;
    work.accumulate = accumulate;
    return work;
  }

  TestTensor run(const Bf16Product& product, const Context& context, bool exact) {
    TestTensor out = before.copy();
    const cpu::MatmulWork all = work(out);
    product.run(context, {&all, 1}, exact);
    return out;
  }

  // The product in double precision, and how far each element may be from it: a is rounded to bf16
  // unless it stands in three parts, every addition may lose a unit in the last place of f32, and
  // every number that is no normal f32 may count as zero.
  struct Expected {
    std::vector<double> values, bounds;
  };
  Expected expected(bool exact) {
    constexpr double addition = 0x1p-23, small = 0x1p-126;
    const double rounding = exact ? 0 : 0x1p-8, parts = exact ? 3 : 1;
    const std::vector<double> rows = a.values(), weights = weight.values(), shift = bias.values(),
                              old = before.values();
    const auto sizes = [&](const std::vector<double>& matrix, int64_t count) {
      std::vector<double> sums(static_cast<size_t>(count));
      for (size_t i = 0; i < matrix.size(); ++i) sums[i / size_t(k)] += std::abs(matrix[i]);
      return sums;
    };
    const std::vector<double> row_sizes = sizes(rows, m), column_sizes = sizes(weights, n);
    Expected found;
    for (int64_t row = 0; row < m; ++row) {
      for (int64_t column = 0; column < n; ++column) {
        const double start = (has_bias ? shift[static_cast<size_t>(column)] : 0) +
                             (accumulate ? old[static_cast<size_t>(row * n + column)] : 0);
        const Dot dot = exact_dot(rows.data() + row * k, weights.data() + column * k, k);
        const double flushed =
            small + parts * small *
                        (2 * static_cast<double>(k) + row_sizes[static_cast<size_t>(row)] +
                         column_sizes[static_cast<size_t>(column)]);
        found.values.push_back(start + dot.sum);
        const double steps = parts * static_cast<double>(k) + 8;
        found.bounds.push_back(dot.size * rounding + flushed +
                               steps * addition *
                                   (1.01 * dot.size + std::abs(start) +
                                    (has_bias ? std::abs(shift[size_t(column)]) : 0)));
      }
    }
    return found;
  }
};

void for_each_product(const std::function<void(const Bf16Product&)>& body) {
  if (cpu::bf16_products().empty()) GTEST_SKIP() << "this CPU has no products of bf16";
  for (const Bf16Product* product : cpu::bf16_products()) {
    SCOPED_TRACE(std::string(product->instructions));
    body(*product);
  }
}

void check(const Bf16Product& instructions, Product& product) {
  SCOPED_TRACE("m " + std::to_string(product.m) + ", n " + std::to_string(product.n) + ", k " +
               std::to_string(product.k) + (product.has_bias ? ", bias" : "") +
               (product.accumulate ? ", accumulate" : ""));
  static const ThreadPool one(1), three(3);
  for (const bool exact : {false, true}) {
    SCOPED_TRACE(exact ? "exact" : "rounded");
    const Product::Expected expected = product.expected(exact);
    for (const ThreadPool* pool : {&one, &three}) {
      TestTensor out = product.run(instructions, Context(*pool), exact);
      expect_within(out, expected.values, expected.bounds);
    }
  }
}

TEST(MatmulBf16, EqualsTheReferenceAtEverySize) {
  KINORA_FRESH_RANDOM(random);
  for_each_product([&](const Bf16Product& instructions) {
    constexpr int64_t sizes[] = {1, 15, 16, 17, 31, 33, 63, 65, 127, 129};
    for (const int64_t m : sizes) {
      for (const int64_t n : sizes) {
        for (const int64_t k : {1, 2, 31, 33, 127}) {
          Product product = Product::random(random, m, n, k, (m + n + k) % 4);
          product.has_bias = (m + k) % 2 == 0;
          product.accumulate = (n + k) % 3 == 0;
          check(instructions, product);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  });
}

// Few rows meet weights that are not packed, and their parts may stand side by side in one tile.
TEST(MatmulBf16, EqualsTheReferenceForFewRows) {
  KINORA_FRESH_RANDOM(random);
  for_each_product([&](const Bf16Product& instructions) {
    for (const int64_t m : {2, 3, 5, 6, 8, 10, 11, 16, 32}) {
      for (const int64_t n : {32, 33, 95, 160}) {
        for (const int64_t k : {1, 32, 95, 96, 200, 384}) {
          Product product = Product::random(random, m, n, k, (m + n) % 3);
          product.has_bias = (m + n) % 2 == 0;
          product.accumulate = (m + k) % 2 == 0;
          check(instructions, product);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  });
}

// Together they are what each is alone, to the bit, however many threads there are.
TEST(MatmulBf16, ProductsOfTheSameRowsAreIndependent) {
  KINORA_FRESH_RANDOM(random);
  for_each_product([&](const Bf16Product& instructions) {
    for (const int64_t m : {1, 8, 11, 32, 40}) {
      for (const bool exact : {false, true}) {
        SCOPED_TRACE("m " + std::to_string(m) + (exact ? ", exact" : ", rounded"));
        std::vector<Product> products;
        for (const int64_t n : {96, 7, 33, 64}) {
          products.push_back(Product::random(random, m, n, 70, n % 2));
          products.back().a = products.front().a;
          products.back().has_bias = n % 3 == 0;
          products.back().accumulate = n == 33;
        }
        const ThreadPool one(1);
        std::vector<std::vector<double>> alone;
        for (Product& product : products) {
          alone.push_back(product.run(instructions, Context(one), exact).values());
        }
        for (const int threads : {1, 2, 3}) {
          const ThreadPool pool(threads);
          std::vector<TestTensor> outs;
          for (Product& product : products) outs.push_back(product.before.copy());
          std::vector<cpu::MatmulWork> all;
          for (size_t i = 0; i < products.size(); ++i) all.push_back(products[i].work(outs[i]));
          instructions.run(Context(pool), all, exact);
          for (size_t i = 0; i < products.size(); ++i) {
            EXPECT_EQ(outs[i].values(), alone[i]) << "product " << i << ", " << threads;
          }
        }
      }
    }
  });
}

TEST(MatmulBf16, EqualsTheReferenceForLongRows) {
  KINORA_FRESH_RANDOM(random);
  for_each_product([&](const Bf16Product& instructions) {
    for (const int64_t m : {1, 16, 33, 65}) {
      for (const int64_t k : {1023, 1024, 1056, 2081, 5000}) {
        Product product = Product::random(random, m, 47, k, m % 2);
        product.has_bias = true;
        product.accumulate = m % 2 == 0;
        check(instructions, product);
      }
    }
    Product wide = Product::random(random, 35, 1201, 65);
    check(instructions, wide);
    Product tall = Product::random(random, 4300, 14, 33);
    check(instructions, tall);
  });
}

TEST(MatmulBf16, WithoutAnySummandsIsTheBias) {
  KINORA_FRESH_RANDOM(random);
  for_each_product([&](const Bf16Product& instructions) {
    for (const int64_t m : {3, 35}) {
      for (const int64_t n : {7, 40}) {
        Product product = Product::random(random, m, n, 0);
        product.has_bias = true;
        check(instructions, product);
        product.accumulate = true;
        check(instructions, product);
      }
    }
  });
}

// Where factors are exact in bf16, or rows stand in three parts, only the additions round.
TEST(MatmulBf16, AddsInF32) {
  KINORA_FRESH_RANDOM(random);
  for_each_product([&](const Bf16Product& instructions) {
    for (const bool exact : {false, true}) {
      Product product = Product::random(random, 67, 45, 1031);
      if (!exact) {
        std::vector<float> rounded;
        for (const double value : product.a.values()) {
          rounded.push_back(bf16::from_float(static_cast<float>(value)).to_float());
        }
        product.a = TestTensor::of(rounded, {product.m, product.k});
      }
      const std::vector<double> rows = product.a.values(), weights = product.weight.values();
      std::vector<double> expected;
      for (int64_t row = 0; row < product.m; ++row) {
        for (int64_t column = 0; column < product.n; ++column) {
          double sum = 0;
          for (int64_t j = 0; j < product.k; ++j) {
            sum += rows[static_cast<size_t>(row * product.k + j)] *
                   weights[static_cast<size_t>(column * product.k + j)];
          }
          expected.push_back(sum);
        }
      }
      const ThreadPool pool(2);
      TestTensor out = product.run(instructions, Context(pool), exact);
      // Errors of a sum of k products grow like √k, not like k.
      expect_close(out, expected, 3e-7 * std::sqrt(static_cast<double>(product.k)));
    }
  });
}

TEST(MatmulBf16, CountsAtMostTinyNumbersAsZero) {
  KINORA_FRESH_RANDOM(random);
  for_each_product([&](const Bf16Product& instructions) {
    // Products below the normal numbers, then weights and rows below them.
    for (const double scale : {0x1p-64, 0x1p-130}) {
      Product product = Product::random(random, 33, 35, 129, 1, scale);
      check(instructions, product);
    }
    Product product = Product::random(random, 33, 35, 129);
    product.a = TestTensor::random(random, DType::f32, {33, 129}, 0, 0x1p-130);
    check(instructions, product);
  });
}

TEST(MatmulBf16, KeepsWhatIsNoNumber) {
  KINORA_FRESH_RANDOM(random);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const auto look = [&](const Bf16Product& instructions, bool exact) {
    for (const int64_t m : {5, 70}) {
      const int64_t n = 37, k = 67, place = 64;
      Product product = Product::random(random, m, n, k);
      product.a.view().data<float>()[1 * k + place] = std::nanf("");
      product.a.view().data<float>()[2 * k + place] = infinity;
      product.a.view().data<float>()[3 * k + place] = -infinity;
      auto* weight = product.weight.view().data<bf16>();
      for (int64_t column = 0; column < n; ++column) {
        weight[column * k + place] = bf16::from_float(column % 2 == 0 ? 1.0f : -2.0f);
      }
      weight[35 * k + place] = bf16::from_float(0);
      weight[36 * k + 3] = bf16::from_float(std::nanf(""));
      const ThreadPool pool(2);
      const std::vector<double> out = product.run(instructions, Context(pool), exact).values();
      for (int64_t row = 0; row < m; ++row) {
        for (int64_t column = 0; column < n; ++column) {
          SCOPED_TRACE("row " + std::to_string(row) + ", column " + std::to_string(column));
          const double value = out[static_cast<size_t>(row * n + column)];
          if (row == 1 || column == 36) {
            EXPECT_TRUE(std::isnan(value));
          } else if (row == 2 || row == 3) {
            const double sign = (row == 2) == (column % 2 == 0) ? 1 : -1;
            const bool times_zero = column == 35;
            EXPECT_TRUE(times_zero ? std::isnan(value) : value == sign * infinity) << value;
          } else {
            EXPECT_TRUE(std::isfinite(value));
          }
        }
      }
    }
  };
  for_each_product([&](const Bf16Product& instructions) {
    look(instructions, false);
    look(instructions, true);
  });
}

// Bits of a NaN that bf16 has no room for, and the largest number, which bf16 would round up.
TEST(MatmulBf16, ExactRowsKeepEveryBit) {
  for_each_product([&](const Bf16Product& instructions) {
    const ThreadPool pool(1);
    Random random(1);
    Product product = Product::random(random, 2, 40, 2);
    product.a = TestTensor::of(
        {std::bit_cast<float>(0x7f800001u), 1.0f, std::numeric_limits<float>::max(), 1.0f}, {2, 2});
    product.weight = TestTensor::of(std::vector<float>(80, 1.0f), {40, 2}, DType::bf16);
    const std::vector<double> out = product.run(instructions, Context(pool), true).values();
    for (size_t column = 0; column < 40; ++column) {
      EXPECT_TRUE(std::isnan(out[column]));
      EXPECT_EQ(out[40 + column], std::numeric_limits<float>::max());
    }
  });
}

TEST(MatmulBf16, DoesNotDependOnTheNumberOfThreads) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool one(1), five(5);
  for_each_product([&](const Bf16Product& instructions) {
    for (const int64_t m : {1, 16, 40, 300}) {
      Product product = Product::random(random, m, 407, 1211);
      for (const bool exact : {false, true}) {
        EXPECT_EQ(product.run(instructions, Context(one), exact).values(),
                  product.run(instructions, Context(five), exact).values())
            << "rows: " << m << (exact ? ", exact" : "");
      }
    }
  });
}

TEST(MatmulBf16, RunsOnSeveralThreadsAtOnce) {
  KINORA_FRESH_RANDOM(random);
  for_each_product([&](const Bf16Product& instructions) {
    const ThreadPool shared(3);
    std::vector<Product> products;
    std::vector<std::vector<double>> expected;
    for (const int64_t m : {7, 33, 70, 130}) {
      products.push_back(Product::random(random, m, 131, 259));
      expected.push_back(products.back().run(instructions, Context(shared), m > 40).values());
    }
    std::vector<int> wrong(products.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < products.size(); ++i) {
      threads.emplace_back([&, i] {
        const ThreadPool own(2);
        for (int repetition = 0; repetition < 20; ++repetition) {
          const Context context(repetition % 2 == 0 ? shared : own);
          const bool exact = products[i].m > 40;
          wrong[i] += products[i].run(instructions, context, exact).values() != expected[i];
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, std::vector<int>(products.size()));
  });
}

TEST(MatmulBf16, IsWhatMatmulUses) {
  const Bf16Product* best = cpu::best_bf16_product();
  EXPECT_EQ(native_bf16_available(), best != nullptr);
  if (best == nullptr) GTEST_SKIP() << "this CPU has no products of bf16 that pay";
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  const auto values_of = [&](Product& product, bool native_bf16) {
    TestTensor out = TestTensor::poisoned(DType::f32, {product.m, product.n});
    MatmulOptions options;
    options.native_bf16 = native_bf16;
    matmul(context, product.a.view(), product.weight.view(), out.view(), options);
    return out.values();
  };
  for (const int64_t m : {1, 5, 20, 21, 70}) {
    SCOPED_TRACE("rows: " + std::to_string(m));
    Product product = Product::random(random, m, 65, 129);
    const std::vector<double> exact = values_of(product, false), rounded = values_of(product, true);
    // A few rows are never rounded, so that a token is the same however many are decoded at once.
    EXPECT_EQ(rounded == exact, m <= 20);
    if (m > 20) {
      EXPECT_EQ(rounded, product.run(*best, context, false).values());
    }
    if (best->exact_rows_from > 0 && m >= best->exact_rows_from) {
      EXPECT_EQ(exact, product.run(*best, context, true).values());
    }
  }
}

}  // namespace
}  // namespace kinora
