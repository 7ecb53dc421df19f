// The bundled model and its trained draft at a temperature: every token of an answer, place by
// place, has the distribution that the model gives it, which rules of acceptance that are a little
// wrong do not keep. KINORA_TEST_SAMPLES asks for more answers than a test has time for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <vector>

#include "generate/draft_case.h"
#include "generate/sparrow.h"
#include "generate/statistics/chi_square.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::Fit;
using testing::Talk;

constexpr int64_t counted = 4;  // tokens of an answer
constexpr int64_t answer = 6;   // so that trees are deep where tokens are counted

int64_t sample_count() {
  const char* asked = std::getenv("KINORA_TEST_SAMPLES");
  return asked != nullptr ? std::atoll(asked) : 800;
}

using Path = std::vector<int32_t>;

class BundledSampling : public ::testing::Test {
 protected:
  // So few choices that all answers can be listed.
  static SamplingOptions sampling() {
    SamplingOptions options;
    options.temperature = 8;  // the model is sure of itself
    options.top_k = 3;
    return options;
  }

  void SetUp() override {
    Conversation conversation;
    conversation.turns.push_back({"user", {{Modality::text, "What happens in the video?"}}});
    for (const PromptRun& run : model_->render(conversation)) {
      question_.insert(question_.end(), run.ids.begin(), run.ids.end());
    }
    list_answers({}, 1);
  }

  // What may follow a beginning, by the model alone.
  std::vector<Sampler::Candidate> after(const Path& begun) {
    Talk talk(context_, *model_);
    Path all = question_;
    all.insert(all.end(), begun.begin(), begun.end());
    Tensor logits = model_->decoder().logits(context_, runner_->forward(talk.read(all)).hidden);
    return Sampler(sampling())
        .distribution({logits.data<float>(), static_cast<size_t>(logits.size(1))}, all);
  }
  void list_answers(const Path& begun, double probability) {
    if (std::ssize(begun) == counted) {
      answers_.push_back(begun);
      probabilities_.push_back(probability);
      return;
    }
    for (const Sampler::Candidate& next : followers_[begun] = after(begun)) {
      Path longer = begun;
      longer.push_back(next.token);
      list_answers(longer, probability * next.probability);
    }
  }

  // The distributions of all tokens counted: at each place, and of all places together.
  std::vector<Fit> fits(const std::vector<int64_t>& counts) const {
    std::vector<Fit> result{testing::fit(counts, probabilities_)};
    for (size_t place = 0; place < static_cast<size_t>(counted); ++place) {
      std::map<int32_t, size_t> cells;
      std::vector<int64_t> observed;
      std::vector<double> expected;
      for (size_t i = 0; i < answers_.size(); ++i) {
        const auto [cell, fresh] = cells.emplace(answers_[i][place], cells.size());
        if (fresh) {
          observed.push_back(0);
          expected.push_back(0);
        }
        observed[cell->second] += counts[i];
        expected[cell->second] += probabilities_[i];
      }
      if (observed.size() > 1) result.push_back(testing::fit(observed, expected));
    }
    return result;
  }
  size_t number_of(std::span<const int32_t> ids) const {
    const auto begun = ids.first(static_cast<size_t>(counted));
    const auto found = std::find_if(answers_.begin(), answers_.end(), [&](const Path& one) {
      return std::equal(one.begin(), one.end(), begun.begin());
    });
    EXPECT_NE(found, answers_.end()) << "an answer that the model never gives";
    return static_cast<size_t>(found - answers_.begin());
  }
  static bool fit_all(const std::vector<Fit>& fits) {
    return std::all_of(fits.begin(), fits.end(),
                       [](const Fit& one) { return one.statistic < one.limit; });
  }

  // What the draft proposes after a beginning of at least one token.
  const Draft& proposed(const Path& begun) {
    const auto [found, fresh] = proposals_.try_emplace(begun);
    if (fresh) {
      SparrowDrafter drafter(draft_, tree());
      Path all = question_;
      all.insert(all.end(), begun.begin(), begun.end());
      Talk talk(context_, *model_);
      Sequence sequence = talk.read(std::span(all).first(all.size() - 1));
      sequence.states = drafter.states();
      const std::vector<TokenInfo> tokens = sequence.tokens;
      const Forwarded result = runner_->forward(sequence);
      drafter.read({0, std::span(all).first(all.size() - 1), tokens, result.states});
      found->second = drafter.propose(all, 63, answer);
    }
    return found->second;
  }
  static SparrowOptions tree() { return {{8, 2, 3}, false, ""}; }

  int32_t drawn(Random& random, const Path& begun) {
    double left = random.uniform();
    const std::vector<Sampler::Candidate>& likely = followers_.at(begun);
    for (const Sampler::Candidate& one : likely) {
      left -= one.probability;
      if (left < 0) return one.token;
    }
    return likely.back().token;
  }
  double probability_of(const Path& begun, int32_t token) const {
    for (const Sampler::Candidate& one : followers_.at(begun)) {
      if (one.token == token) return one.probability;
    }
    return 0;
  }
  // Counts of answers by a rule that chooses one token after another. Nothing is drafted before the
  // first.
  template <typename Rule>
  std::vector<int64_t> chosen_by(Random& random, const Rule& rule) {
    std::vector<int64_t> counts(answers_.size());
    for (int64_t i = 0; i < sample_count(); ++i) {
      Path begun{drawn(random, {})};
      while (std::ssize(begun) < counted) begun.push_back(rule(begun));
      ++counts[number_of(begun)];
    }
    return counts;
  }
  // Guesses of the draft for the next token, likeliest first, that the model may give.
  std::vector<int32_t> siblings(const Path& begun) {
    const Draft& draft = proposed(begun);
    std::vector<int32_t> found;
    for (size_t i = 0; i < draft.ids.size(); ++i) {
      if (draft.parents[i] < 0 && probability_of(begun, draft.ids[i]) > 0) {
        found.push_back(draft.ids[i]);
      }
    }
    return found;
  }

  const ThreadPool pool_{1};
  const Context context_{pool_};
  const std::string directory_ = KINORA_SOURCE "/models/kinora-tiny";
  const std::unique_ptr<Model> model_ = load_model(context_, real_files(), directory_);
  const std::shared_ptr<const DraftModel> draft_ =
      std::make_shared<DraftModel>(context_, real_files(), directory_ + "/draft", *model_);
  const std::unique_ptr<DecoderRunner> runner_ = model_->decoder().runner(context_);
  Path question_;
  std::map<Path, std::vector<Sampler::Candidate>> followers_;
  std::map<Path, Draft> proposals_;
  std::vector<Path> answers_;  // all there are, and how likely each is
  std::vector<double> probabilities_;
};

TEST_F(BundledSampling, DraftedAnswersAreChosenAsTheModelChooses) {
  KINORA_FRESH_RANDOM(random);
  Talk talk(context_, *model_);
  // The draft reads the question once; every answer goes back to its end.
  SparrowDrafter reader(draft_, tree());
  Sequence sequence = talk.read(question_);
  sequence.states = reader.states();
  const std::vector<TokenInfo> tokens = sequence.tokens;
  const Forwarded read = runner_->forward(sequence);
  reader.read({0, question_, tokens, read.states});
  const Talk::Point asked = talk.here();
  std::vector<int64_t> counts(answers_.size());
  GenerateOptions options;
  options.max_tokens = answer;
  options.ignore_stop_tokens = true;
  options.sampling = sampling();
  const std::shared_ptr<Drafter> drafter = reader.fork();
  int64_t right = 0;
  for (int64_t i = 0; i < sample_count(); ++i) {
    options.sampling.seed = random.next();
    Generation generation(talk.state(), options, drafter);
    const Generated generated =
        generate(context_, *runner_, generation, model_->decoder(), read.hidden, nullptr);
    ASSERT_EQ(std::ssize(generated.ids), answer);
    right += generated.draft.right;
    ++counts[number_of(generated.ids)];
    talk.go_back(asked);
  }
  EXPECT_GT(right, sample_count() / 2);  // the trees do matter
  for (const Fit& found : fits(counts)) EXPECT_LT(found.statistic, found.limit);
}

// Rules that are right and rules that are not, by the same measure.
TEST_F(BundledSampling, TheMeasureTellsRulesApart) {
  KINORA_FRESH_RANDOM(random);
  const auto plainly = [&](const Path& begun) { return drawn(random, begun); };
  EXPECT_TRUE(fit_all(fits(chosen_by(random, plainly))));
  // One sibling after another, each by its share of what is left.
  const auto one_by_one = [&](const Path& begun) {
    double left = 1;
    for (const int32_t guess : siblings(begun)) {
      const double probability = probability_of(begun, guess);
      if (random.uniform() * left < probability) return guess;
      left -= probability;
    }
    while (true) {  // one that was not guessed
      const int32_t token = drawn(random, begun);
      const std::vector<int32_t> guesses = siblings(begun);
      if (std::find(guesses.begin(), guesses.end(), token) == guesses.end()) return token;
      if (left <= 1e-12) return token;  // all were, and rounding left none
    }
  };
  EXPECT_TRUE(fit_all(fits(chosen_by(random, one_by_one))));
  const auto believing = [&](const Path& begun) {
    const std::vector<int32_t> guesses = siblings(begun);
    return guesses.empty() ? drawn(random, begun) : guesses[0];
  };
  EXPECT_FALSE(fit_all(fits(chosen_by(random, believing))));
  // Here a rejected sibling keeps its share.
  const auto without_renormalising = [&](const Path& begun) {
    for (const int32_t guess : siblings(begun)) {
      if (random.uniform() < probability_of(begun, guess)) return guess;
    }
    return drawn(random, begun);
  };
  EXPECT_FALSE(fit_all(fits(chosen_by(random, without_renormalising))));
}

}  // namespace
}  // namespace kinora
