// Attention of sampled queries against the definition, in double precision, on every device: the
// weights that a head needs, and the share of them that policies read.
#include "attention/search/sampled_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <string>

#include "attention/cuda/device_test_support.h"
#include "attention/planner.h"
#include "attention/policies/policy.h"

namespace kinora {
namespace {

using testing::Expected;
using testing::PlacedProblem;
using testing::Problem;

// Shares of the rows that query i of a head may read, in the order of the rows.
std::vector<double> shares_of(const Problem& problem, const Expected& dense, int64_t i,
                              int64_t head) {
  const auto& shape = problem.shape;
  const int64_t kv = head / (shape.heads / shape.kv_heads);
  std::vector<double> shares;
  for (int64_t row = 0; row < problem.rows() && testing::causal(problem, i, row); ++row) {
    double score = 0;
    for (int64_t c = 0; c < shape.head_size; ++c) {
      score += double{problem.query_data[static_cast<size_t>(
                   (i * shape.heads + head) * shape.head_size + c)]} *
               double{problem.key_data[static_cast<size_t>(
                   (row * shape.kv_heads + kv) * shape.head_size + c)]};
    }
    shares.push_back(std::exp(score * double{problem.scale} -
                              dense.log_sum[static_cast<size_t>(i * shape.heads + head)]));
  }
  return shares;
}

Expected dense_reference(const Problem& problem) {
  return testing::reference(
      problem, [&](int64_t q, int64_t, int64_t row) { return testing::causal(problem, q, row); });
}

// How many of the largest shares add up to `wanted`.
int64_t fewest(std::vector<double> shares, double wanted) {
  std::sort(shares.begin(), shares.end(), std::greater<>());
  int64_t count = 0;
  for (double held = 0; held < wanted && count < std::ssize(shares); ++count) {
    held += shares[static_cast<size_t>(count)];
  }
  return count;
}

// Scores of f32 are off by some 1e-6 of the sum of their products, which is below 100 here.
constexpr double score_error = 1e-4;

class SampledAttentionTest : public ::testing::Test {
 protected:
  ThreadPool pool_{2};
};

TEST_F(SampledAttentionTest, LooksAtEveryKey) {
  KINORA_FRESH_RANDOM(random);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const int64_t queries : {1, 63, 65, 127, 129}) {
      const int64_t kv_heads = 1 + random.below(3);
      const int64_t heads = kv_heads * (1 + random.below(9));
      Problem problem = testing::make_problem(
          random, {queries, random.below(400), heads, kv_heads, 1 + random.below(140), dtype, 0.2});
      testing::narrow_queries(problem);
      const Expected dense = dense_reference(problem);
      const double share = random.uniform(0.5, 0.99);
      const auto places = spread_places(queries, 1 + random.below(queries));
      for (const Device device : testing::all_devices(dtype)) {
        const PlacedProblem placed(problem, device, device.is_cpu() ? DType::f32 : DType::bf16);
        const SampledAttention sampled = sample_attention(
            placed.context(pool_), placed.queries(), placed.memory(), problem.scale, places, share);
        ASSERT_EQ(sampled.places, places);
        for (int64_t head = 0; head < heads; ++head) {
          int64_t least = 0, most = 0, visible = 0;
          for (size_t i = 0; i < places.size(); ++i) {
            const int64_t place = places[i] * heads + head;
            ASSERT_NEAR(
                sampled.log_sums[i * static_cast<size_t>(heads) + static_cast<size_t>(head)],
                dense.log_sum[static_cast<size_t>(place)], score_error);
            const auto shares = shares_of(problem, dense, places[i], head);
            least += fewest(shares, share - 2 * score_error);
            most += fewest(shares, share + 2 * score_error);
            visible += std::ssize(shares);
          }
          const double needed =
              sampled.needed[static_cast<size_t>(head)] * static_cast<double>(visible);
          ASSERT_GE(needed, static_cast<double>(least) - 1e-6);
          ASSERT_LE(needed, static_cast<double>(most) + 1e-6);
        }
      }
    }
  }
}

// Values that are 1 in the column of their row alone make an output say which rows it came from.
TEST_F(SampledAttentionTest, HeldMassIsThatOfTheRowsThatWereRead) {
  KINORA_FRESH_RANDOM(random);
  for (const char* policy :
       {"dense", "a-shape:sink=200,local=3000", "tri-shape:sink=200,local=3000",
        "grid:stride=9,sink=200", "grid:stride=16,local=2000", "grid:lines=v,local=4000",
        "vertical-slash:verticals=1500,slashes=900", "a-shape:sink=300,local=2500,boundary=both",
        "vertical-slash:verticals=900,slashes=900,boundary=query",
        "momo:query-stride=7,k=1,delta=0,keys=8000,window=16,sink=16,tile=16",
        "a-shape:last=0,sink=200,local=3000"}) {
    for (const int64_t queries : {64, 65, 127, 129}) {
      const int64_t kv_heads = 1 + random.below(2);
      const int64_t heads = kv_heads * (1 + random.below(4));
      Problem problem =
          testing::make_problem(random, {queries, random.below(64), heads, kv_heads, 200});
      problem.shape.dtype = DType::f32;
      testing::mix_modalities(random, problem, 2, 40);
      for (int64_t row = 0; row < problem.rows(); ++row) {
        for (int64_t kv = 0; kv < kv_heads; ++kv) {
          float* value = problem.value_data.data() + (row * kv_heads + kv) * 200;
          std::fill_n(value, 200, 0.0f);
          value[row] = 1;
        }
      }
      const Expected dense = dense_reference(problem);
      AttentionOptions options;
      options.sparse.dense_below = 0;
      options.sparse.least_queries = 2;
      options.frame_stride = 16;
      for (const Device device : testing::all_devices()) {
        SCOPED_TRACE(std::string(policy) + " on " + to_string(device));
        PlacedProblem placed(problem, device);
        const Context context = placed.context(pool_);
        const auto attention = make_attention(policy, options);
        std::vector<int32_t> places(static_cast<size_t>(queries));
        std::iota(places.begin(), places.end(), 0);
        const SampledAttention sampled = sample_attention(
            context, placed.queries(), placed.memory(), problem.scale, places, 0.95);
        const bool reads_all = attention->planner() == nullptr;
        if (reads_all) {
          run_dense(context, placed.queries(), placed.memory(), problem.scale, placed.out(),
                    {.state = placed.state()});
        } else {
          attention->planner()->keep_state(placed.state());
          attention->attend(context, 0, placed.queries(), placed.memory(), problem.scale,
                            placed.out());
        }
        const std::vector<double> held = held_mass(context, sampled, placed.state());
        const std::vector<float> out = placed.result();
        for (int64_t head = 0; head < heads; ++head) {
          double expected = 0;
          for (int64_t i = 0; i < queries; ++i) {
            const auto shares = shares_of(problem, dense, i, head);
            for (size_t row = 0; row < shares.size(); ++row) {
              const auto at = static_cast<size_t>((i * heads + head) * 200) + row;
              if (out[at] > 0) expected += shares[row];
            }
          }
          expected /= static_cast<double>(queries);
          ASSERT_NEAR(held[static_cast<size_t>(head)], expected, 2 * score_error);
          if (reads_all) {
            ASSERT_NEAR(expected, 1, 1e-9);
          }
        }
      }
    }
  }
}

TEST_F(SampledAttentionTest, PlacesAreSpread) {
  for (const int64_t count : {1, 2, 63, 64, 65, 1000, 131072}) {
    const auto places = spread_places(count, 64);
    ASSERT_EQ(std::ssize(places), std::min<int64_t>(count, 64));
    EXPECT_TRUE(std::ranges::is_sorted(places));
    EXPECT_EQ(std::set<int32_t>(places.begin(), places.end()).size(), places.size());
    EXPECT_LT(places.back(), count);
    for (size_t i = 0; i < places.size(); ++i) {
      const auto part = static_cast<int64_t>(i);
      EXPECT_GE(places[i], count * part / std::ssize(places));
      EXPECT_LT(places[i], count * (part + 1) / std::ssize(places));
    }
  }
  // Frames have powers of two, or tens, of tokens: not all may fall on the same of them.
  for (const int64_t frame : {16, 100, 256}) {
    std::set<int64_t> of_frame;
    for (const int32_t place : spread_places(131072, 64)) of_frame.insert(place % frame);
    EXPECT_GT(std::ssize(of_frame), 10) << frame;
  }
}

}  // namespace
}  // namespace kinora
