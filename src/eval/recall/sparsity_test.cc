#include "eval/recall/sparsity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "attention/policies/pattern.h"
#include "attention/search/probe.h"
#include "base/threads.h"
#include "support/random_data.h"

namespace kinora {
namespace {

constexpr int heads = 2, size = 16;

// A prompt of one group: frames with text between and behind them.
struct Prompt {
  Prompt(Random& random, int64_t count) : ordinals(static_cast<size_t>(count)) {
    std::iota(ordinals.begin(), ordinals.end(), 0);
    for (auto* data : {&queries, &keys, &values}) {
      const int64_t each = data == &queries ? heads : 1;
      *data = testing::random_floats(random, count * each * size, data == &queries ? 4.0 : 1.0);
    }
    for (int64_t i = 0; i < count; ++i) {
      modalities.push_back(i / 70 % 2 == 0 ? Modality::video : Modality::text);
    }
  }
  int64_t count() const { return std::ssize(ordinals); }
  QueryView query_view() const {
    return {ConstTensorView::of(queries.data(), {count(), heads, size}), ordinals, modalities};
  }
  RowSet rows() const {
    return {ConstTensorView::of(keys.data(), {count(), 1, size}),
            ConstTensorView::of(values.data(), {count(), 1, size}), ordinals, modalities};
  }
  // Softmax of one query over what it sees.
  std::vector<double> weights(int64_t query, int head) const {
    std::vector<double> out;
    double sum = 0;
    for (int64_t row = 0; row <= query; ++row) {
      double dot = 0;
      for (int c = 0; c < size; ++c) {
        dot += double{queries[static_cast<size_t>((query * heads + head) * size + c)]} *
               double{keys[static_cast<size_t>(row * size + c)]};
      }
      out.push_back(std::exp(0.25 * dot));
      sum += out.back();
    }
    for (double& weight : out) weight /= sum;
    return out;
  }
  // Queries of a modality: the last 64 make lines, the 64 before them read.
  std::vector<int64_t> readers(Modality modality) const {
    std::vector<int64_t> of;
    for (int64_t i = 0; i < count(); ++i) {
      if (modalities[static_cast<size_t>(i)] == modality) of.push_back(i);
    }
    const int64_t makers = std::min<int64_t>(64, std::ssize(of) / 2);
    const int64_t reading = std::min<int64_t>(64, std::ssize(of) - makers);
    return {of.end() - makers - reading, of.end() - makers};
  }
  LineIndex lines(const Context& context, Modality modality, int head) const {
    for (const Region& region : cut_regions(Boundary::query, query_view(), rows())) {
      if (region.query_modality != modality) continue;
      const auto makers = std::min<int64_t>(64, std::ssize(region.queries) / 2);
      const Probe probe =
          probe_region(context, query_view(), rows(), region, head, 0.25f, ProbeOf::region, makers);
      return resolve(scaled(parse_pattern("vertical-slash"), count()), region, probe);
    }
    return {};
  }

  std::vector<float> queries, keys, values;
  std::vector<int32_t> ordinals;
  std::vector<Modality> modalities;
};

void show(SparsityStudy& study, const Context& context, const Prompt& prompt) {
  study.begin_prompt();
  study.begin_group({0, prompt.count(), prompt.count()});
  const RowSet rows[] = {prompt.rows()};
  study.see(context, {0, prompt.query_view(), rows, 0.25f});
}

TEST(Sparsity, CountsTheKeysThatHoldAttention) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  const Prompt prompt(random, 391);
  SparsityStudy study(0.9);
  show(study, context, prompt);
  const auto found = study.heads();
  ASSERT_EQ(found.size(), 4u);  // two heads, text and video
  for (const HeadSparsity& one : found) {
    double sum = 0;
    const auto readers = prompt.readers(one.modality);
    for (const int64_t query : readers) {
      std::vector<double> weights = prompt.weights(query, one.head);
      std::sort(weights.rbegin(), weights.rend());
      double caught = 0;
      int64_t count = 0;
      while (caught < 0.9) caught += weights[static_cast<size_t>(count++)];
      sum += static_cast<double>(count) / static_cast<double>(weights.size());
    }
    EXPECT_EQ(one.queries, std::ssize(readers));
    EXPECT_NEAR(one.share, sum / static_cast<double>(readers.size()), 2e-4);
  }
}

TEST(Sparsity, ReadsAlongLinesOfOtherQueriesAndOtherPrompts) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  const Prompt first(random, 301), second(random, 417);
  SparsityStudy study;
  show(study, context, first);
  for (const LineReuse& one : study.reuse()) EXPECT_FALSE(one.other_prompt);
  show(study, context, second);
  const auto reuse = study.reuse();
  SparsityStudy long_ones(0.95, 400);  // the first prompt is too short
  show(long_ones, context, first);
  EXPECT_TRUE(long_ones.heads().empty());
  show(long_ones, context, second);
  EXPECT_EQ(long_ones.heads().size(), 4u);
  EXPECT_EQ(reuse.size(), 6u);  // four pairs of modalities, and two from another prompt
  for (const LineReuse& one : reuse) {
    double recall = 0, keys = 0;
    int64_t queries = 0;
    for (const Prompt* prompt : {&first, &second}) {
      if (one.other_prompt && prompt == &first) continue;
      for (int head = 0; head < heads; ++head) {
        const LineIndex index = (one.other_prompt ? first : *prompt).lines(context, one.made, head);
        for (const int64_t query : prompt->readers(one.used)) {
          const std::vector<double> weights = prompt->weights(query, head);
          int64_t read = 0;
          for (int64_t row = 0; row <= query; ++row) {
            const auto has = [&](const std::vector<int32_t>& list, int64_t value) {
              return std::find(list.begin(), list.end(), value) != list.end();
            };
            if (!has(index.columns, row) && !has(index.slashes, query - row)) continue;
            recall += weights[static_cast<size_t>(row)];
            ++read;
          }
          keys += static_cast<double>(read) / static_cast<double>(weights.size());
          ++queries;
        }
      }
    }
    EXPECT_EQ(one.queries, queries);
    EXPECT_NEAR(one.recall, recall / static_cast<double>(queries), 1e-4);
    EXPECT_NEAR(one.keys, keys / static_cast<double>(queries), 1e-9);
  }
}

}  // namespace
}  // namespace kinora
