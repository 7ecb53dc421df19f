// The mass of rows that a decoder adds up while it runs (prefill groups, steps, token trees; on a
// GPU through captured graphs) against the softmax of its own queries in double precision.
#include "attention/row_mass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/error.h"
#include "memory/retention/retention.h"
#include "model/decoder/batch_case.h"
#include "model/decoder/wrapped_memory.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::BatchSession;
using testing::WrappedMemory;

// Gives the first rows as two listed sets, every other row with a weight, and the rest as it is.
class DealtMemory final : public WrappedMemory {
 public:
  DealtMemory(std::unique_ptr<Memory> inner, int32_t dealt) : WrappedMemory(std::move(inner)) {
    for (int32_t i = 0; i < dealt; ++i) ordinals_[i % 2].push_back(i);
    for (size_t k = 0; k < 2; ++k) {
      Tensor list(DType::i32, {std::ssize(ordinals_[k])});
      std::copy(ordinals_[k].begin(), ordinals_[k].end(), list.data<int32_t>());
      lists_[k] = list.to(device());
      modalities_[k].assign(ordinals_[k].size(), Modality::text);
    }
    Tensor weights(DType::f32, {std::ssize(ordinals_[0])});
    for (int64_t i = 0; i < weights.size(0); ++i) {
      weights.data<float>()[i] = 0.25f + static_cast<float>(i * 7 % 5);
    }
    weights_ = weights.to(device());
  }

  void read(const Context& context, int layer, const QueryView& queries,
            std::vector<RowSet>& out) override {
    std::vector<RowSet> whole;
    WrappedMemory::read(context, layer, queries, whole);
    ASSERT_EQ(whole.size(), 1u);
    const auto dealt = std::ssize(ordinals_[0]) + std::ssize(ordinals_[1]);
    for (size_t k = 0; k < 2; ++k) {
      RowSet set{whole[0].keys, whole[0].values, ordinals_[k], modalities_[k]};
      set.list = lists_[k];
      if (k == 0) set.weights = weights_;
      out.push_back(set);
    }
    const int64_t rest = whole[0].count() - dealt;
    out.push_back({whole[0].keys.rows(dealt, rest), whole[0].values.rows(dealt, rest),
                   whole[0].ordinals.subspan(static_cast<size_t>(dealt)),
                   whole[0].modalities.subspan(static_cast<size_t>(dealt))});
  }

 private:
  std::vector<int32_t> ordinals_[2];
  std::vector<Modality> modalities_[2];
  Tensor lists_[2], weights_;
};

// Works out what each query of the newest group gives each row. As it wants to see the queries, it
// never takes part in captured steps.
class WatchedMemory final : public WrappedMemory {
 public:
  WatchedMemory(std::unique_ptr<Memory> inner, float scale)
      : WrappedMemory(std::move(inner)), scale_(scale) {}

  // By layer, head and ordinal: the share of one query's attention.
  using Shares = std::map<std::tuple<int, int64_t, int32_t>, double>;

  bool known_ahead() const override { return false; }
  std::span<const Position> begin(const Context& context, const MemoryGroup& group) override {
    shares_.assign(group.tokens.size(), {});
    return WrappedMemory::begin(context, group);
  }
  void after(const Context& context, int layer, const QueryView& queries) override {
    std::vector<RowSet> sets;
    WrappedMemory::read(context, layer, queries, sets);
    for (int64_t query = 0; query < queries.count(); ++query) {
      for (int64_t head = 0; head < queries.queries.size(1); ++head) {
        watch(layer, queries, sets, query, head);
      }
    }
    WrappedMemory::after(context, layer, queries);
  }
  const Shares& shares(int64_t query) const { return shares_.at(static_cast<size_t>(query)); }

 private:
  static std::vector<float> host(ConstTensorView view) {
    std::vector<float> out(static_cast<size_t>(view.elements()));
    copy_bytes(out.data(), Device::cpu(), view.raw(), view.device(), out.size() * sizeof(float));
    return out;
  }
  static bool sees(const QueryView& queries, int64_t query, int32_t ordinal) {
    if (ordinal < queries.ordinals.front()) return true;
    if (queries.parents.empty()) return ordinal <= queries.ordinals[static_cast<size_t>(query)];
    for (auto node = static_cast<int32_t>(query); node >= 0;
         node = queries.parents[static_cast<size_t>(node)]) {
      if (queries.ordinals[static_cast<size_t>(node)] == ordinal) return true;
    }
    return false;
  }

  void watch(int layer, const QueryView& queries, std::span<const RowSet> sets, int64_t query,
             int64_t head) {
    const std::vector<float> q = host(queries.queries[query][head]);
    std::map<int32_t, double> weights;
    double sum = 0;
    for (const RowSet& set : sets) {
      const int64_t kv = head / (queries.queries.size(1) / set.keys.size(1));
      const std::vector<float> keys = host(set.keys);
      const std::vector<float> own = set.weighted() ? host(set.weights) : std::vector<float>();
      const Tensor list = set.listed() ? copy_of(set.list) : Tensor();
      for (int64_t i = 0; i < set.count(); ++i) {
        const int32_t ordinal = set.ordinals[static_cast<size_t>(i)];
        if (!sees(queries, query, ordinal)) continue;
        const int64_t row = set.listed() ? list.data<int32_t>()[i] : i;
        double score = 0;
        for (size_t c = 0; c < q.size(); ++c) {
          const auto at = static_cast<size_t>((row * set.keys.size(1) + kv)) * q.size() + c;
          score += double{q[c]} * double{keys[at]};
        }
        const double weight = own.empty() ? 1.0 : double{own[static_cast<size_t>(i)]};
        sum += weights[ordinal] = weight * std::exp(score * double{scale_});
      }
    }
    for (const auto& [ordinal, weight] : weights) {
      shares_[static_cast<size_t>(query)][{layer, head, ordinal}] = weight / sum;
    }
  }
  static Tensor copy_of(ConstTensorView view) {
    Tensor out(view.dtype(), view.shape());
    copy_bytes(out.view().raw(), Device::cpu(), view.raw(), view.device(),
               static_cast<size_t>(view.bytes()));
    return out;
  }

  float scale_;
  std::vector<Shares> shares_;  // of the newest group's queries
};

class DecoderMassTest : public testing::BatchCase {
 protected:
  using MakeMemory = std::function<std::unique_ptr<Memory>()>;

  // A session, a twin that is watched, and what was seen of the tokens that count.
  struct Watched {
    BatchSession session, twin;
    WatchedMemory* watch = nullptr;
    std::unique_ptr<RowMass> mass;
    WatchedMemory::Shares expected;
  };

  Watched watched(Random& random, int64_t length, const MakeMemory& make,
                  std::unique_ptr<RowMass> mass) const {
    Watched made;
    made.session = session(random, length);
    made.session.memory = make();
    made.twin.script = made.session.script;
    auto watch = std::make_unique<WatchedMemory>(
        make(), 1.0f / std::sqrt(static_cast<float>(config_.head_size)));
    made.watch = watch.get();
    made.twin.memory = std::move(watch);
    made.mass = std::move(mass);
    return made;
  }
  std::unique_ptr<RowMass> ask(std::vector<LayerHeads> layers, bool by_head) const {
    return std::make_unique<RowMass>(context_.device, std::move(layers), config_.heads, by_head);
  }

  // Several sessions that ask for different things, and one that asks for nothing.
  std::vector<Watched> sessions(Random& random, int64_t length, const MakeMemory& make) const {
    const int last = decoder_->layer_count() - 1;
    std::vector<Watched> all;
    all.push_back(watched(random, length, make, ask({{0, 0b101}, {last, all_heads}}, false)));
    all.push_back(watched(random, length, make, nullptr));
    all.push_back(watched(random, length, make, ask({{last, 0b11}}, true)));
    return all;
  }

  // What the last `counted` of the next tokens, or those of a tree that are accepted, give.
  void count(Watched& one, std::span<const int32_t> counted) const {
    const auto begin = static_cast<int32_t>(one.twin.memory->queries().ordinals.front());
    const bool tree = !one.twin.memory->queries().parents.empty();
    for (const int32_t token : counted) {
      for (const auto& [key, share] : one.watch->shares(token)) {
        const auto& [layer, head, ordinal] = key;
        int32_t to = ordinal;
        if (tree && ordinal >= begin) {  // its ancestors were accepted with it
          const auto at = std::find(counted.begin(), counted.end(), ordinal - begin);
          to = begin + static_cast<int32_t>(at - counted.begin());
        }
        one.expected[{layer, head, to}] += share;
      }
    }
  }

  void step(std::span<Watched> all, int64_t tokens, int64_t counted) const {
    std::vector<Sequence> batch;
    for (Watched& one : all) {
      batch.push_back(one.session.next(tokens));
      batch.back().mass = one.mass.get();
      batch.back().mass_rows = counted;
    }
    for (const Forwarded& result : runner_->forward(batch)) ASSERT_FALSE(result.failure);
    std::vector<int32_t> places(static_cast<size_t>(counted));
    std::iota(places.begin(), places.end(), static_cast<int32_t>(tokens - counted));
    for (Watched& one : all) {
      alone_->forward(one.twin.next(tokens));
      count(one, places);
    }
  }

  // Drafts of the text that follows, some of them right.
  void draft(Random& random, std::span<Watched> all, int64_t tokens) const {
    std::vector<Sequence> batch;
    std::vector<std::vector<int32_t>> paths;
    for (Watched& one : all) {
      const auto at = static_cast<size_t>(one.session.memory->token_count());
      Sequence sequence = one.session.next(1);
      std::vector<int32_t> depth{0};
      sequence.parents = {-1};
      for (int64_t i = 1; i < tokens; ++i) {
        const auto parent = static_cast<int32_t>(random.below(i));
        sequence.parents.push_back(parent);
        depth.push_back(depth[static_cast<size_t>(parent)] + 1);
        const size_t place = at + static_cast<size_t>(depth.back());
        sequence.ids.push_back(one.session.script.ids.at(place));
        sequence.tokens.push_back(one.session.script.tokens.at(place));
      }
      sequence.hidden_rows = tokens;
      std::vector<int32_t> path;
      for (auto node = static_cast<int32_t>(random.below(tokens)); node >= 0;
           node = sequence.parents[static_cast<size_t>(node)]) {
        path.insert(path.begin(), node);
      }
      paths.push_back(path);
      batch.push_back(sequence);
      batch.back().mass = one.mass.get();
    }
    for (const Forwarded& result : runner_->forward(batch)) ASSERT_FALSE(result.failure);
    for (size_t i = 0; i < all.size(); ++i) {
      Sequence sequence = batch[i];
      sequence.memory = all[i].twin.memory.get();
      sequence.attention = &all[i].twin.attention;
      sequence.mass = nullptr;
      alone_->forward(sequence);
      count(all[i], paths[i]);
      all[i].session.memory->accept(context_, paths[i]);
      all[i].twin.memory->accept(context_, paths[i]);
      if (all[i].mass != nullptr) all[i].mass->accept(context_, paths[i]);
    }
  }

  void expect_mass(const Watched& one) const {
    if (one.mass == nullptr) return;
    const std::vector<float> values = one.mass->values(context_);
    const int64_t rows = one.mass->rows();
    ASSERT_EQ(rows, one.session.memory->token_count());
    const bool by_head = std::ssize(values) != rows;
    std::vector<double> expected(values.size());
    for (const auto& [key, share] : one.expected) {
      const auto& [layer, head, ordinal] = key;
      const LayerHeads* asked = one.mass->find(layer);
      if (asked == nullptr || !asked->has(head)) continue;
      const int64_t plane =
          by_head ? (asked - one.mass->layers().data()) * config_.heads + head : 0;
      ASSERT_LT(ordinal, rows);
      expected[static_cast<size_t>(plane * rows + ordinal)] += share;
    }
    double total = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(values[i], expected[i], 20 * tolerance() * (1 + expected[i])) << "number " << i;
      total += double{values[i]};
    }
    EXPECT_GT(total, 1);
  }

  void read_both(Watched& one, int64_t tokens) const {
    read_alone(one.session, tokens);
    read_alone(one.twin, tokens);
  }

  // An answer: the last row of a prompt, single tokens, drafts.
  void expect_answers(Random& random, std::span<Watched> all) const {
    step(all, 70, 1);
    for (int i = 0; i < 4; ++i) step(all, 1, 1);
    step(all, 5, 5);
    for (int i = 0; i < 4; ++i) draft(random, all, 6);
    step(all, 4, 2);
    for (int i = 0; i < 2; ++i) step(all, 1, 1);
    for (const Watched& one : all) expect_mass(one);
  }
};

TEST_P(DecoderMassTest, OfOneSetOfRows) {
  KINORA_FRESH_RANDOM(random);
  std::vector<Watched> all = sessions(random, 200, [&] { return flat(); });
  for (Watched& one : all) read_both(one, 33);
  expect_answers(random, all);
}

TEST_P(DecoderMassTest, OfSeveralSetsWithListsAndWeights) {
  KINORA_FRESH_RANDOM(random);
  std::vector<Watched> all =
      sessions(random, 200, [&] { return std::make_unique<DealtMemory>(flat(), 21); });
  for (Watched& one : all) read_both(one, 33);
  expect_answers(random, all);
}

TEST_P(DecoderMassTest, OfPrunedRows) {
  KINORA_FRESH_RANDOM(random);
  const Retention retention = parse_retention("key-norm:0.5");
  std::vector<Watched> all = sessions(random, 200, [&] {
    return std::make_unique<FlatMemory>(testing::row_layout(config_), context_.device, retention);
  });
  for (Watched& one : all) {
    for (TokenInfo& token : one.session.script.tokens) {
      const auto at = &token - one.session.script.tokens.data();
      token.modality = at >= 5 && at < 33 ? Modality::video : Modality::text;
    }
    one.twin.script = one.session.script;
    read_both(one, 5);
    read_both(one, 28);
    ASSERT_EQ(one.session.memory->row_count(0), 5 + 14);
  }
  expect_answers(random, all);
}

TEST_P(DecoderMassTest, OfForks) {
  KINORA_FRESH_RANDOM(random);
  std::vector<Watched> all = sessions(random, 200, [&] { return flat(); });
  for (Watched& one : all) {
    read_both(one, 12);
    for (int generation = 0; generation < 2; ++generation) {
      std::unique_ptr<Memory> fork = one.session.memory->fork(one.session.memory->mark());
      one.session.memory = std::move(fork);
      read_both(one, 7);
    }
  }
  expect_answers(random, all);
}

TEST_P(DecoderMassTest, RefusesWhatThereIsNot) {
  KINORA_FRESH_RANDOM(random);
  BatchSession one = session(random, 20);
  const auto refused = [&](RowMass* mass, const auto& spoil) {
    Sequence sequence = one.next(3);
    sequence.mass = mass;
    spoil(sequence);
    EXPECT_THROW(runner_->forward(sequence), Error);
    EXPECT_EQ(one.memory->token_count(), 0);
  };
  const auto nothing = [](Sequence&) {};
  refused(ask({}, false).get(), nothing);
  refused(ask({{decoder_->layer_count()}}, false).get(), nothing);
  refused(ask({{0}}, false).get(), [](Sequence& sequence) { sequence.mass_rows = 4; });
  refused(ask({{0}}, false).get(), [](Sequence& sequence) { sequence.probes = 1; });
  refused(ask({{0}}, false).get(), [](Sequence& sequence) {
    sequence.parents = {-1, 0, 0};
    sequence.mass_rows = 1;
  });
}

INSTANTIATE_TEST_SUITE_P(Devices, DecoderMassTest, testing::batch_places(), testing::batch_label);

}  // namespace
}  // namespace kinora
