// Decoding on a GPU: a few newest tokens over all rows, in a captured graph.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "attention/cuda/decode_cuda.h"
#include "attention/cuda/device_test_support.h"
#include "base/gpu.h"
#include "support/sanitized.h"

namespace kinora {
namespace {

using testing::allowed;
using testing::error_of;
using testing::Expected;
using testing::make_problem;
using testing::OnGpu;
using testing::PlacedProblem;
using testing::Problem;
using testing::ProblemShape;

struct Case {
  int64_t tokens, rows, heads, kv_heads, head_size;
  DType rows_type;
};

std::string label(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return std::to_string(c.tokens) + "_of_" + std::to_string(c.rows) + "_heads_" +
         std::to_string(c.heads) + "_" + std::to_string(c.kv_heads) + "_of_" +
         std::to_string(c.head_size) + "_" + std::string(dtype_name(c.rows_type));
}

class CudaDecode : public OnGpu, public ::testing::WithParamInterface<Case> {
 protected:
  // Runs the same captured graph for several numbers of rows.
  void check(Random& random, const Case& c, int splits, bool tree) {
    ProblemShape shape{.queries = c.tokens,
                       .earlier = c.rows - c.tokens,
                       .heads = c.heads,
                       .kv_heads = c.kv_heads,
                       .head_size = c.head_size,
                       .dtype = c.rows_type};
    Problem problem = make_problem(random, shape);
    const bool narrow = c.rows_type == DType::bf16;
    if (narrow) testing::narrow_queries(problem);
    std::vector<uint64_t> masks(static_cast<size_t>(c.tokens));
    for (size_t i = 0; i < masks.size(); ++i) {
      masks[i] = (random.next() & ((uint64_t{1} << i) - 1)) | uint64_t{1} << i;
    }
    const DType type = narrow ? DType::bf16 : DType::f32;
    PlacedProblem placed(problem, device_, type, type);
    const Context context = placed.context(pool_);
    const Shape words{static_cast<int64_t>(sizeof(LayerRows))};
    Tensor layer(DType::u8, words, device_);
    Tensor mask(DType::u8, {c.tokens * 8}, device_);
    copy_bytes(mask.view().raw(), device_, masks.data(), Device::cpu(), masks.size() * 8);
    const size_t bytes = decode_scratch_bytes(c.tokens, c.heads, c.head_size, splits);
    Tensor scratch = Tensor::zeros(DType::u8, {static_cast<int64_t>(bytes)}, device_);
    DecodeAttention work;
    work.queries = placed.queries().queries;
    work.layer = reinterpret_cast<const LayerRows*>(layer.view().raw());
    work.row_type = c.rows_type;
    work.kv_heads = static_cast<int>(c.kv_heads);
    work.splits = splits;
    work.scratch = scratch.view().raw();
    work.scale = problem.scale;
    work.out = placed.out();
    if (tree) work.tree_mask = reinterpret_cast<const uint64_t*>(mask.view().raw());
    const GpuStream stream(device_);
    Context streamed = context;
    streamed.stream = stream.handle();
    const GpuGraph graph =
        GpuGraph::record(streamed, [&](const Context& inside) { decode_attention(inside, work); });
    std::vector<int64_t> lengths{c.rows, std::max(c.tokens, c.rows / 2), c.tokens};
    if (testing::sanitized()) lengths.resize(1);
    for (const int64_t rows : lengths) {
      const LayerRows told{placed.memory().keys.raw(), placed.memory().values.raw(), rows};
      copy_bytes(layer.view().raw(), device_, &told, Device::cpu(), sizeof(told));
      const Tensor nan = testing::poisoned_tensor(problem.out_shape(), type, device_);
      copy_bytes(placed.out().raw(), device_, nan.view().raw(), device_,
                 static_cast<size_t>(nan.bytes()));
      graph.launch(streamed);
      synchronize(streamed);
      const Expected expected = testing::reference(problem, [&](int64_t q, int64_t, int64_t row) {
        const int64_t fresh = row - (rows - c.tokens);
        if (row >= rows) return false;
        if (fresh < 0) return true;
        return tree ? (masks[static_cast<size_t>(q)] >> fresh & 1) != 0 : fresh <= q;
      });
      EXPECT_LE(error_of(placed.result(), expected.out), narrow ? allowed(expected) : 3e-6)
          << c.tokens << " tokens, " << rows << " rows, " << c.heads << '/' << c.kv_heads
          << " heads of " << c.head_size << ", " << splits << " parts, tree " << tree;
    }
  }

  void turn(Random& random, const Case& c, int splits) {
    const ProblemShape shape{.queries = c.tokens,
                             .earlier = c.rows - c.tokens,
                             .heads = c.heads,
                             .kv_heads = c.kv_heads,
                             .head_size = c.head_size,
                             .dtype = c.rows_type};
    Problem problem = make_problem(random, shape);
    testing::narrow_queries(problem);
    // Turned back in f32, so that the rotation ends at the same bf16 numbers.
    const int64_t half = c.head_size / 2, all = c.heads + 2 * c.kv_heads;
    std::vector<float> cos, sin, qkv(static_cast<size_t>(c.tokens * all * c.head_size));
    for (int64_t i = 0; i < c.tokens * half; ++i) {
      const double angle = random.uniform() * 6.0;
      cos.push_back(static_cast<float>(std::cos(angle)));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
    for (int64_t token = 0; token < c.tokens; ++token) {
      const int64_t row = c.rows - c.tokens + token;
      for (int64_t head = 0; head < all; ++head) {
        const float* from =
            head < c.heads ? &problem.query_data[(token * c.heads + head) * c.head_size]
            : head < c.heads + c.kv_heads
                ? &problem.key_data[(row * c.kv_heads + head - c.heads) * c.head_size]
                : &problem
                       .value_data[(row * c.kv_heads + head - c.heads - c.kv_heads) * c.head_size];
        float* to = &qkv[static_cast<size_t>((token * all + head) * c.head_size)];
        for (int64_t i = 0; i < half; ++i) {
          const bool turns = head < c.heads + c.kv_heads;
          const double cosine = turns ? cos[static_cast<size_t>(token * half + i)] : 1;
          const double sine = turns ? sin[static_cast<size_t>(token * half + i)] : 0;
          const double length = cosine * cosine + sine * sine;
          to[i] = static_cast<float>((from[i] * cosine + from[i + half] * sine) / length);
          to[i + half] = static_cast<float>((from[i + half] * cosine - from[i] * sine) / length);
        }
      }
    }
    PlacedProblem placed(problem, device_, DType::f32, DType::f32);
    const Tensor unturned =
        testing::tensor_of(qkv, {c.tokens, all * c.head_size}, DType::f32, device_);
    const Tensor cosines = testing::tensor_of(cos, {c.tokens, half}, DType::f32, device_);
    const Tensor sines = testing::tensor_of(sin, {c.tokens, half}, DType::f32, device_);
    // The new rows hold nothing yet, and what `queries` points at is not read.
    const Shape new_rows{c.tokens, c.kv_heads, c.head_size};
    const Tensor nothing = testing::poisoned_tensor(new_rows, DType::bf16, device_);
    const auto bytes = static_cast<size_t>(nothing.bytes());
    const int64_t old_bytes = (c.rows - c.tokens) * c.kv_heads * c.head_size * 2;
    auto* keys = const_cast<std::byte*>(placed.memory().keys.raw()) + old_bytes;
    auto* values = const_cast<std::byte*>(placed.memory().values.raw()) + old_bytes;
    copy_bytes(keys, device_, nothing.view().raw(), device_, bytes);
    copy_bytes(values, device_, nothing.view().raw(), device_, bytes);
    const Tensor poison = testing::poisoned_tensor(problem.out_shape(), DType::f32, device_);

    const LayerRows told{placed.memory().keys.raw(), placed.memory().values.raw(), c.rows};
    Tensor layer(DType::u8, {static_cast<int64_t>(sizeof(told))}, device_);
    copy_bytes(layer.view().raw(), device_, &told, Device::cpu(), sizeof(told));
    const size_t room = decode_scratch_bytes(c.tokens, c.heads, c.head_size, splits);
    Tensor scratch = Tensor::zeros(DType::u8, {static_cast<int64_t>(room)}, device_);
    DecodeAttention work;
    work.queries = poison;
    work.layer = reinterpret_cast<const LayerRows*>(layer.view().raw());
    work.kv_heads = static_cast<int>(c.kv_heads);
    work.splits = splits;
    work.scratch = scratch.view().raw();
    work.scale = problem.scale;
    work.out = placed.out();
    const Context context = placed.context(pool_);
    if (!decode_turns(context, work)) GTEST_SKIP() << "this GPU has too little shared memory";
    work.unturned = {unturned, cosines, sines};
    decode_attention(context, work);
    synchronize(context);

    const Expected expected = testing::reference(
        problem, [&](int64_t q, int64_t, int64_t row) { return row <= c.rows - c.tokens + q; });
    SCOPED_TRACE(std::to_string(c.tokens) + " tokens, " + std::to_string(c.rows) + " rows, " +
                 std::to_string(splits) + " parts");
    EXPECT_LE(error_of(placed.result(), expected.out), allowed(expected));
    const auto last = static_cast<size_t>((c.rows - c.tokens) * c.kv_heads * c.head_size);
    // Turning there and back in f32 moves a number by its partner's rounding; beside a partner of
    // ten thousand times its size that shows even in bf16.
    constexpr float f32_rounding = 1e-6f;
    const auto compare = [&](ConstTensorView rows, const std::vector<bf16>& wanted, bool turned) {
      std::vector<bf16> there(wanted.size());
      copy_bytes(there.data(), Device::cpu(), rows.raw(), device_, there.size() * sizeof(bf16));
      size_t different = 0;
      for (size_t i = last; i < there.size(); ++i) {
        const size_t partner = i ^ static_cast<size_t>(half);
        const float slack = turned ? f32_rounding * std::abs(wanted[partner].to_float()) : 0;
        different += !(std::abs(there[i].to_float() - wanted[i].to_float()) <= slack);
      }
      EXPECT_EQ(different, 0u);
    };
    compare(placed.memory().keys, problem.key_narrow, true);
    compare(placed.memory().values, problem.value_narrow, false);
  }
};

TEST_P(CudaDecode, MatchesTheDefinitionInAGraph) {
  KINORA_FRESH_RANDOM(random);
  for (const int splits : {1, 3, decode_splits(Context(pool_, device_), 4, 25'000)}) {
    if (splits == 3 && testing::sanitized()) continue;
    for (const bool tree : {false, true}) check(random, GetParam(), splits, tree);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, CudaDecode,
    ::testing::Values(Case{1, 1, 4, 2, 128, DType::bf16}, Case{1, 129, 7, 1, 128, DType::bf16},
                      Case{1, 3000, 28, 4, 128, DType::bf16},
                      Case{2, 1025, 28, 4, 128, DType::bf16}, Case{3, 127, 14, 2, 64, DType::bf16},
                      Case{7, 1500, 14, 2, 128, DType::bf16},
                      Case{16, 700, 14, 2, 128, DType::bf16}, Case{64, 900, 7, 1, 128, DType::bf16},
                      Case{64, 64, 4, 2, 64, DType::bf16}, Case{5, 700, 4, 4, 80, DType::bf16},
                      Case{1, 777, 4, 2, 128, DType::f32}, Case{9, 300, 6, 2, 37, DType::f32},
                      Case{64, 200, 2, 1, 256, DType::f32}),
    label);

// New tokens come before their rotation: their rows are written as the rotation gives them, and the
// output is that of the turned queries over all rows.
using CudaDecodeTurning = CudaDecode;

TEST_P(CudaDecodeTurning, WritesTheNewRows) {
  KINORA_FRESH_RANDOM(random);
  for (const int splits : {1, 3, 33}) turn(random, GetParam(), splits);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, CudaDecodeTurning,
    ::testing::Values(Case{1, 1, 7, 1, 128, DType::bf16}, Case{1, 2305, 28, 4, 128, DType::bf16},
                      Case{1, 515, 16, 2, 128, DType::bf16}, Case{4, 259, 4, 2, 64, DType::bf16},
                      Case{8, 8, 2, 2, 64, DType::bf16}, Case{2, 33, 8, 2, 128, DType::bf16}),
    label);

}  // namespace
}  // namespace kinora
