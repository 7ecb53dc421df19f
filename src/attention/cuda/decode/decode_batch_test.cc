// Decoding several sequences at once on a GPU: ragged lengths, row sets with lists and weights, who
// is served, trees, the mass of rows, and graphs replayed for other sequences.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "attention/cuda/decode/decode_test_support.h"
#include "attention/cuda/device_rows.h"
#include "base/error.h"
#include "support/sanitized.h"

namespace kinora {
namespace {

using testing::BatchShape;
using testing::DecodeBatch;
using testing::OnGpu;
using testing::SequenceCase;
using testing::SetCase;

// Batches of this many tokens for each of some sequences.
struct Case {
  int64_t sequences, tokens, heads, kv_heads, head_size;
  DType rows_type;
  int64_t most_rows;
};

std::string label(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return std::to_string(c.sequences) + "_times_" + std::to_string(c.tokens) + "_heads_" +
         std::to_string(c.heads) + "_" + std::to_string(c.kv_heads) + "_of_" +
         std::to_string(c.head_size) + "_" + std::string(dtype_name(c.rows_type)) + "_rows_" +
         std::to_string(c.most_rows);
}

BatchShape shape_of(const Case& c) {
  return {.heads = c.heads,
          .kv_heads = c.kv_heads,
          .head_size = c.head_size,
          .rows_type = c.rows_type,
          .tokens = c.sequences * c.tokens,
          .sequences = c.sequences,
          .most_tokens = c.tokens};
}

// 1 … `most`, short ones as often as long ones, and around multiples of a share.
int64_t random_count(Random& random, int64_t most) {
  const auto count = static_cast<int64_t>(std::pow(static_cast<double>(most), random.uniform()));
  if (random.below(3) > 0) return std::clamp<int64_t>(count, 1, most);
  return std::clamp<int64_t>(count / 32 * 32 + random.below(3) - 1, 1, most);
}

// One set, as most sequences have.
SequenceCase plain_sequence(Random& random, int64_t tokens, int64_t most_rows) {
  return {.sets = {{.count = tokens + random_count(random, most_rows)}}, .tokens = tokens};
}

// One to four sets of all kinds, some of them empty.
SequenceCase mixed_sequence(Random& random, int64_t tokens, int64_t most_rows) {
  SequenceCase sequence{.sets = {}, .tokens = tokens};
  const int64_t sets = 1 + random.below(most_row_sets);
  sequence.own = static_cast<int>(random.below(sets));
  if (random.below(2) == 0) sequence.mass_heads = random.next();
  if (random.below(2) == 0) sequence.mass_from = static_cast<int32_t>(random.below(tokens));
  sequence.mass_apart = random.below(2) == 0;
  for (int64_t i = 0; i < sets; ++i) {
    SetCase set;
    set.weighted = random.below(2) == 0;
    set.scattered = random.below(2) == 0;
    if (i == sequence.own) {
      set.count = tokens + (random.below(4) == 0 ? 0 : random_count(random, most_rows));
    } else {
      set.count = random.below(5) == 0 ? 0 : random_count(random, most_rows);
      set.listed = random.below(2) == 0;
      if (random.below(3) == 0) set.serves = random.next();
      if (random.below(9) == 0) set.serves = 0;
    }
    sequence.sets.push_back(set);
  }
  return sequence;
}

class CudaDecodeBatch : public OnGpu, public ::testing::WithParamInterface<Case> {
 protected:
  std::vector<int> split_choices() {
    const int many = decode_splits(Context(pool_, device_), 4, 100'000);
    return testing::sanitized() ? std::vector<int>{many} : std::vector<int>{1, 5, many};
  }

  template <class Make>
  void check(Random& random, const Make& make, bool tree, bool mass) {
    const Case& c = GetParam();
    for (const int splits : split_choices()) {
      DecodeBatch batch(shape_of(c), device_, pool_);
      std::vector<SequenceCase> sequences;
      for (int64_t i = 0; i < c.sequences; ++i) sequences.push_back(make());
      batch.fill(random, sequences, tree);
      DecodeAttention work = batch.work(splits);
      decode_attention(batch.context(), work);
      if (mass) add_decode_mass(batch.context(), {&work, 1});
      synchronize(batch.context());
      SCOPED_TRACE(std::to_string(splits) + " parts, tree " + std::to_string(tree));
      batch.expect(mass);
    }
  }
};

TEST_P(CudaDecodeBatch, RaggedSequencesMatchTheDefinition) {
  KINORA_FRESH_RANDOM(random);
  const Case& c = GetParam();
  check(
      random, [&] { return plain_sequence(random, c.tokens, c.most_rows); }, false, false);
}

TEST_P(CudaDecodeBatch, RowSetsOfAllKindsMatchTheDefinition) {
  KINORA_FRESH_RANDOM(random);
  const Case& c = GetParam();
  check(
      random, [&] { return mixed_sequence(random, 1 + random.below(c.tokens), c.most_rows); }, true,
      true);
}

// Conversations about one video: neighbours whose first set is the same, some of which read a
// little further into it than others.
TEST_P(CudaDecodeBatch, RowsThatNeighboursShareAreReadOnce) {
  KINORA_FRESH_RANDOM(random);
  const Case& c = GetParam();
  for (const int splits : split_choices()) {
    DecodeBatch batch(shape_of(c), device_, pool_);
    std::vector<SequenceCase> cases;
    for (int64_t i = 0; i < c.sequences; ++i) {
      SequenceCase one{.sets = {{.count = 0}, {.count = 0}}, .tokens = 1 + random.below(c.tokens)};
      one.own = 1;
      one.sets[0].count = 600 + random_count(random, c.most_rows);
      one.sets[1].count = one.tokens + random_count(random, 40);
      cases.push_back(one);
    }
    batch.fill(random, cases, true);
    auto& sequences = batch.sequences();
    for (size_t i = 1; i < sequences.size(); ++i) {
      if (random.below(4) == 0) continue;  // another video
      const auto& before = sequences[i - 1].sets[0];
      auto& own = sequences[i].sets[0];
      const int64_t count = before.shape.count - (random.below(3) == 0 ? random.below(50) : 0);
      own = before;
      own.shape.count = count;
      own.rows.resize(static_cast<size_t>(count));
      own.weights.resize(static_cast<size_t>(count));
      own.mass_places.resize(static_cast<size_t>(count));
    }
    batch.send();

    DecodeAttention work = batch.work(splits);
    if (c.rows_type != DType::bf16 || (c.head_size != 64 && c.head_size != 128)) {
      EXPECT_FALSE(decode_shares(batch.context(), work));
      return;
    }
    ASSERT_TRUE(decode_shares(batch.context(), work));
    std::vector<DeviceSequence> whole(static_cast<size_t>(c.sequences));
    const size_t bytes = whole.size() * sizeof(DeviceSequence);
    copy_bytes(whole.data(), Device::cpu(), work.sequences, device_, bytes);
    const std::vector<std::vector<DeviceSequence>> layers{whole};
    const std::vector<SharedRun> runs = shared_runs(layers);
    const int64_t row_bytes = c.kv_heads * c.head_size * 2;
    const SharedTables tables = share_rows(whole, runs, row_bytes);
    const auto sent = [&](const std::vector<DeviceSequence>& table) {
      Tensor there(DType::u8, {static_cast<int64_t>((table.size() + 1) * sizeof(DeviceSequence))},
                   device_);
      copy_bytes(there.view().raw(), device_, table.data(), Device::cpu(),
                 table.size() * sizeof(DeviceSequence));
      return there;
    };
    const Tensor rest = sent(tables.rest), groups = sent(tables.groups);
    const DecodeAttention for_mass = work;
    work.sequences = reinterpret_cast<const DeviceSequence*>(rest.view().raw());
    work.shared.groups = reinterpret_cast<const DeviceSequence*>(groups.view().raw());
    work.shared.count = static_cast<int>(tables.groups.size());
    for (const DeviceSequence& group : tables.groups) {
      work.shared.most_tokens_per_group =
          std::max(work.shared.most_tokens_per_group, static_cast<int>(group.tokens));
    }
    Tensor scratch = Tensor::zeros(
        DType::u8, {static_cast<int64_t>(decode_scratch_bytes(batch.context(), work))}, device_);
    work.scratch = scratch.view().raw();
    SCOPED_TRACE(std::to_string(splits) + " parts, " + std::to_string(runs.size()) + " groups");
    decode_attention(batch.context(), work);
    add_decode_mass(batch.context(), {&for_mass, 1});
    synchronize(batch.context());
    batch.expect(true);
    // Again, in the same scratch memory.
    batch.send();
    decode_attention(batch.context(), work);
    synchronize(batch.context());
    batch.expect(false);
  }
}

TEST_P(CudaDecodeBatch, OneGraphServesChangingSequences) {
  KINORA_FRESH_RANDOM(random);
  const Case& c = GetParam();
  DecodeBatch batch(shape_of(c), device_, pool_);
  const int splits = decode_splits(batch.context(), static_cast<int>(c.kv_heads), 10'000);
  DecodeAttention work = batch.work(splits);
  const GpuStream stream(device_);
  Context streamed = batch.context();
  streamed.stream = stream.handle();
  const GpuGraph graph = GpuGraph::record(streamed, [&](const Context& inside) {
    decode_attention(inside, work);
    add_decode_mass(inside, {&work, 1});
  });
  for (int round = 0; round < (testing::sanitized() ? 1 : 4); ++round) {
    // Some are not there; one at least is, with all the tokens a sequence may have.
    std::vector<SequenceCase> sequences{plain_sequence(random, c.tokens, c.most_rows)};
    for (int64_t i = random.below(c.sequences); i > 0; --i) {
      const int64_t tokens = 1 + random.below(c.tokens);
      sequences.push_back(random.below(2) == 0 ? plain_sequence(random, tokens, c.most_rows)
                                               : mixed_sequence(random, tokens, c.most_rows));
    }
    batch.fill(random, sequences, round % 2 == 1);
    graph.launch(streamed);
    synchronize(streamed);
    SCOPED_TRACE("round " + std::to_string(round) + ", " + std::to_string(sequences.size()) +
                 " sequences");
    batch.expect(true);
  }
  // Nobody is there: nothing is written.
  batch.fill(random, {}, false);
  graph.launch(streamed);
  synchronize(streamed);
  batch.expect(true);
}

// A list of all rows in order, weights of 1 and a set that serves all who are there: another way
// through the kernels to the same bits.
TEST_P(CudaDecodeBatch, ListsAndWeightsThatSayNothingChangeNoBit) {
  KINORA_FRESH_RANDOM(random);
  const Case& c = GetParam();
  DecodeBatch batch(shape_of(c), device_, pool_);
  std::vector<SequenceCase> sequences;
  for (int64_t i = 0; i < c.sequences; ++i) {
    const int64_t rows = random_count(random, c.most_rows);
    sequences.push_back(
        {.sets = {{.count = rows}, {.count = c.tokens}}, .tokens = c.tokens, .own = 1});
  }
  batch.fill(random, sequences, true);
  const DecodeAttention work = batch.work(5);
  decode_attention(batch.context(), work);
  synchronize(batch.context());
  batch.expect(false);
  const std::vector<float> plain = batch.result();
  for (DecodeBatch::Sequence& sequence : batch.sequences()) {
    DecodeBatch::Set& set = sequence.sets[0];
    set.shape.listed = set.shape.weighted = true;
    if (c.tokens < 64) set.shape.serves = ~(uint64_t{1} << 63);
    set.device_list = Tensor(DType::u8, {set.shape.count * 4}, device_);
    copy_bytes(set.device_list.view().raw(), device_, set.rows.data(), Device::cpu(),
               set.rows.size() * 4);
    set.device_weights = testing::tensor_of(set.weights, {set.shape.count}, DType::f32, device_);
  }
  batch.send();
  decode_attention(batch.context(), work);
  synchronize(batch.context());
  const std::vector<float> listed = batch.result();
  EXPECT_EQ(std::memcmp(plain.data(), listed.data(), plain.size() * sizeof(float)), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, CudaDecodeBatch,
    ::testing::Values(
        Case{8, 1, 28, 4, 128, DType::bf16, 3000}, Case{64, 1, 7, 1, 128, DType::bf16, 300},
        Case{9, 2, 4, 2, 64, DType::bf16, 500}, Case{5, 2, 14, 2, 128, DType::bf16, 700},
        Case{3, 5, 6, 2, 64, DType::bf16, 400}, Case{7, 4, 14, 2, 128, DType::bf16, 900},
        Case{4, 8, 14, 2, 128, DType::bf16, 900}, Case{4, 16, 14, 2, 128, DType::bf16, 2000},
        Case{3, 21, 28, 4, 128, DType::bf16, 700}, Case{1, 64, 7, 1, 128, DType::bf16, 3000},
        Case{6, 10, 7, 1, 128, DType::bf16, 1500}, Case{3, 20, 14, 2, 64, DType::bf16, 500},
        Case{3, 21, 16, 1, 128, DType::bf16, 900}, Case{2, 32, 28, 4, 128, DType::bf16, 700},
        Case{5, 3, 4, 4, 80, DType::bf16, 200}, Case{6, 2, 6, 2, 37, DType::f32, 200},
        Case{1, 64, 4, 2, 128, DType::f32, 150}),
    label);

INSTANTIATE_TEST_SUITE_P(EightBits, CudaDecodeBatch,
                         ::testing::Values(Case{8, 1, 28, 4, 128, DType::i8, 3000},
                                           Case{64, 1, 7, 1, 128, DType::u8, 300},
                                           Case{9, 2, 4, 2, 64, DType::i8, 500},
                                           Case{5, 2, 14, 2, 128, DType::u8, 700},
                                           Case{7, 4, 14, 2, 128, DType::i8, 900},
                                           Case{4, 8, 14, 2, 128, DType::u8, 900},
                                           Case{3, 21, 28, 4, 128, DType::i8, 700},
                                           Case{1, 64, 7, 1, 128, DType::u8, 3000},
                                           Case{3, 20, 14, 2, 64, DType::u8, 500},
                                           Case{5, 3, 4, 4, 80, DType::i8, 200},
                                           Case{6, 2, 6, 2, 37, DType::u8, 200}),
                         label);

using CudaDecodeStretches = OnGpu;

// A part that reaches over several short sequences before and after a long one, as tiles of up to
// 64 and of more pairs.
TEST_F(CudaDecodeStretches, ReachOverShortAndLongSequences) {
  KINORA_FRESH_RANDOM(random);
  for (const auto& [type, splits] :
       {std::pair{DType::bf16, 1}, std::pair{DType::bf16, 2}, std::pair{DType::bf16, 4},
        std::pair{DType::i8, 1}, std::pair{DType::u8, 4}}) {
    const BatchShape shape{.heads = 14,
                           .kv_heads = 2,
                           .head_size = 128,
                           .rows_type = type,
                           .tokens = 60,
                           .sequences = 9,
                           .most_tokens = 10};
    for (const int64_t tokens : {1, 3, 10}) {
      DecodeBatch batch(shape, device_, pool_);
      std::vector<SequenceCase> sequences;
      for (const int64_t rows : {20, 33, 40, 60, 25, 700, 300, 330, 31}) {
        if (static_cast<int64_t>(sequences.size() + 1) * tokens > shape.tokens) break;
        sequences.push_back({.sets = {{.count = rows + tokens}}, .tokens = tokens});
      }
      batch.fill(random, sequences, true);
      decode_attention(batch.context(), batch.work(splits));
      synchronize(batch.context());
      SCOPED_TRACE(std::to_string(splits) + " parts, " + std::to_string(tokens) + " tokens");
      batch.expect(false);
    }
  }
}

using CudaDecodeChecks = OnGpu;

TEST_F(CudaDecodeChecks, RefusesWhatItCannotDo) {
  const BatchShape shape{.heads = 4, .kv_heads = 2, .tokens = 4, .sequences = 2, .most_tokens = 2};
  DecodeBatch batch(shape, device_, pool_);
  const auto refused = [&](const auto& spoil) {
    DecodeAttention work = batch.work(3);
    spoil(work);
    EXPECT_THROW(decode_attention(batch.context(), work), Error);
  };
  refused([](DecodeAttention& work) { work.sequences = nullptr; });
  refused([](DecodeAttention& work) { work.masks = nullptr; });
  refused([](DecodeAttention& work) { work.sequence_count = 65; });
  refused([](DecodeAttention& work) { work.most_tokens_per_sequence = 5; });
  refused([](DecodeAttention& work) { work.splits = 513; });
  refused([](DecodeAttention& work) { work.row_type = DType::f16; });
  DecodeAttention packed = batch.work(3);
  packed.row_type = DType::i8;
  EXPECT_FALSE(decode_turns(batch.context(), packed));
  EXPECT_FALSE(decode_shares(batch.context(), packed));
  DecodeAttention stateless = batch.work(3);
  stateless.state_sum = nullptr;
  EXPECT_THROW(add_decode_mass(batch.context(), {&stateless, 1}), Error);
}

TEST_F(CudaDecodeChecks, SplitsFillTheDeviceWhateverTheSequences) {
  const Context context(pool_, device_);
  EXPECT_EQ(decode_splits(context, 4, 1), 1);
  EXPECT_EQ(decode_splits(context, 4, 64), std::min(2, decode_splits(context, 4, 1'000'000)));
  EXPECT_GE(decode_splits(context, 1, 1'000'000), decode_splits(context, 4, 1'000'000));
}

}  // namespace
}  // namespace kinora
