// What a Memory may do besides keeping rows, shown by small memories through the interface alone:
// positions of its own, several sets, rows with weights, sets for some queries.
#include "memory/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "attention/policies/dense.h"
#include "attention/row_sets.h"
#include "attention/row_sets_test_support.h"
#include "base/threads.h"
#include "memory/flat_memory.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::all_devices;
using testing::error_of;
using testing::Expected;
using testing::PlacedProblem;
using testing::Problem;
using testing::tensor_of;

// All that a memory leaves to a FlatMemory.
class OverFlat : public Memory {
 public:
  OverFlat(const RowLayout& layout, Device device)
      : flat_(std::make_unique<FlatMemory>(layout, device)) {}
  explicit OverFlat(std::unique_ptr<Memory> flat) : flat_(std::move(flat)) {}

  const RowLayout& layout() const override { return flat_->layout(); }
  Device device() const override { return flat_->device(); }
  std::span<const Position> begin(const Context& context, const MemoryGroup& group) override {
    return flat_->begin(context, group);
  }
  NewRows append(int layer) override { return flat_->append(layer); }
  QueryView queries() const override { return flat_->queries(); }
  void read(const Context& context, int layer, const QueryView& queries,
            std::vector<RowSet>& out) override {
    flat_->read(context, layer, queries, out);
  }
  void accept(const Context& context, std::span<const int32_t> tokens) override {
    flat_->accept(context, tokens);
  }
  TensorView state(int layer, int32_t node) override { return flat_->state(layer, node); }
  MemoryMark mark() const override { return flat_->mark(); }
  void rewind(const MemoryMark& mark) override { flat_->rewind(mark); }
  std::unique_ptr<Memory> fork(const MemoryMark& mark) override { return flat_->fork(mark); }
  int64_t token_count() const override { return flat_->token_count(); }
  const TokenInfo& token(int64_t ordinal) const override { return flat_->token(ordinal); }
  int64_t row_count(int layer) const override { return flat_->row_count(layer); }
  MemoryBytes bytes() const override { return flat_->bytes(); }

 protected:
  std::unique_ptr<Memory> flat_;
};

// Turns keys by their place in memory, whatever position the model gave their tokens.
class OwnPositions final : public OverFlat {
 public:
  using OverFlat::OverFlat;
  KeyForm key_form() const override { return KeyForm::unrotated; }
  std::span<const Position> begin(const Context& context, const MemoryGroup& group) override {
    OverFlat::begin(context, group);
    const QueryView queries = flat_->queries();
    positions_.clear();
    for (size_t i = 0; i < queries.ordinals.size(); ++i) {
      // A child follows its parent; siblings have the same position.
      const int32_t parent =
          queries.parents.empty() ? static_cast<int32_t>(i) - 1 : queries.parents[i];
      const int32_t at =
          parent < 0 ? queries.ordinals[0] : positions_[static_cast<size_t>(parent)][0] + 1;
      positions_.push_back({at, at, at});
    }
    return positions_;
  }
  std::unique_ptr<Memory> fork(const MemoryMark& mark) override {
    return std::make_unique<OwnPositions>(flat_->fork(mark));
  }

 private:
  std::vector<Position> positions_;
};

TEST(Memory, MayGiveOutItsOwnPositions) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(1);
  const Context context(threads);
  OwnPositions memory(RowLayout{1, 1, 4, DType::f32}, Device::cpu());
  Memory& known = memory;
  EXPECT_EQ(known.key_form(), KeyForm::unrotated);
  const auto group_of = [&](int64_t count) {
    std::vector<TokenInfo> tokens(static_cast<size_t>(count));
    for (TokenInfo& token : tokens) {
      for (int32_t& axis : token.position) axis = static_cast<int32_t>(random.below(100'000));
    }
    return tokens;
  };
  const auto expect_begin = [&](Memory& target, std::span<const int32_t> parents,
                                std::span<const int32_t> expected) {
    const auto tokens = group_of(static_cast<int64_t>(expected.size()));
    const auto positions = target.begin(context, {tokens, parents});
    target.append(0);
    ASSERT_EQ(positions.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(positions[i], (Position{expected[i], expected[i], expected[i]}));
    }
  };
  expect_begin(known, {}, std::vector<int32_t>{0, 1, 2, 3, 4});
  const MemoryMark mark = known.mark();
  // A root with two children, one of which has a child.
  const std::vector<int32_t> parents{-1, 0, 0, 2};
  expect_begin(known, parents, std::vector<int32_t>{5, 6, 6, 7});
  known.accept(context, std::vector<int32_t>{0, 2, 3});
  expect_begin(known, {}, std::vector<int32_t>{8, 9});
  const std::unique_ptr<Memory> fork = known.fork(mark);
  known.rewind(mark);
  expect_begin(known, {}, std::vector<int32_t>{5});
  expect_begin(*fork, {}, std::vector<int32_t>{5, 6});
  expect_begin(*fork, {}, std::vector<int32_t>{7});
}

constexpr int64_t cluster = 4, exact = 9, heads = 4, kv_heads = 2, head_size = 16;
constexpr int64_t width = kv_heads * head_size;

// Means of rows [cluster · i, cluster · (i + 1)).
std::vector<float> means_of(const std::vector<float>& rows, int64_t clusters) {
  std::vector<float> means(static_cast<size_t>(clusters * width));
  for (int64_t i = 0; i < clusters * width; ++i) {
    double sum = 0;
    for (int64_t k = 0; k < cluster; ++k) {
      sum += double{rows[static_cast<size_t>((i / width * cluster + k) * width + i % width)]};
    }
    means[static_cast<size_t>(i)] = static_cast<float>(sum / cluster);
  }
  return means;
}

// Reads old rows by fours, as one row that weighs four, for every second query only; the newest
// rows and the group are read as they are.
class Clustered final : public OverFlat {
 public:
  using OverFlat::OverFlat;

  static int64_t clusters(int64_t rows, int64_t group) {
    return std::max<int64_t>(0, rows - group - exact) / cluster;
  }
  void read(const Context& context, int layer, const QueryView& queries,
            std::vector<RowSet>& out) override {
    std::vector<RowSet> flat;
    OverFlat::read(context, layer, queries, flat);
    ASSERT_EQ(flat.size(), 1u);
    const RowSet& all = flat[0];
    const int64_t count = clusters(all.count(), static_cast<int64_t>(queries.ordinals.size()));
    if (count == 0) return out.push_back(all);
    const int64_t first = count * cluster, rest = all.count() - first;
    ordinals_.clear();
    modalities_.assign(static_cast<size_t>(count), Modality::video);
    serves_.clear();
    for (int64_t i = 0; i < count; ++i) ordinals_.push_back(static_cast<int32_t>(i * cluster));
    for (int32_t i = 0; i < static_cast<int32_t>(queries.ordinals.size()); i += 2) {
      serves_.push_back(i);
    }
    const auto mean = [&](ConstTensorView rows) {
      Tensor here(rows.dtype(), rows.shape());
      copy_bytes(here.view().raw(), Device::cpu(), rows.raw(), rows.device(),
                 static_cast<size_t>(here.bytes()));
      return tensor_of(means_of(testing::floats_of(here), count), {count, kv_heads, head_size},
                       DType::f32, device());
    };
    keys_ = mean(all.keys);
    values_ = mean(all.values);
    weights_ = tensor_of(std::vector<float>(static_cast<size_t>(count), float{cluster}), {count},
                         DType::f32, device());
    RowSet clustered{keys_.view(), values_.view(), ordinals_, modalities_};
    clustered.weights = weights_.view();
    clustered.serves = serves_;
    out.push_back(clustered);
    const auto skip = static_cast<size_t>(first);
    out.push_back({all.keys.rows(first, rest), all.values.rows(first, rest),
                   all.ordinals.subspan(skip), all.modalities.subspan(skip)});
  }

 private:
  Tensor keys_, values_, weights_;
  std::vector<int32_t> ordinals_, serves_;
  std::vector<Modality> modalities_;
};

void check_clustered(Random& random, Device device) {
  SCOPED_TRACE(to_string(device));
  const ThreadPool threads(2);
  const Context context(threads, device);
  Clustered clustered(RowLayout{1, kv_heads, head_size, DType::f32}, device);
  Memory& memory = clustered;
  std::vector<float> keys, values;
  for (const int64_t count : {1, 7, 65, 1, 130, 63, 2}) {
    const std::vector<TokenInfo> tokens(static_cast<size_t>(count));
    memory.begin(context, {tokens});
    const NewRows fresh = memory.append(0);
    const auto fill = [&](TensorView to, std::vector<float>& all) {
      const std::vector<float> more = testing::random_floats(random, count * width);
      copy_bytes(to.raw(), device, more.data(), Device::cpu(), more.size() * sizeof(float));
      all.insert(all.end(), more.begin(), more.end());
    };
    fill(fresh.keys, keys);
    fill(fresh.values, values);

    // The rows that are read, as a problem of their own.
    const int64_t total = memory.row_count(0), means = Clustered::clusters(total, count);
    Problem problem =
        testing::make_problem(random, {.queries = count,
                                       .earlier = means + total - means * cluster - count,
                                       .heads = heads,
                                       .kv_heads = kv_heads,
                                       .head_size = head_size});
    problem.weights.assign(static_cast<size_t>(problem.rows()), 1.0f);
    std::fill_n(problem.weights.begin(), means, float{cluster});
    const auto join = [&](const std::vector<float>& all) {
      std::vector<float> read = means_of(all, means);
      read.insert(read.end(), all.begin() + means * cluster * width, all.end());
      return read;
    };
    problem.key_data = join(keys);
    problem.value_data = join(values);
    const Expected expected = testing::reference(problem, [&](int64_t query, int64_t, int64_t row) {
      return testing::causal(problem, query, row) && (row >= means || query % 2 == 0);
    });

    PlacedProblem placed(problem, device);
    QueryView queries = memory.queries();
    queries.queries = placed.queries().queries;
    std::vector<RowSet> sets;
    memory.read(context, 0, queries, sets);
    EXPECT_EQ(sets.size(), means > 0 ? 2u : 1u);
    DenseAttention dense;
    attend_sets(dense, context, 0, queries, sets, problem.scale, placed.out());
    memory.after(context, 0, queries);
    EXPECT_LE(error_of(placed.result(), expected.out), testing::limit_of(problem, device, expected))
        << count << " of " << total << " rows";
  }
}

TEST(Memory, MayReadWeightedRowsForSomeQueries) {
  KINORA_FRESH_RANDOM(random);
  for (const Device device : all_devices()) check_clustered(random, device);
}

}  // namespace
}  // namespace kinora
