// Attention in FP8: the layout of its rows, which runs anywhere, and on a Hopper GPU the rounding
// and the kernel, against double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "attention/cuda/block_plan_cuda.h"
#include "attention/cuda/cuda_compile.h"
#include "attention/cuda/device_plan_test_support.h"
#include "attention/cuda/fp8/fp8_layout.h"
#include "attention/cuda/fp8/fp8_rows.h"
#include "attention/cuda/runner_cuda.h"
#include "attention/policies/dense.h"
#include "attention/policies/policy.h"
#include "ops/packed_matrix.h"

namespace kinora {
namespace {

using fp8_attention::Fp8Rows;
using fp8_attention::head_size;
using testing::error_of;
using testing::Expected;
using testing::make_problem;
using testing::PlacedProblem;
using testing::Problem;
using testing::ProblemShape;

// What the tensor cores make of a byte's offset: bits 4 … are flipped by bits 7 ….
int swizzled_by_hardware(int offset, int bits) {
  return offset ^ ((offset >> 7 & ((1 << bits) - 1)) << 4);
}

TEST(Fp8Layout, PiecesLieAsTheTensorCoresReadThem) {
  for (int key = 0; key < piece_keys; ++key) {
    for (int column = 0; column < head_size; ++column) {
      EXPECT_EQ(fp8_attention::key_byte(key, column),
                swizzled_by_hardware(key * head_size + column, 3));
      const int slot = fp8_attention::key_slot(key);
      EXPECT_EQ(fp8_attention::key_of_slot(slot), key);
      EXPECT_EQ(fp8_attention::value_byte(slot, column),
                swizzled_by_hardware(column * piece_keys + slot, 1));
    }
  }
}

// A product of weights and values as the instructions define it: where scores come out, where the
// left factor is read from, how the right one is addressed. Without any move between threads.
TEST(Fp8Layout, WeightsStayInTheirThreads) {
  KINORA_FRESH_RANDOM(random);
  constexpr int rows = 16, keys = 128;
  std::vector<double> weights(rows * keys), values(keys * head_size);
  for (double& weight : weights) weight = random.uniform();
  for (double& value : values) value = random.normal();
  // The image of the values, a number for every byte.
  std::vector<double> image(keys * head_size);
  for (int key = 0; key < keys; ++key) {
    const int slot = fp8_attention::key_slot(key % piece_keys);
    for (int column = 0; column < head_size; ++column) {
      image[static_cast<size_t>(key / piece_keys * fp8_attention::piece_bytes +
                                fp8_attention::value_byte(slot, column))] =
          values[static_cast<size_t>(key * head_size + column)];
    }
  }
  std::vector<double> out(rows * head_size);
  for (int lane = 0; lane < 32; ++lane) {
    // Registers of four numbers.
    std::array<std::array<double, 4>, 16> p{};
    for (int lower = 0; lower < 2; ++lower) {
      const int row = lane / 4 + 8 * lower;
      for (int i = 0; i < 16; i += 2) {
        for (int k = 0; k < 4; ++k) {
          // Scores: number 4 i + 2 lower + c of a thread is column 8 i + 2 (lane % 4) + c.
          const int column = 8 * (i + k / 2) + 2 * (lane % 4) + k % 2;
          p[static_cast<size_t>(fp8_attention::weight_register(i / 2, lower))]
           [static_cast<size_t>(k)] = weights[static_cast<size_t>(row * keys + column)];
        }
      }
    }
    for (int step = 0; step < keys / 32; ++step) {
      for (int a = 0; a < 4; ++a) {  // registers of the left factor
        const int row = lane / 4 + 8 * (a % 2);
        for (int byte = 0; byte < 4; ++byte) {
          const int k = 4 * (lane % 4) + 16 * (a / 2) + byte;
          for (int column = 0; column < head_size; ++column) {
            const int at =
                step * fp8_attention::piece_bytes + swizzled_by_hardware(column * 32 + k, 1);
            out[static_cast<size_t>(row * head_size + column)] +=
                p[static_cast<size_t>(4 * step + a)][static_cast<size_t>(byte)] *
                image[static_cast<size_t>(at)];
          }
        }
      }
    }
  }
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < head_size; ++column) {
      double expected = 0;
      for (int key = 0; key < keys; ++key) {
        expected += weights[static_cast<size_t>(row * keys + key)] *
                    values[static_cast<size_t>(key * head_size + column)];
      }
      EXPECT_NEAR(out[static_cast<size_t>(row * head_size + column)], expected, 1e-10);
    }
  }
}

// A row as it is turned before it is rounded.
std::vector<double> turned(const float* row) {
  std::vector<double> x(row, row + head_size);
  for (int column = 0; column < head_size; ++column) {
    if ((fp8_attention::flipped(column / 16) >> column % 16 & 1) != 0) {
      x[static_cast<size_t>(column)] *= -1;
    }
  }
  for (size_t step = 1; step < x.size(); step *= 2) {
    for (size_t i = 0; i < x.size(); ++i) {
      if ((i & step) != 0) continue;
      const double low = x[i], high = x[i + step];
      x[i] = low + high;
      x[i + step] = low - high;
    }
  }
  return x;
}

TEST(Fp8Layout, TurningKeepsProductsAndSpreadsColumns) {
  KINORA_FRESH_RANDOM(random);
  const auto q = testing::random_floats(random, head_size);
  const auto k = testing::random_floats(random, head_size);
  const auto turned_q = turned(q.data()), turned_k = turned(k.data());
  double plain = 0, after = 0;
  for (size_t i = 0; i < turned_q.size(); ++i) {
    plain += double{q[i]} * double{k[i]};
    after += turned_q[i] * turned_k[i];
  }
  EXPECT_NEAR(after * double{fp8_attention::unturned}, plain, 1e-10);
  // Neither one column nor the same number in all of them becomes a column that stands out.
  std::vector<float> one(head_size), same(head_size, 1.0f);
  one[static_cast<size_t>(random.below(head_size))] = 1;
  for (const double value : turned(one.data())) EXPECT_EQ(std::abs(value), 1);
  double largest = 0;
  for (const double value : turned(same.data())) largest = std::max(largest, std::abs(value));
  EXPECT_LE(largest, 48);  // of 128
}

TEST(Fp8Plans, SayWhereTheirListsBegin) {
  KINORA_FRESH_RANDOM(random);
  const Problem problem = make_problem(random, {.queries = 700, .earlier = 1000, .head_size = 1});
  const CudaCut cut{.split = false};
  const auto start_of = [&](const auto& fill, const CudaCut& how) {
    PlanBuilder builder(problem.queries(), problem.memory());
    builder.begin_queries();
    builder.add_query_range(0, 700);
    builder.begin_segments();
    fill(builder);
    builder.add_tile(0);
    return compile_plan(builder.take(), problem.query_ordinals, problem.row_ordinals, how).start;
  };
  const auto at = [](int64_t begin) {
    return [begin](PlanBuilder& builder) {
      builder.add_rows(0, 256);
      builder.add_rows(begin, 1200);
    };
  };
  EXPECT_EQ(start_of(at(320), cut), ListStart::blocks);
  EXPECT_EQ(start_of(at(321), cut), ListStart::rows);
  EXPECT_EQ(start_of([](PlanBuilder& builder) { builder.add_rows(0, 300, 2); }, cut),
            ListStart::scattered);
  EXPECT_EQ(start_of(
                [](PlanBuilder& builder) {
                  builder.add_gathered(std::vector<int32_t>{1, 5, 9});
                },
                cut),
            ListStart::scattered);
  // Parts of a list are counted in blocks from its first key on.
  EXPECT_EQ(start_of(at(321), {.processors = 132}), ListStart::scattered);
  EXPECT_EQ(start_of(at(320), {.processors = 132}), ListStart::blocks);
  EXPECT_EQ(
      compile_dense({1, 1, 700, 1700}, problem.query_ordinals, problem.row_ordinals, cut).start,
      ListStart::blocks);
}

class Fp8Attention : public testing::OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (!IsSkipped() && !has_fp8_attention(device_)) GTEST_SKIP() << "no Hopper GPU";
  }

  static Problem make(Random& random, ProblemShape shape) {
    shape.dtype = DType::bf16;
    shape.head_size = head_size;
    Problem problem = make_problem(random, shape);
    testing::narrow_queries(problem);
    return problem;
  }

  // FP8 whatever the number of queries.
  RunOptions in_fp8() {
    return {.dtype = AttentionDtype::fp8, .least_fp8_queries = 0, .launches = &launches_};
  }

  // The numbers that the kernel multiplies. Queries are divided so that products are scores.
  Problem rounded(const Problem& problem, const QueryView& queries, const RowSet& rows,
                  const Context& context) const {
    const Fp8Rows codes = fp8_attention::round_rows(context, queries.queries, rows);
    const Tensor q = codes.queries.to(Device::cpu()), k = codes.keys.to(Device::cpu());
    const Tensor v = codes.values.to(Device::cpu());
    const auto query_scales = testing::floats_of(codes.query_scales);
    const auto scales = testing::floats_of(codes.scales);
    const auto code = [](const Tensor& from, int64_t at) {
      return e4m3_value(reinterpret_cast<const uint8_t*>(from.view().raw())[at]);
    };
    Problem out = problem;
    for (size_t i = 0; i < out.query_data.size(); ++i) {
      out.query_data[i] =
          code(q, static_cast<int64_t>(i)) * query_scales[i / head_size] * fp8_attention::unturned;
    }
    const int64_t kv_heads = problem.shape.kv_heads;
    for (int64_t row = 0; row < problem.rows(); ++row) {
      for (int64_t head = 0; head < kv_heads; ++head) {
        const int64_t piece = (head * codes.pieces + row / piece_keys) * fp8_attention::piece_bytes;
        const auto in_piece = static_cast<int>(row % piece_keys);
        const int slot = fp8_attention::key_slot(in_piece);
        for (int column = 0; column < head_size; ++column) {
          const auto to = static_cast<size_t>((row * kv_heads + head) * head_size + column);
          out.key_data[to] = code(k, piece + fp8_attention::key_byte(in_piece, column)) *
                             scales[static_cast<size_t>(head)];
          out.value_data[to] = code(v, piece + fp8_attention::value_byte(slot, column)) *
                               scales[static_cast<size_t>(kv_heads + head)];
        }
      }
    }
    return out;
  }

  // ‖error‖ / ‖out‖ against exact attention over the rounded numbers. Values are independent, so
  // that relative errors of the weights, each at most e, give at most about e: 2⁻⁴ of rounding a
  // weight to e4m3, and 2⁻⁵ of a score: the tensor cores cut each of 4 · 33 terms off at about
  // 2⁻¹³ of the largest, which here is about 2.
  static constexpr double kernel_error = 0x1p-4 + 0x1p-5;
  // Against the numbers themselves: weights and values are rounded by 2⁻⁴ of each, a score by the
  // products' errors, independent and each of up to √2 · 2⁻⁴ of a product: 2⁻⁴ √2 · scale · |q| of
  // keys of deviation 1, which is 0.18 for queries of deviation 2. Exponents make that no more than
  // 0.2 of a weight.
  static constexpr double rounding_error = 0.2 + 0x1p-4 + 0x1p-4 + kernel_error;
  // Of a logarithm of sums: that of a score.
  static constexpr double score_error = 0x1p-3;

  void expect_near(PlacedProblem& placed, const Expected& exact, const Expected& plain,
                   const std::string& what) const {
    EXPECT_LE(error_of(placed.result(), exact.out), kernel_error) << what;
    EXPECT_LE(error_of(placed.result(), plain.out), rounding_error) << what;
    const auto max = placed.max(), sum = placed.sum();
    for (size_t i = 0; i < max.size(); ++i) {
      if (std::isinf(exact.log_sum[i])) {
        EXPECT_EQ(sum[i], 0) << what;
      } else {
        EXPECT_NEAR(double{max[i]} + std::log(double{sum[i]}), exact.log_sum[i], score_error)
            << what << ' ' << i;
      }
    }
  }

  AttentionLaunches launches_;
};

TEST_F(Fp8Attention, RoundsRowsAsE4m3Does) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t count : {1, 31, 32, 33, 129, 1000}) {
    Problem problem = make(random, {.queries = count, .heads = 4, .kv_heads = 2});
    // Rows of very different size, and one of zeros.
    for (int64_t row = 0; row < count; ++row) {
      const float size = row % 7 == 3 ? 0.0f : std::exp2(static_cast<float>(random.below(9)) - 4);
      for (int64_t i = 0; i < 2 * head_size; ++i) {
        const auto at = static_cast<size_t>(row * 2 * head_size + i);
        problem.key_data[at] *= size;  // still bf16
        problem.value_data[at] *= size;
      }
    }
    PlacedProblem placed(problem, device_, DType::bf16, DType::bf16);
    const Context context = placed.context(pool_);
    const Problem found = rounded(problem, placed.queries(), placed.memory(), context);
    const auto expect_rounded = [&](double actual, double exact, double scale, double norm) {
      // Half a step of e4m3, or of its smallest numbers, and what f32 loses in seven additions.
      const double bound = std::abs(exact) * 0x1p-4 + scale * 0x1p-10 + 16 * 0x1p-24 * norm;
      EXPECT_LE(std::abs(actual - exact), bound) << actual << " for " << exact;
    };
    const auto norm_of = [](const float* row) {
      double sum = 0;
      for (int i = 0; i < head_size; ++i) sum += std::abs(double{row[i]});
      return sum;
    };
    const auto compare = [&](const std::vector<float>& from, const std::vector<float>& to,
                             bool turns, double scale, double factor) {
      for (size_t row = 0; row < from.size(); row += head_size) {
        const std::vector<double> exact =
            turns ? turned(&from[row])
                  : std::vector<double>(from.begin() + static_cast<int64_t>(row),
                                        from.begin() + static_cast<int64_t>(row) + head_size);
        const double norm = norm_of(&from[row]);
        for (size_t i = 0; i < exact.size(); ++i) {
          expect_rounded(double{to[row + i]} * factor, exact[i], scale, norm);
        }
      }
    };
    const Fp8Rows codes =
        fp8_attention::round_rows(context, placed.queries().queries, placed.memory());
    const auto scales = testing::floats_of(codes.scales);
    const auto query_scales = testing::floats_of(codes.query_scales);
    compare(problem.query_data, found.query_data, true,
            double{*std::max_element(query_scales.begin(), query_scales.end())}, head_size);
    compare(problem.key_data, found.key_data, true, double{std::max(scales[0], scales[1])}, 1);
    compare(problem.value_data, found.value_data, false, double{std::max(scales[2], scales[3])}, 1);
    // What follows the last row is zeros.
    const Tensor keys = codes.keys.to(Device::cpu());
    const auto* bytes = reinterpret_cast<const uint8_t*>(keys.view().raw());
    const int64_t first = (count + piece_keys - 1) / piece_keys * fp8_attention::piece_bytes;
    EXPECT_TRUE(std::all_of(bytes + first, bytes + codes.pieces * fp8_attention::piece_bytes,
                            [](uint8_t byte) { return (byte & 0x7f) == 0; }));
  }
}

TEST_F(Fp8Attention, DenseIsNearDoublePrecision) {
  KINORA_FRESH_RANDOM(random);
  struct Case {
    int64_t queries, earlier, heads, kv_heads;
  };
  for (const Case& c : {Case{1, 0, 4, 4}, Case{1, 999, 28, 4}, Case{63, 0, 4, 4},
                        Case{65, 63, 28, 4}, Case{127, 129, 4, 4}, Case{129, 1, 28, 4},
                        Case{129, 871, 4, 4}, Case{1000, 0, 2, 1}, Case{40, 4000, 2, 1}}) {
    const Problem problem = make(random, {.queries = c.queries,
                                          .earlier = c.earlier,
                                          .heads = c.heads,
                                          .kv_heads = c.kv_heads,
                                          .gaps = c.earlier > 0 ? 0.1 : 0});
    const DType type = random.below(2) == 0 ? DType::f32 : DType::bf16;
    PlacedProblem placed(problem, device_, type, DType::f32);
    const Context context = placed.context(pool_);
    RunOptions options = in_fp8();
    options.state = placed.state();
    cuda_attention::run_dense(context, placed.queries(), placed.memory(), problem.scale,
                              placed.out(), options);
    const auto reads = [&](int64_t q, int64_t, int64_t row) { return row <= c.earlier + q; };
    const Problem codes = rounded(problem, placed.queries(), placed.memory(), context);
    expect_near(placed, reference(codes, reads), reference(problem, reads),
                std::to_string(c.queries) + " after " + std::to_string(c.earlier));
  }
  EXPECT_EQ(launches_.fp8, 9);
  EXPECT_EQ(launches_.bf16, 0);
}

// Lists of the host: blocks at multiples of 32, lists that begin anywhere, and tiles that read
// nothing.
TEST_F(Fp8Attention, ListsAreNearDoublePrecision) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t every : {32, 1}) {
    for (const int64_t heads : {28, 4}) {
      const Problem problem =
          make(random, {.queries = 90, .earlier = 800, .heads = heads, .kv_heads = 4});
      PlanBuilder builder(problem.queries(), problem.memory());
      for (int head = 0; head < heads; ++head) {
        for (int64_t begin = 0; begin < 90;) {
          const int64_t end = std::min<int64_t>(90, begin + 1 + random.below(140));
          builder.begin_queries();
          builder.add_query_range(begin, end);
          builder.begin_segments();
          const bool empty = random.below(8) == 0;
          for (int64_t row = random.below(10) * every; !empty && row + 128 < problem.rows();) {
            const int64_t count = std::min(problem.rows() - row, 128 + random.below(300));
            builder.add_rows(row, count);
            row = (row + count + random.below(400) + every) / every * every;
          }
          builder.add_tile(head);
          begin = end;
        }
      }
      const Plan plan = builder.take();
      PlacedProblem placed(problem, device_, DType::bf16, DType::f32);
      const Context context = placed.context(pool_);
      RunOptions options = in_fp8();
      options.state = placed.state();
      // Lists that begin anywhere must be whole.
      const auto kernel = cuda_attention::choose_kernel(context, placed.queries().queries,
                                                        placed.memory(), placed.out());
      CudaCut cut = cuda_attention::cut_for(context, kernel);
      cut.split = every > 1;
      const auto device_plan = cuda_attention::upload_plan(
          context, kernel, compile_plan(plan, problem.query_ordinals, problem.row_ordinals, cut),
          {plan.heads, plan.kv_heads, problem.shape.queries, problem.rows()});
      cuda_attention::run_plan(context, device_plan, placed.queries(), placed.memory(),
                               problem.scale, placed.out(), options);
      const Problem codes = rounded(problem, placed.queries(), placed.memory(), context);
      expect_near(placed, reference_of(codes, plan), reference_of(problem, plan),
                  std::to_string(every) + " " + std::to_string(heads));
    }
  }
  EXPECT_EQ(launches_.fp8, 4);
}

// Lists of the device, as MOMO has them.
TEST_F(Fp8Attention, ChosenBlocksAreNearDoublePrecision) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t block : {32, 64}) {
    const Problem problem =
        make(random, {.queries = 300, .earlier = 711, .heads = 6, .kv_heads = 2});
    const BlockLayout layout{.tile = 128, .block = block, .sink = 40, .window = 100};
    const int64_t tiles = layout.tiles(300), most = 20;
    Tensor blocks = Tensor::zeros(DType::i32, {6, tiles, most});
    Tensor counts = Tensor::zeros(DType::i32, {6, tiles});
    for (int64_t list = 0; list < 6 * tiles; ++list) {
      const int64_t first = layout.sink_end(problem.rows()) / block;
      const int64_t end =
          layout.window_begin(problem.queries(), problem.memory(), list % tiles) / block;
      const int64_t odds = random.below(4);
      int32_t count = 0;
      for (int64_t at = first; at < end && count < most; ++at) {
        if (random.below(4) >= odds) continue;
        blocks.data<int32_t>()[list * most + count++] = static_cast<int32_t>(at);
      }
      counts.data<int32_t>()[list] = count;
    }
    PlacedProblem placed(problem, device_, DType::bf16, DType::f32);
    const Context context = placed.context(pool_);
    const auto plan =
        cuda_attention::block_plan(context, placed.queries(), placed.memory(), layout,
                                   {blocks.to(device_), counts.to(device_)}, placed.out());
    RunOptions options = in_fp8();
    options.state = placed.state();
    cuda_attention::run_plan(context, plan, placed.queries(), placed.memory(), problem.scale,
                             placed.out(), options);
    const Plan read = testing::host_plan(plan, 2, device_);
    const Problem codes = rounded(problem, placed.queries(), placed.memory(), context);
    expect_near(placed, reference_of(codes, read), reference_of(problem, read),
                "blocks of " + std::to_string(block));
  }
  EXPECT_EQ(launches_.fp8, 2);
}

// Onto a result over other rows.
TEST_F(Fp8Attention, MergesWithWhatIsThere) {
  KINORA_FRESH_RANDOM(random);
  for (const AttentionDtype first : {AttentionDtype::bf16, AttentionDtype::fp8}) {
    const Problem problem =
        make(random, {.queries = 129, .earlier = 700, .heads = 8, .kv_heads = 2});
    PlacedProblem placed(problem, device_, DType::bf16, DType::f32);
    const Context context = placed.context(pool_);
    const RowSet all = placed.memory();
    const int64_t cut = 1 + random.below(600);
    const auto part = [&](int64_t begin, int64_t count) {
      const auto at = static_cast<size_t>(begin), size = static_cast<size_t>(count);
      return RowSet{all.keys.rows(begin, count), all.values.rows(begin, count),
                    all.ordinals.subspan(at, size), all.modalities.subspan(at, size)};
    };
    RunOptions options = in_fp8();
    options.state = placed.state();
    options.dtype = first;
    cuda_attention::run_dense(context, placed.queries(), part(0, cut), problem.scale, placed.out(),
                              options);
    options.dtype = AttentionDtype::fp8;
    options.onto = true;
    cuda_attention::run_dense(context, placed.queries(), part(cut, problem.rows() - cut),
                              problem.scale, placed.out(), options);
    const Expected plain =
        reference(problem, [](int64_t q, int64_t, int64_t row) { return row <= 700 + q; });
    EXPECT_LE(error_of(placed.result(), plain.out), rounding_error) << cut;
    const auto max = placed.max(), sum = placed.sum();
    for (size_t i = 0; i < max.size(); ++i) {
      // The error of a score rounded in both factors, five deviations of it.
      EXPECT_NEAR(double{max[i]} + std::log(double{sum[i]}), plain.log_sum[i], 1.0) << i;
    }
  }
}

// What it cannot read runs in bf16, bit for bit, and is counted as such.
TEST_F(Fp8Attention, OtherListsKeepBf16) {
  KINORA_FRESH_RANDOM(random);
  const Problem problem = make(random, {.queries = 300, .earlier = 500, .heads = 4, .kv_heads = 2});
  const Plan plan = testing::random_plan(random, problem);
  std::vector<std::vector<float>> results;
  for (const AttentionDtype dtype : {AttentionDtype::bf16, AttentionDtype::fp8}) {
    PlacedProblem placed(problem, device_, DType::bf16, DType::bf16);
    RunOptions options = in_fp8();
    options.dtype = dtype;
    cuda_attention::run_plan(placed.context(pool_), plan, placed.queries(), placed.memory(),
                             problem.scale, placed.out(), options);
    results.push_back(placed.result());
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(launches_.fp8, 0);
  EXPECT_EQ(launches_.bf16, 1);
  // So do few queries, unless one insists.
  PlacedProblem placed(problem, device_, DType::bf16, DType::bf16);
  cuda_attention::run_dense(
      placed.context(pool_), placed.queries(), placed.memory(), problem.scale, placed.out(),
      {.dtype = AttentionDtype::fp8, .least_fp8_queries = 301, .launches = &launches_});
  EXPECT_EQ(launches_.fp8, 0);
  EXPECT_EQ(launches_.bf16, 2);
}

// Policies by name: which of them run in FP8, and how near they are to themselves in bf16.
TEST_F(Fp8Attention, PoliciesReportWhatRan) {
  KINORA_FRESH_RANDOM(random);
  struct Case {
    const char* name;
    bool fp8;
  };
  for (const Case& c : {Case{"dense", true}, Case{"a-shape:sink=64,local=300,last=0", true},
                        Case{"tri-shape:sink=50,local=200,last=0", true},
                        Case{"momo:query-stride=9,k=6,keys=4000,last=0", true},
                        Case{"vertical-slash:verticals=40,slashes=200,last=0", false}}) {
    const Problem problem =
        make(random, {.queries = 700, .earlier = 900, .heads = 4, .kv_heads = 2});
    std::vector<std::vector<float>> results;
    for (const AttentionDtype dtype : {AttentionDtype::bf16, AttentionDtype::fp8}) {
      AttentionOptions options;
      options.sparse.dense_below = 0;
      options.sparse.dtype = dtype;
      const auto policy = make_attention(c.name, options);
      PlacedProblem placed(problem, device_, DType::bf16, DType::bf16);
      policy->attend(placed.context(pool_), 0, placed.queries(), placed.memory(), problem.scale,
                     placed.out());
      results.push_back(placed.result());
      const AttentionReport* report = policy->report();
      if (dtype == AttentionDtype::bf16) {
        EXPECT_TRUE(report == nullptr || report->launches.fp8 + report->launches.bf16 == 0);
        continue;
      }
      ASSERT_NE(report, nullptr) << c.name;
      EXPECT_EQ(report->launches.fp8 > 0, c.fp8) << c.name;
      EXPECT_EQ(report->launches.bf16 > 0, !c.fp8) << c.name;
      policy->clear_report();
      EXPECT_EQ(policy->report()->launches.fp8, 0);
    }
    if (!c.fp8) {
      EXPECT_EQ(results[0], results[1]) << c.name;
      continue;
    }
    EXPECT_LE(error_of(results[1], {results[0].begin(), results[0].end()}), rounding_error)
        << c.name;
  }
}

}  // namespace
}  // namespace kinora
