#include "attention/cpu/mass_cpu.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <numbers>
#include <vector>

namespace kinora::attention_cpu {
namespace {

constexpr int64_t block_rows = 256;
constexpr int64_t most_pairs = 64;  // whose scores are held at the same time

// Rows of one set that are worked on together.
struct Block {
  const RowSet* set = nullptr;
  int64_t begin = 0;  // in the set
  int64_t count = 0;
  int64_t at = 0;  // among all rows
};

struct Pair {
  int32_t query = 0;
  int64_t head = 0;
};

class MassPass {
 public:
  MassPass(const QueryView& queries, std::span<const RowSet> sets, float scale,
           const MassTarget& target)
      : queries_(queries),
        factor_(scale * std::numbers::log2e_v<float>),
        target_(target),
        kv_heads_(sets[0].keys.size(1)),
        group_(queries.queries.size(1) / kv_heads_) {
    for (const RowSet& set : sets) {
      for (int64_t begin = 0; begin < set.count(); begin += block_rows) {
        const int64_t count = std::min(block_rows, set.count() - begin);
        blocks_.push_back({&set, begin, count, rows_});
        rows_ += count;
      }
    }
  }

  // Pairs in the order of their heads.
  void run(const ThreadPool& threads, std::span<const Pair> pairs) {
    pairs_ = pairs;
    if (scores_ == nullptr) {  // the first pairs are the most
      scores_ = std::make_unique_for_overwrite<float[]>(pairs.size() * static_cast<size_t>(rows_));
    }
    states_.resize(pairs.size() * blocks_.size());
    const auto blocks = static_cast<int64_t>(blocks_.size());
    const int64_t grain = std::max<int64_t>(1, 4096 / (block_rows * std::ssize(pairs)));
    threads.parallel_for(blocks, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) score(static_cast<size_t>(i));
    });
    for (size_t p = 0; p < pairs.size(); ++p) merge(p);
    threads.parallel_for(blocks, 4 * grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) add(static_cast<size_t>(i));
    });
  }

 private:
  float* scores(size_t pair, const Block& block) const {
    return scores_.get() + static_cast<int64_t>(pair) * rows_ + block.at;
  }
  ScoreState& state(size_t pair, size_t block) { return states_[pair * blocks_.size() + block]; }

  bool sees(int32_t query, int32_t ordinal) const {
    if (ordinal < queries_.ordinals.front()) return true;
    if (queries_.parents.empty()) return ordinal <= queries_.ordinals[static_cast<size_t>(query)];
    for (int32_t node = query; node >= 0; node = queries_.parents[static_cast<size_t>(node)]) {
      if (queries_.ordinals[static_cast<size_t>(node)] == ordinal) return true;
    }
    return false;
  }

  void score(size_t number) {
    const Block& block = blocks_[number];
    const RowSet& set = *block.set;
    const int64_t element = dtype_size(set.keys.dtype());
    const ConstTensorView& q = queries_.queries;
    std::array<const std::byte*, block_rows> keys{};
    std::array<const float*, most_pairs> queries{};
    for (size_t first = 0; first < pairs_.size();) {
      const int64_t kv_head = pairs_[first].head / group_;
      size_t last = first;
      for (; last < pairs_.size() && pairs_[last].head / group_ == kv_head; ++last) {
        queries[last - first] =
            q.data<float>() + pairs_[last].query * q.stride(0) + pairs_[last].head * q.stride(1);
      }
      for (int64_t i = 0; i < block.count; ++i) {
        int64_t row = block.begin + i;
        if (set.listed()) row = set.list.data<int32_t>()[row];
        keys[static_cast<size_t>(i)] =
            set.keys.raw() + (row * set.keys.stride(0) + kv_head * set.keys.stride(1)) * element;
      }
      score_rows(set.keys.dtype(), std::span(keys).first(static_cast<size_t>(block.count)),
                 std::span(queries).first(last - first), q.size(2), factor_, scores(first, block),
                 rows_);
      first = last;
    }
    for (size_t p = 0; p < pairs_.size(); ++p) {
      const std::span<float> mine(scores(p, block), static_cast<size_t>(block.count));
      limit(block, pairs_[p].query, mine);
      state(p, number) = weigh_scores(mine);
    }
  }

  // Adds the rows' weights; what the query may not read becomes −∞.
  void limit(const Block& block, int32_t query, std::span<float> scores) const {
    constexpr float unread = -std::numeric_limits<float>::infinity();
    const RowSet& set = *block.set;
    if (set.weighted()) {
      const float* weights = set.weights.data<float>() + block.begin;
      for (size_t i = 0; i < scores.size(); ++i) scores[i] += std::log2(weights[i]);
    }
    if (!set.serves.empty() && !std::binary_search(set.serves.begin(), set.serves.end(), query)) {
      std::fill(scores.begin(), scores.end(), unread);
      return;
    }
    const auto ordinals = set.ordinals.subspan(static_cast<size_t>(block.begin), scores.size());
    if (ordinals.back() < queries_.ordinals.front()) return;
    for (size_t i = 0; i < scores.size(); ++i) {
      if (!sees(query, ordinals[i])) scores[i] = unread;
    }
  }

  // What a block's weights are to be multiplied with to become shares of all rows takes the place
  // of its sum.
  void merge(size_t pair) {
    float max = -std::numeric_limits<float>::infinity();
    for (size_t i = 0; i < blocks_.size(); ++i) max = std::max(max, state(pair, i).max);
    double sum = 0;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      ScoreState& here = state(pair, i);
      if (here.sum == 0) continue;
      const float factor = std::exp2(here.max - max);
      sum += double{here.sum} * double{factor};
      here.sum = factor;
    }
    for (size_t i = 0; i < blocks_.size() && sum > 0; ++i) {
      state(pair, i).sum = static_cast<float>(state(pair, i).sum / sum);
    }
  }

  // Every row is in one block only.
  void add(size_t number) {
    const Block& block = blocks_[number];
    const int32_t* ordinals = block.set->ordinals.data() + block.begin;
    const bool dense = ordinals[block.count - 1] - ordinals[0] == block.count - 1;
    for (size_t p = 0; p < pairs_.size(); ++p) {
      const float factor = state(p, number).sum;
      if (factor == 0) continue;
      const float* weights = scores(p, block);
      float* to = target_.first + pairs_[p].query * target_.token_stride +
                  pairs_[p].head * target_.head_stride;
      if (dense) {
        to += ordinals[0];
        for (int64_t i = 0; i < block.count; ++i) to[i] += weights[i] * factor;
      } else {
        for (int64_t i = 0; i < block.count; ++i) to[ordinals[i]] += weights[i] * factor;
      }
    }
  }

  const QueryView& queries_;
  const float factor_;
  const MassTarget target_;
  const int64_t kv_heads_;
  const int64_t group_;
  std::vector<Block> blocks_;
  int64_t rows_ = 0;
  std::span<const Pair> pairs_;
  std::unique_ptr<float[]> scores_;  // [pairs, rows]
  std::vector<ScoreState> states_;   // [pairs, blocks]
};

}  // namespace

void add_mass(const Context& context, const QueryView& queries, std::span<const RowSet> sets,
              float scale, int64_t counted, const LayerHeads& chosen, const MassTarget& target) {
  MassPass pass(queries, sets, scale, target);
  std::vector<Pair> pairs;
  const auto run = [&] {
    if (!pairs.empty()) pass.run(*context.threads, pairs);
    pairs.clear();
  };
  for (int64_t head = 0; head < queries.queries.size(1); ++head) {
    if (!chosen.has(head)) continue;
    for (int64_t query = queries.count() - counted; query < queries.count(); ++query) {
      pairs.push_back({static_cast<int32_t>(query), head});
      if (std::ssize(pairs) == most_pairs) run();
    }
  }
  run();
}

}  // namespace kinora::attention_cpu
