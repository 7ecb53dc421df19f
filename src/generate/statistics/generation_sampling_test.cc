// Drafted trees and the distribution of what is said: that of the model, by a χ² test that a wrong
// rule of acceptance does not pass.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "generate/draft_case.h"
#include "generate/path_model.h"
#include "generate/statistics/chi_square.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::Fit;
using testing::PathDecoder;
using testing::Talk;

constexpr int64_t vocabulary = 5;
constexpr int64_t counted = 3;  // tokens of an answer
constexpr int64_t answer = 5;   // so that trees are deep where tokens are counted
constexpr int64_t samples = 100'000;

// How tokens are chosen: everything that reshapes the distribution before a draft is accepted.
struct Way {
  const char* name;
  SamplingOptions sampling;
};
std::vector<Way> all_ways() {
  SamplingOptions plain, warm, narrow, scolded;
  plain.temperature = 1;
  warm.temperature = 1.7;
  warm.top_k = 4;
  warm.min_p = 0.1;
  narrow.temperature = 0.8;
  narrow.top_p = 0.85;
  scolded.temperature = 1;
  scolded.repetition_penalty = 1.5;
  return {{"plain", plain}, {"top_k_min_p", warm}, {"top_p", narrow}, {"penalty", scolded}};
}

// The cell of a path of tokens.
size_t cell_of(std::span<const int32_t> ids) {
  size_t cell = 0;
  for (const int32_t id : ids.first(counted)) {
    cell = cell * static_cast<size_t>(vocabulary) + static_cast<size_t>(id);
  }
  return cell;
}

class SampledDrafts : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    uint64_t state = 0;
    for (size_t i = 0; i < question_.size(); ++i) {
      state = PathDecoder::next_state(state, question_[i], static_cast<int32_t>(i));
    }
    begin_ = state;
    add_cells(state, {}, 1);
  }

  // Probabilities of all paths, in the order of their cells.
  void add_cells(uint64_t state, std::vector<int32_t> ids, double probability) {
    if (static_cast<int64_t>(ids.size()) == counted) {
      probabilities_.push_back(probability);
      return;
    }
    std::vector<int32_t> context = question_;
    context.insert(context.end(), ids.begin(), ids.end());
    std::vector<double> next(vocabulary);
    std::vector<float> logits = model_.path().logits_after(state);
    for (const Sampler::Candidate& candidate :
         Sampler(GetParam().sampling).distribution(logits, context)) {
      next[static_cast<size_t>(candidate.token)] = candidate.probability;
    }
    const auto position = static_cast<int32_t>(question_.size() + ids.size());
    ids.push_back(0);
    for (int32_t id = 0; id < vocabulary; ++id) {
      ids.back() = id;
      add_cells(PathDecoder::next_state(state, id, position), ids,
                probability * next[static_cast<size_t>(id)]);
    }
  }

  Draft any_tree(Random& random, int64_t deepest) const {
    return testing::random_tree(random, {}, 1 + random.below(12), deepest, vocabulary);
  }
  SamplingOptions sampling(Random& random) const {
    SamplingOptions options = GetParam().sampling;
    options.seed = random.next();
    return options;
  }

  Fit fit(const std::vector<int64_t>& counts) const { return testing::fit(counts, probabilities_); }

  testing::PathModel model_{vocabulary};
  const std::vector<int32_t> question_{3, 1, 4, 1, 0, 2};
  uint64_t begin_ = 0;  // the state after the question
  std::vector<double> probabilities_;
};

TEST_P(SampledDrafts, AreChosenAsTheModelChooses) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(1);
  const Context context(pool);
  const auto runner = model_.decoder().runner(context);
  Talk talk(context, model_);
  const Tensor hidden = runner->forward(talk.read(question_)).hidden;
  const Talk::Point asked = talk.here();
  std::vector<int64_t> counts(probabilities_.size());
  GenerateOptions options;
  options.max_tokens = answer;
  options.ignore_stop_tokens = true;
  int64_t right = 0;
  for (int64_t i = 0; i < samples; ++i) {
    options.sampling = sampling(random);
    Generation generation(
        talk.state(), options,
        std::make_unique<testing::ScriptedDrafter>(
            [&](auto, int64_t, int64_t deepest) { return any_tree(random, deepest); }));
    const Generated generated =
        generate(context, *runner, generation, model_.decoder(), hidden, nullptr);
    ASSERT_EQ(static_cast<int64_t>(generated.ids.size()), answer);
    right += generated.draft.right;
    ++counts[cell_of(generated.ids)];
    talk.go_back(asked);
  }
  EXPECT_GT(right, samples / 2);  // the trees do matter
  const Fit found = fit(counts);
  EXPECT_LT(found.statistic, found.limit);
}

// The test above would notice: here a drafted token is always believed.
TEST_P(SampledDrafts, BelievingDraftsIsNoticed) {
  KINORA_FRESH_RANDOM(random);
  Sampler sampler(sampling(random));
  std::vector<int64_t> counts(probabilities_.size());
  for (int64_t i = 0; i < samples; ++i) {
    std::vector<int32_t> ids;
    uint64_t state = begin_;
    Draft draft;  // nothing is drafted before the first token
    int32_t node = -1;
    while (static_cast<int64_t>(ids.size()) < counted) {
      const auto child = std::find(draft.parents.begin(), draft.parents.end(), node);
      if (child != draft.parents.end()) {
        node = static_cast<int32_t>(child - draft.parents.begin());
        ids.push_back(draft.ids[static_cast<size_t>(node)]);
      } else {
        std::vector<float> logits = model_.path().logits_after(state);
        std::vector<int32_t> context = question_;
        context.insert(context.end(), ids.begin(), ids.end());
        ids.push_back(sampler.pick(logits, context));
        draft = any_tree(random, answer - static_cast<int64_t>(ids.size()) - 1);
        node = -1;
      }
      state = PathDecoder::next_state(state, ids.back(),
                                      static_cast<int32_t>(question_.size() + ids.size() - 1));
    }
    ++counts[cell_of(ids)];
  }
  const Fit found = fit(counts);
  EXPECT_GT(found.statistic, found.limit);
}

// Without drafts, by the same measure.
TEST_P(SampledDrafts, TheMeasureItselfIsRight) {
  KINORA_FRESH_RANDOM(random);
  std::vector<int64_t> counts(probabilities_.size());
  for (int64_t i = 0; i < samples; ++i) {
    double left = random.uniform();
    size_t cell = 0;
    while (cell + 1 < probabilities_.size() && left >= probabilities_[cell]) {
      left -= probabilities_[cell++];
    }
    ++counts[cell];
  }
  EXPECT_NEAR(std::accumulate(probabilities_.begin(), probabilities_.end(), 0.0), 1, 1e-9);
  const Fit found = fit(counts);
  EXPECT_LT(found.statistic, found.limit);
}

// Here a rejected sibling keeps its share: tried one after another, each with its own probability,
// the first ones are said too seldom, or the last too often.
TEST_P(SampledDrafts, SiblingsWithoutRenormalisingAreNoticed) {
  KINORA_FRESH_RANDOM(random);
  Sampler sampler(sampling(random));
  std::vector<int64_t> counts(probabilities_.size());
  for (int64_t i = 0; i < samples; ++i) {
    std::vector<int32_t> ids, context = question_;
    uint64_t state = begin_;
    while (static_cast<int64_t>(ids.size()) < counted) {
      std::vector<float> logits = model_.path().logits_after(state);
      const auto likely = sampler.distribution(logits, context);
      int32_t chosen = -1;
      for (int32_t guess = 0; guess < 3 && chosen < 0; ++guess) {  // siblings 0, 1, 2
        for (const Sampler::Candidate& candidate : likely) {
          if (candidate.token == guess && random.uniform() < candidate.probability) chosen = guess;
        }
      }
      logits = model_.path().logits_after(state);
      ids.push_back(chosen >= 0 ? chosen : sampler.pick(logits, context));
      context.push_back(ids.back());
      state = PathDecoder::next_state(state, ids.back(),
                                      static_cast<int32_t>(question_.size() + ids.size() - 1));
    }
    ++counts[cell_of(ids)];
  }
  const Fit found = fit(counts);
  EXPECT_GT(found.statistic, found.limit);
}

INSTANTIATE_TEST_SUITE_P(Ways, SampledDrafts, ::testing::ValuesIn(all_ways()),
                         [](const auto& way) { return std::string(way.param.name); });

}  // namespace
}  // namespace kinora
