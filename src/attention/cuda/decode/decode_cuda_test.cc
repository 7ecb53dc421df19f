// Decoding on a GPU: the newest tokens of one sequence over all its rows, in a captured graph, and
// tokens that come before their rotation. decode_batch_test.cc has batches and row sets.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "attention/cuda/decode/decode_test_support.h"
#include "support/sanitized.h"

namespace kinora {
namespace {

using testing::BatchShape;
using testing::DecodeBatch;
using testing::OnGpu;
using testing::SequenceCase;

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

BatchShape shape_of(const Case& c) {
  return {.heads = c.heads,
          .kv_heads = c.kv_heads,
          .head_size = c.head_size,
          .rows_type = c.rows_type,
          .tokens = c.tokens,
          .sequences = 1,
          .most_tokens = c.tokens};
}

class CudaDecode : public OnGpu, public ::testing::WithParamInterface<Case> {
 protected:
  // Runs the same captured graph for several numbers of rows.
  void check(Random& random, const Case& c, int splits, bool tree) {
    DecodeBatch batch(shape_of(c), device_, pool_);
    const DecodeAttention work = batch.work(splits);
    const GpuStream stream(device_);
    Context streamed = batch.context();
    streamed.stream = stream.handle();
    const GpuGraph graph =
        GpuGraph::record(streamed, [&](const Context& inside) { decode_attention(inside, work); });
    std::vector<int64_t> lengths{c.rows, std::max(c.tokens, c.rows / 2), c.tokens};
    if (testing::sanitized()) lengths.resize(1);
    for (const int64_t rows : lengths) {
      batch.fill(random, {{.sets = {{.count = rows}}, .tokens = c.tokens}}, tree);
      graph.launch(streamed);
      synchronize(streamed);
      SCOPED_TRACE(std::to_string(c.tokens) + " tokens, " + std::to_string(rows) + " rows, " +
                   std::to_string(c.heads) + '/' + std::to_string(c.kv_heads) + " heads of " +
                   std::to_string(c.head_size) + ", " + std::to_string(splits) + " parts, tree " +
                   std::to_string(tree));
      batch.expect(false);
    }
  }
};

TEST_P(CudaDecode, MatchesTheDefinitionInAGraph) {
  KINORA_FRESH_RANDOM(random);
  const auto kv_heads = static_cast<int>(GetParam().kv_heads);
  for (const int splits : {1, 3, decode_splits(Context(pool_, device_), kv_heads, 25'000)}) {
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
                      Case{64, 200, 2, 1, 256, DType::f32}, Case{64, 1500, 28, 4, 128, DType::bf16},
                      Case{32, 2050, 10, 5, 128, DType::bf16}),
    label);

INSTANTIATE_TEST_SUITE_P(
    EightBits, CudaDecode,
    ::testing::Values(Case{1, 1, 7, 1, 128, DType::i8}, Case{1, 1, 4, 2, 64, DType::u8},
                      Case{1, 63, 8, 2, 64, DType::i8}, Case{1, 65, 4, 2, 128, DType::u8},
                      Case{1, 129, 28, 4, 128, DType::i8}, Case{1, 3000, 28, 4, 128, DType::u8},
                      Case{1, 3000, 28, 4, 128, DType::i8}, Case{2, 65, 14, 2, 128, DType::i8},
                      Case{3, 127, 14, 2, 64, DType::u8}, Case{4, 1025, 28, 4, 128, DType::i8},
                      Case{7, 1500, 14, 2, 128, DType::u8}, Case{16, 700, 14, 2, 128, DType::i8},
                      Case{64, 900, 7, 1, 128, DType::u8}, Case{64, 64, 4, 2, 64, DType::i8},
                      Case{64, 1500, 28, 4, 128, DType::i8}, Case{5, 700, 4, 4, 80, DType::i8},
                      Case{9, 300, 6, 2, 37, DType::u8}, Case{2, 127, 2, 1, 256, DType::u8}),
    label);

// New tokens come before their rotation: their rows are written as the rotation gives them, and the
// output is that of the turned queries over all rows.
class CudaDecodeTurning : public OnGpu, public ::testing::WithParamInterface<Case> {
 protected:
  void turn(Random& random, const BatchShape& shape, const std::vector<SequenceCase>& sequences,
            int splits, bool mass, bool normed = false) {
    DecodeBatch batch(shape, device_, pool_);
    DecodeAttention work = batch.work(splits);
    if (!decode_turns(batch.context(), work)) {
      GTEST_SKIP() << "this GPU has too little shared memory";
    }
    batch.fill(random, sequences, false);
    place_unturned(random, batch, shape);
    if (normed) undo_norms(random, shape);
    const Tensor unturned =
        testing::tensor_of(qkv_, {shape.tokens, all(shape) * shape.head_size}, shape.type, device_);
    const Shape angles{shape.tokens, shape.head_size / 2};
    const Tensor cosines = testing::tensor_of(cos_, angles, DType::f32, device_);
    const Tensor sines = testing::tensor_of(sin_, angles, DType::f32, device_);
    // What `queries` points at is not read.
    const Tensor poison = testing::poisoned_tensor(batch.out_shape(), shape.type, device_);
    work.queries = poison;
    work.unturned = {unturned, cosines, sines};
    Tensor norms[2];
    if (normed) {
      for (size_t i = 0; i < 2; ++i) {
        norms[i] = testing::tensor_of(norms_[i], Shape{shape.head_size}, DType::f32, device_);
      }
      work.unturned.norms = {norms[0], norms[1], epsilon};
    }
    // The mass of rows needs turned queries: they are kept when asked for.
    work.unturned.keep_queries = mass;
    decode_attention(batch.context(), work);
    if (mass) add_decode_mass(batch.context(), {&work, 1});
    synchronize(batch.context());
    SCOPED_TRACE(std::to_string(splits) + " parts");
    batch.expect(mass);
    for (DecodeBatch::Sequence& sequence : batch.sequences()) {
      DecodeBatch::Set& own = sequence.sets[static_cast<size_t>(sequence.shape.own)];
      compare(own.device_keys, own.keys, shape.head_size / 2);
      compare(own.device_values, own.values, 0);
    }
  }

  // The last is what the device gets most often: heads need not have equally many parts.
  std::vector<int> split_choices() const {
    return {1, 5, 33,
            decode_splits(Context(pool_, device_), static_cast<int>(GetParam().kv_heads), 25'000)};
  }

 private:
  static int64_t all(const BatchShape& shape) { return shape.heads + 2 * shape.kv_heads; }

  // Turning there and back in f32, and norming, moves a number by its partner's rounding; next to a
  // partner of ten thousand times its size that shows even in bf16. Where nothing is turned `half`
  // is 0.
  static void compare(const Tensor& rows, const std::vector<float>& wanted, int64_t half) {
    constexpr float f32_rounding = 2e-6f;
    const std::vector<float> there = testing::floats_of(rows);
    size_t different = 0;
    for (size_t i = 0; i < there.size(); ++i) {
      const size_t partner = i ^ static_cast<size_t>(half);
      const float slack = half > 0 ? f32_rounding * std::abs(wanted[partner]) : 0;
      different += !(std::abs(there[i] - wanted[i]) <= slack);
    }
    EXPECT_EQ(different, 0u);
  }

  // The new rows hold nothing yet; qkv_ holds their tokens turned back in f32, so that the rotation
  // ends at the same bf16 numbers.
  void place_unturned(Random& random, DecodeBatch& batch, const BatchShape& shape) {
    const int64_t half = shape.head_size / 2;
    cos_.clear();
    sin_.clear();
    for (int64_t i = 0; i < shape.tokens * half; ++i) {
      const double angle = random.uniform() * 6.0;
      cos_.push_back(static_cast<float>(std::cos(angle)));
      sin_.push_back(static_cast<float>(std::sin(angle)));
    }
    qkv_.assign(static_cast<size_t>(shape.tokens * all(shape) * shape.head_size), 0.0f);
    for (DecodeBatch::Sequence& sequence : batch.sequences()) {
      DecodeBatch::Set& own = sequence.sets[static_cast<size_t>(sequence.shape.own)];
      const int64_t old_rows = own.shape.count - sequence.shape.tokens;
      for (int64_t token = 0; token < sequence.shape.tokens; ++token) {
        const int64_t whole = sequence.first_token + token, row = old_rows + token;
        for (int64_t head = 0; head < all(shape); ++head) {
          const int64_t kv = head - shape.heads, value = kv - shape.kv_heads;
          const float* from =
              kv < 0 ? &batch.query_data()[static_cast<size_t>((whole * shape.heads + head) *
                                                               shape.head_size)]
              : value < 0
                  ? &own.keys[static_cast<size_t>((row * shape.kv_heads + kv) * shape.head_size)]
                  : &own.values[static_cast<size_t>((row * shape.kv_heads + value) *
                                                    shape.head_size)];
          float* to = &qkv_[static_cast<size_t>((whole * all(shape) + head) * shape.head_size)];
          for (int64_t i = 0; i < half; ++i) {
            const auto angle = static_cast<size_t>(whole * half + i);
            const double c = value < 0 ? cos_[angle] : 1, s = value < 0 ? sin_[angle] : 0;
            const double length = c * c + s * s;
            to[i] = static_cast<float>((from[i] * c + from[i + half] * s) / length);
            to[i + half] = static_cast<float>((from[i + half] * c - from[i] * s) / length);
          }
        }
      }
      const Tensor nothing = testing::poisoned_tensor(
          {sequence.shape.tokens, shape.kv_heads, shape.head_size}, DType::bf16, device_);
      for (Tensor* rows : {&own.device_keys, &own.device_values}) {
        copy_bytes(rows->view().raw() + old_rows * shape.kv_heads * shape.head_size * 2, device_,
                   nothing.view().raw(), device_, static_cast<size_t>(nothing.bytes()));
      }
    }
  }

  // Heads h of queries and keys become x with weight · x / √(mean x² + epsilon) = h. That is
  // x = c · h / weight with c² = epsilon / (1 − mean (h / weight)²), for weights that are large
  // enough.
  void undo_norms(Random& random, const BatchShape& shape) {
    const auto size = static_cast<size_t>(shape.head_size);
    const int64_t with_keys = shape.heads + shape.kv_heads;
    for (size_t part = 0; part < 2; ++part) {
      const auto of_part = [&](int64_t head) {
        return part == 0 ? head < shape.heads : head >= shape.heads && head < with_keys;
      };
      const auto each_head = [&](const auto& visit) {
        for (int64_t i = 0; i < shape.tokens * all(shape); ++i) {
          if (of_part(i % all(shape))) visit(&qkv_[static_cast<size_t>(i) * size]);
        }
      };
      double most = 0;  // mean square of a head
      each_head([&](const float* head) {
        double squares = 0;
        for (size_t c = 0; c < size; ++c) squares += double{head[c]} * head[c];
        most = std::max(most, squares / static_cast<double>(size));
      });
      norms_[part].clear();
      for (size_t c = 0; c < size; ++c) {
        const double weight = std::sqrt(most) * random.uniform(1.1, 3.0);
        norms_[part].push_back(static_cast<float>(random.below(2) == 0 ? weight : -weight));
      }
      each_head([&](float* head) {
        double squares = 0;
        for (size_t c = 0; c < size; ++c) {
          squares += std::pow(double{head[c]} / norms_[part][c], 2);
        }
        const double factor = std::sqrt(epsilon / (1 - squares / static_cast<double>(size)));
        for (size_t c = 0; c < size; ++c) {
          head[c] = static_cast<float>(factor * head[c] / norms_[part][c]);
        }
      });
    }
  }

  static constexpr float epsilon = 0.25f;
  std::vector<float> qkv_, cos_, sin_;
  std::vector<float> norms_[2];  // weights of the norms of queries and of keys
};

TEST_P(CudaDecodeTurning, WritesTheNewRows) {
  KINORA_FRESH_RANDOM(random);
  const Case& c = GetParam();
  for (const int splits : split_choices()) {
    BatchShape shape = shape_of(c);
    shape.type = DType::f32;
    for (const bool mass : {false, true}) {
      for (const bool normed : {false, true}) {
        turn(random, shape, {{.sets = {{.count = c.rows}}, .tokens = c.tokens}}, splits, mass,
             normed);
      }
    }
  }
}

TEST_P(CudaDecodeTurning, WritesThoseOfEverySequence) {
  KINORA_FRESH_RANDOM(random);
  const Case& c = GetParam();
  BatchShape shape = shape_of(c);
  shape.sequences = 6;
  shape.tokens = 5 * c.tokens;
  shape.type = DType::f32;
  const SequenceCase alone{.sets = {{.count = c.rows}}, .tokens = c.tokens};
  const SequenceCase one{.sets = {{.count = c.tokens + 40}}};
  const SequenceCase several{
      .sets = {{.count = 33}, {}, {.count = c.rows + 7}, {.count = 90, .listed = true}},
      .tokens = c.tokens,
      .own = 2};
  for (const int splits : split_choices()) {
    for (const bool mass : {false, true}) {
      for (const bool normed : {false, true}) {
        turn(random, shape, {several, one, alone, several}, splits, mass, normed);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, CudaDecodeTurning,
    ::testing::Values(Case{1, 1, 7, 1, 128, DType::bf16}, Case{1, 2305, 28, 4, 128, DType::bf16},
                      Case{1, 515, 16, 2, 128, DType::bf16}, Case{4, 259, 4, 2, 64, DType::bf16},
                      Case{8, 8, 2, 2, 64, DType::bf16}, Case{2, 33, 8, 2, 128, DType::bf16},
                      Case{1, 3001, 32, 8, 128, DType::bf16},
                      Case{1, 900, 40, 20, 64, DType::bf16}),
    label);

}  // namespace
}  // namespace kinora
