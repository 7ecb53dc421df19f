#include "generate/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "support/random_data.h"
#include "support/sanitized.h"

namespace kinora {
namespace {

// Straight from the definitions, on (probability, token) pairs sorted by likelihood.
std::map<int32_t, double> reference(std::vector<float> logits, const SamplingOptions& options,
                                    const std::vector<int32_t>& context) {
  std::vector<bool> seen(logits.size());
  for (const int32_t token : context) {
    if (seen[static_cast<size_t>(token)]) continue;
    seen[static_cast<size_t>(token)] = true;
    float& logit = logits[static_cast<size_t>(token)];
    const auto penalty = static_cast<float>(options.repetition_penalty);
    logit = logit < 0 ? logit * penalty : logit / penalty;
  }
  std::vector<std::pair<double, int32_t>> sorted;
  for (size_t i = 0; i < logits.size(); ++i) {
    sorted.emplace_back(-std::exp(double{logits[i]} / options.temperature),
                        static_cast<int32_t>(i));
  }
  std::sort(sorted.begin(), sorted.end());
  const auto sum = [&] {
    double total = 0;
    for (const auto& [negative, token] : sorted) total -= negative;
    return total;
  };
  if (options.top_k > 0 && sorted.size() > static_cast<size_t>(options.top_k)) {
    sorted.resize(static_cast<size_t>(options.top_k));
  }
  const double total = sum();
  double before = 0;
  std::vector<std::pair<double, int32_t>> kept;
  for (const auto& entry : sorted) {
    // At 1 nothing is cut, even where the sum has rounded up to the total already.
    const bool wanted = options.top_p == 1 || before < options.top_p * total || kept.empty();
    if (wanted) kept.push_back(entry);
    before -= entry.first;
  }
  sorted.clear();
  for (const auto& entry : kept) {
    if (-entry.first >= options.min_p * -kept.front().first) sorted.push_back(entry);
  }
  std::map<int32_t, double> result;
  const double final_total = sum();
  for (const auto& [negative, token] : sorted) result[token] = -negative / final_total;
  return result;
}

TEST(Sampler, DistributionsFollowTheDefinitions) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 300; ++round) {
    const int64_t vocabulary = 1 + random.below(130);
    std::vector<float> logits = testing::random_floats(random, vocabulary, 3.0);
    SamplingOptions options;
    options.temperature = random.uniform(0.2, 2.0);
    if (random.uniform() < 0.5) options.top_k = 1 + random.below(140);
    if (random.uniform() < 0.5) options.top_p = random.uniform(0.05, 1.0);
    if (random.uniform() < 0.5) options.min_p = random.uniform(0.0, 0.5);
    if (random.uniform() < 0.5) options.repetition_penalty = random.uniform(0.5, 2.0);
    std::vector<int32_t> context;
    for (int i = 0; i < 20; ++i) context.push_back(static_cast<int32_t>(random.below(vocabulary)));
    const auto expected = reference(logits, options, context);
    const auto actual = Sampler(options).distribution(logits, context);
    ASSERT_EQ(actual.size(), expected.size());
    for (const auto& candidate : actual) {
      ASSERT_TRUE(expected.contains(candidate.token));
      EXPECT_NEAR(candidate.probability, expected.at(candidate.token), 1e-9);
    }
  }
}

TEST(Sampler, DrawsWithTheRightFrequencies) {
  const std::vector<float> logits{0.f, 1.f, 2.f, -1.f};
  SamplingOptions options;
  options.temperature = 1;
  options.seed = 7;
  Sampler sampler(options);
  std::vector<float> scratch = logits;
  const auto expected = sampler.distribution(scratch, {});
  std::map<int32_t, int> counts;
  constexpr int draws = 40000;
  for (int i = 0; i < draws; ++i) {
    scratch = logits;
    ++counts[sampler.pick(scratch, {})];
  }
  for (const auto& candidate : expected) {
    const double p = candidate.probability;
    const double deviation = std::sqrt(p * (1 - p) / draws);
    EXPECT_NEAR(counts[candidate.token] / double{draws}, p, 5 * deviation);
  }
}

// A draw looks at as many candidates as it needs, and is the one that a full sort would give.
TEST(Sampler, DrawsWhatTheWholeDistributionWould) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 300; ++round) {
    const int64_t vocabulary = 1 + random.below(3000);
    std::vector<float> logits =
        testing::random_floats(random, vocabulary, random.uniform(0.0, 4.0));
    SamplingOptions options;
    options.temperature = random.uniform(0.2, 2.0);
    options.seed = random.next();
    if (random.uniform() < 0.3) options.top_k = 1 + random.below(vocabulary);
    if (random.uniform() < 0.3) options.top_p = random.uniform(0.05, 1.0);
    if (random.uniform() < 0.3) options.min_p = random.uniform(0.0, 0.2);
    std::vector<float> scratch = logits;
    const auto sorted = Sampler(options).distribution(scratch, {});
    double left = Random(options.seed).uniform();
    size_t place = 0;
    while (place + 1 < sorted.size() && (left -= sorted[place].probability) >= 0) ++place;
    // Rounding may move a border between two candidates by next to nothing.
    if (place + 1 < sorted.size() && left > -1e-12) continue;
    EXPECT_EQ(Sampler(options).pick(logits, {}), sorted[sorted.size() == 1 ? 0 : place].token);
  }
}

TEST(Sampler, GreedyTakesTheFirstOfEqualLogits) {
  std::vector<float> logits{1.f, 5.f, 5.f, -2.f};
  EXPECT_EQ(Sampler({}).pick(logits, {}), 1);
}

TEST(Sampler, TheSameSeedGivesTheSameTokens) {
  KINORA_FRESH_RANDOM(random);
  SamplingOptions options;
  options.temperature = 1.5;
  options.seed = random.next();
  Sampler one(options), two(options);
  for (int i = 0; i < 100; ++i) {
    std::vector<float> a = testing::random_floats(random, 50);
    std::vector<float> b = a;
    EXPECT_EQ(one.pick(a, {}), two.pick(b, {}));
  }
}

TEST(Sampler, ImpossibleOptionsAreNamed) {
  const auto refuses = [](auto change, const std::string& name) {
    SamplingOptions options;
    change(options);
    try {
      Sampler sampler(options);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  };
  refuses([](auto& o) { o.temperature = -1; }, "temperature");
  refuses([](auto& o) { o.temperature = NAN; }, "temperature");
  refuses([](auto& o) { o.top_k = -1; }, "top-k");
  refuses([](auto& o) { o.top_p = 0; }, "top-p");
  refuses([](auto& o) { o.top_p = 1.5; }, "top-p");
  refuses([](auto& o) { o.min_p = -0.1; }, "min-p");
  refuses([](auto& o) { o.repetition_penalty = 0; }, "repetition penalty");
}

// The row may lie on the CPU or on a GPU, where only some candidates are fetched.
TEST(Sampler, PicksTheSameWhereverTheLogitsLie) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  std::vector<Context> contexts{Context(pool)};
  for (size_t i = 0; i < cuda_devices().size(); ++i) {
    contexts.emplace_back(pool, Device::cuda(static_cast<int>(i)));
  }
  std::vector<SamplingOptions> choices(7);
  choices[1] = {.temperature = 0.8, .top_k = 20, .seed = 5};
  choices[2] = {.temperature = 0.7, .top_p = 0.9, .seed = 6};
  choices[3] = {.temperature = 1.3, .top_k = 50, .top_p = 0.8, .min_p = 0.01, .seed = 7};
  choices[4] = {.temperature = 1, .min_p = 0.1, .seed = 8};
  choices[5] = {.temperature = 1, .seed = 9};                   // nothing is left out
  choices[6] = {.temperature = 30, .top_p = 0.99, .seed = 10};  // nearly nothing
  const std::vector<int32_t> history{1, 2, 3};
  for (const int64_t n : {1, 50, 5001}) {
    for (const SamplingOptions& options : choices) {
      std::vector<Sampler> samplers(contexts.size() + 1, Sampler(options));
      for (int draw = 0; draw < (testing::sanitized() ? 1 : 20); ++draw) {
        std::vector<float> logits = testing::random_floats(random, n);
        for (float& logit : logits) logit *= 4;
        Tensor row(DType::f32, {1, n});
        std::copy(logits.begin(), logits.end(), row.data<float>());
        const int32_t expected = samplers.back().pick(logits, history);
        for (size_t i = 0; i < contexts.size(); ++i) {
          Tensor there = row.clone().to(contexts[i].device);
          EXPECT_EQ(samplers[i].pick(contexts[i], there.view()[0], history), expected)
              << to_string(contexts[i].device) << ", temperature " << options.temperature;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kinora
