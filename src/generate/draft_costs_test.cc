// Drafting economics on made-up machines: simulated time, no clock.
#include "generate/draft_costs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "support/random_data.h"

namespace kinora {
namespace {

// A machine and a draft: seconds of everything, and how often the best guess is right.
struct Machine {
  double plain = 0.01;
  double token = 0.001;  // one more in a pass
  double level = 0.002;
  double right = 0.8;       // each guess of a chain
  double confidence = 0.8;  // what the draft believes
  double busy = 0;          // share of steps in which everything takes three times as long
};

// Seconds of an answer, as draft_pace.cc would make it with chains.
double simulate(const Machine& machine, int64_t tokens, Random& random) {
  DraftCosts costs({});
  double time = 0;
  while (tokens > 0) {
    std::vector<double> confidences;
    double drafting = 0;
    const double slow = random.uniform() < machine.busy ? 3 : 1;
    const bool tries = costs.try_now();
    int64_t checked = 0, right = 0;
    if (tries) {
      do {
        const double before = confidences.empty() ? 1 : confidences.back();
        confidences.push_back(before * machine.confidence);
        drafting += slow * machine.level;
        costs.note_level(1, slow * machine.level);
        costs.note_growth(1, machine.confidence);
      } while (confidences.size() < 8 &&
               costs.worth_going_on(std::span(confidences).last(1), confidences, 0, drafting) > 0);
      checked = costs.worth_checking(confidences, drafting);
      while (right < checked && random.uniform() < machine.right) ++right;
    }
    const double pass = slow * (machine.plain + machine.token * static_cast<double>(checked));
    const double promised =
        std::accumulate(confidences.begin(), confidences.begin() + checked, 0.0);
    if (tries) costs.note_step(drafting, pass, 1 + checked, right, promised);
    costs.note_pass(1 + checked, pass);
    time += drafting + pass;
    tokens -= 1 + right;
  }
  return time;
}

TEST(DraftCosts, WhatIsAsDearAsThePassItSavesCannotPay) {
  DraftCosts::Shares shares;
  for (const double checked : {0.0, 0.01, 0.25}) {
    shares.checked = checked;
    const DraftCosts costs(shares);
    for (const int64_t guesses : {1, 2, 5, 17}) {
      EXPECT_FALSE(costs.could_pay(guesses, 1));
      EXPECT_FALSE(costs.could_pay(guesses, 1 - checked));
      EXPECT_TRUE(costs.could_pay(guesses, 0.1));
    }
    // The more guesses, the dearer each may be.
    EXPECT_TRUE(costs.could_pay(16, 0.75 - checked));
    EXPECT_FALSE(costs.could_pay(1, 0.75 - checked));
  }
}

TEST(DraftCosts, PassesLieOnALine) {
  KINORA_FRESH_RANDOM(random);
  DraftCosts costs({});
  EXPECT_EQ(costs.pass(1), 0);
  for (int i = 0; i < 200; ++i) {
    const int64_t tokens = 1 + random.below(30);
    costs.note_pass(tokens, 0.02 + 0.003 * static_cast<double>(tokens));
  }
  for (const int64_t tokens : {1, 8, 30}) {
    EXPECT_NEAR(costs.pass(tokens), 0.02 + 0.003 * static_cast<double>(tokens), 1e-3);
  }
  // One that something else delayed changes little.
  const double before = costs.pass(4);
  costs.note_pass(4, 100);
  EXPECT_LT(costs.pass(4), 1.3 * before);
}

TEST(DraftCosts, ChecksAsManyAsBringTheMostTokensASecond) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 100; ++round) {
    DraftCosts costs({});
    const double plain = 0.01, token = 0.01 * random.uniform();
    const double draft = 0.001;
    for (int i = 0; i < 300; ++i) {
      const int64_t tokens = 1 + random.below(40);
      costs.note_pass(tokens, plain + token * static_cast<double>(tokens - 1));
    }
    std::vector<double> confidences(30);
    for (double& confidence : confidences) confidence = random.uniform();
    std::sort(confidences.rbegin(), confidences.rend());
    double best = 0, sum = 0;
    std::vector<double> rates;
    for (size_t count = 0; count <= confidences.size(); ++count) {
      if (count > 0) sum += confidences[count - 1];
      rates.push_back((1 + sum) / (plain + token * static_cast<double>(count) + draft));
      best = std::max(best, rates.back());
    }
    const int64_t chosen = costs.worth_checking(confidences, draft);
    EXPECT_GT(rates[static_cast<size_t>(chosen)], 0.9 * best);
  }
}

// Before anything was measured it begins with little where tokens are dear, with much where not.
// Passes run four tokens at a time: an unlikely guess is checked where it fills up a pass, and not
// where it makes it longer.
TEST(DraftCosts, GuessesThatFillUpAPassCostNothing) {
  DraftCosts costs({}, [](int64_t tokens) { return (tokens + 3) / 4 * 4; });
  for (int i = 0; i < 100; ++i) {
    for (const int64_t tokens : {2, 4, 6, 8, 9, 12}) {
      costs.note_pass(tokens, 1 + 0.25 * static_cast<double>((tokens + 3) / 4));
    }
    costs.note_pass(1, 1.25);
  }
  EXPECT_NEAR(costs.pass(5), 1.5, 1e-3);
  EXPECT_EQ(costs.pass(5), costs.pass(8));
  const std::vector<double> one_likely{0.9, 0.02, 0.01, 0.01, 0.01, 0.01};
  EXPECT_EQ(costs.worth_checking(one_likely, 0), 3);
  const std::vector<double> five_likely{0.9, 0.9, 0.9, 0.9, 0.9, 0.01, 0.01, 0.01, 0.01};
  EXPECT_EQ(costs.worth_checking(five_likely, 0), 7);
}

TEST(DraftCosts, FirstStepsFitTheMachine) {
  const std::vector<double> confidences{0.9, 0.8, 0.6, 0.5, 0.3, 0.2, 0.1, 0.05, 0.05};
  const DraftCosts dear({0.3, 0.2, 0.25}), cheap({0.005, 0.1, 0.01});
  EXPECT_LE(dear.worth_checking(confidences, 0), 4);
  EXPECT_GE(cheap.worth_checking(confidences, 0), 8);
  const std::vector<double> level{0.8, 0.1, 0.05, 0.02};
  EXPECT_LE(dear.worth_going_on(level, level, 2, 0), 1);
  EXPECT_GE(cheap.worth_going_on(level, level, 2, 0), 3);
  const std::vector<double> hopeless{0.02, 0.01};
  EXPECT_EQ(dear.worth_going_on(hopeless, hopeless, 2, 0), 0);
}

// How wide a level is follows from what its tokens cost.
TEST(DraftCosts, GoesOnFromAsManyAsPay) {
  KINORA_FRESH_RANDOM(random);
  for (const double token : {0.00002, 0.004}) {
    DraftCosts costs({});
    for (int i = 0; i < 200; ++i) {
      const int64_t tokens = 1 + random.below(20);
      costs.note_pass(tokens, 0.01 + token * static_cast<double>(tokens - 1));
      costs.note_level(tokens, 0.001 + token * static_cast<double>(tokens - 1));
    }
    const std::vector<double> level{0.5, 0.2, 0.1, 0.08};
    const int64_t width = costs.worth_going_on(level, level, 1, 0.001);
    EXPECT_GE(width, token < 0.001 ? 4 : 0);
    EXPECT_LE(width, token < 0.001 ? 4 : 1);
  }
}

TEST(DraftCosts, APayingDraftIsUsed) {
  KINORA_FRESH_RANDOM(random);
  Machine machine;
  const double plain = 6000 * machine.plain;
  EXPECT_LT(simulate(machine, 6000, random), 0.75 * plain);  // 0.65 with the best length
}

// Others on the machine slow plain passes down as well: no reason to rest.
TEST(DraftCosts, ABusyMachineIsNoReasonToRest) {
  KINORA_FRESH_RANDOM(random);
  Machine machine;
  machine.busy = 0.3;
  const double plain = 6000 * machine.plain * (1 + 2 * machine.busy);
  EXPECT_LT(simulate(machine, 6000, random), 0.85 * plain);
}

// Whatever a draft and the machine are like: the first trials, and those that follow after rests,
// cost no more than 2 % together.
TEST(DraftCosts, ADraftThatDoesNotPayCostsTwoPercentAtMost) {
  KINORA_FRESH_RANDOM(random);
  constexpr int64_t tokens = 4000;
  double worst = 0;
  for (const double token : {0.0001, 0.001, 0.003, 0.01}) {  // up to a whole pass
    for (const double level : {0.0005, 0.002, 0.01, 0.03, 0.1}) {
      for (const double right : {0.0, 0.2, 0.5, 0.8}) {
        for (const double confidence : {0.2, 0.8, 0.95}) {  // whatever comes true
          const Machine machine{0.01, token, level, right, confidence, 0};
          const double share =
              simulate(machine, tokens, random) / (static_cast<double>(tokens) * machine.plain);
          EXPECT_LT(share, 1.02) << "another token " << token << " s, a level " << level
                                 << " s, right " << right << ", believed " << confidence;
          worst = std::max(worst, share);
        }
      }
    }
  }
  EXPECT_GT(worst, 1);  // some do not pay
}

// What took long once is not held against a draft; what does so every time is.
TEST(DraftCosts, ARestFitsTheLoss) {
  const auto rest_after = [](std::vector<double> drafting) {
    DraftCosts costs({});
    for (int i = 0; i < 20; ++i) {
      costs.try_now();
      costs.note_pass(1, 1);
    }
    for (const double seconds : drafting) {
      if (costs.try_now()) costs.note_step(seconds, 1.2, 4, 0, 2);
      costs.note_pass(4, 1.2);
    }
    int64_t rest = 0;
    while (rest < 10'000 && !costs.try_now()) {
      ++rest;
      costs.note_pass(1, 1);
    }
    return rest;
  };
  const int64_t cheap = rest_after(std::vector<double>(8, 0.5));
  const int64_t once = rest_after({100, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5});
  const int64_t dear = rest_after(std::vector<double>(8, 20));
  EXPECT_GT(cheap, 100);
  EXPECT_LT(once, 2 * cheap);
  EXPECT_GT(dear, 1500);
}

// A session begins with what others have measured, and makes its own trials.
TEST(DraftCosts, AreKnownToTheNextTextWithoutItsLosses) {
  DraftCosts costs({0.25, 0.2, 0.25});
  for (int i = 0; i < 200; ++i) {
    if (costs.try_now()) costs.note_step(5, 2, 4, 0, 3);
    costs.note_pass(1, 1);
  }
  int trials = 0;
  DraftCosts same = costs, next = costs.for_other_text();
  for (int i = 0; i < 3; ++i) trials += same.try_now();
  EXPECT_EQ(trials, 0) << "it rests where nothing came of it";
  EXPECT_TRUE(next.try_now());
  EXPECT_EQ(next.pass(1), costs.pass(1));
  EXPECT_EQ(next.pass(8), costs.pass(8));
}

// What drafting has brought in one text may be lost in the next before it rests, up to a limit;
// what it has cost may not.
TEST(DraftCosts, GainsAreLentToTheNextText) {
  const auto after = [](int64_t right) {
    DraftCosts costs({});
    for (int i = 0; i < 60; ++i) {
      const bool tries = costs.try_now();
      if (tries) costs.note_step(0.2, 1.2, 4, right, 3);
      costs.note_pass(tries ? 4 : 1, tries ? 1.2 : 1);
    }
    return costs.for_other_text();
  };
  // Drafts of which nothing comes true, until two steps in a row are plain.
  const auto drafts_until_rest = [](DraftCosts costs) {
    int64_t drafts = 0;
    for (int plain = 0; plain < 2 && drafts < 1000;) {
      const bool tries = costs.try_now();
      if (tries) costs.note_step(0.2, 1.2, 4, 0, 3);
      costs.note_pass(tries ? 4 : 1, tries ? 1.2 : 1);
      drafts += tries;
      plain = tries ? 0 : plain + 1;
    }
    return drafts;
  };
  const int64_t paid = drafts_until_rest(after(3)), lost = drafts_until_rest(after(0));
  EXPECT_GT(paid, lost + 4);
  EXPECT_LT(paid, 20);
  EXPECT_LT(lost, 8);
}

}  // namespace
}  // namespace kinora
