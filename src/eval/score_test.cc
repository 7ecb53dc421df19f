#include "eval/score.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/random_data.h"

namespace kinora {
namespace {

EvalItem open_question(std::vector<std::string> answers) {
  EvalItem item;
  item.answers = std::move(answers);
  return item;
}

TEST(Score, OpenAnswersCompareByTheirWords) {
  const EvalItem item = open_question({"The red car", "car"});
  EXPECT_EQ(score_answer(item, "red car."), 1);
  EXPECT_EQ(score_answer(item, " A Red-Car "), 1);
  EXPECT_EQ(score_answer(item, "Car"), 1);
  EXPECT_EQ(score_answer(item, "blue car"), 0);
  EXPECT_EQ(score_answer(item, ""), 0);
}

TEST(Score, AnswersMayHoldTheRightOneAmongOthers) {
  EvalItem item = open_question({"The number 47", ""});
  EXPECT_EQ(score_answer(item, "I think it is number 47, yes."), 0);
  item.contains = true;
  EXPECT_EQ(score_answer(item, "I think it is number 47, yes."), 1);
  EXPECT_EQ(score_answer(item, "Number 47"), 1);
  EXPECT_EQ(score_answer(item, "number 475"), 0);
  EXPECT_EQ(score_answer(item, "a number, 4 7"), 0);
  EXPECT_EQ(score_answer(item, "47"), 0);
  EXPECT_EQ(score_answer(item, ""), 0);
}

TEST(Score, OptionsAreFoundByLetterOrText) {
  const std::vector<std::string> options{"A dog", "two cats", "Bees"};
  EXPECT_EQ(chosen_option(options, "B"), 1);
  EXPECT_EQ(chosen_option(options, "(C) Bees"), 2);
  EXPECT_EQ(chosen_option(options, "B. two cats"), 1);
  EXPECT_EQ(chosen_option(options, "Two cats."), 1);
  EXPECT_EQ(chosen_option(options, "Bees"), 2);  // not the letter B
  EXPECT_EQ(chosen_option(options, "D"), -1);
  EXPECT_EQ(chosen_option(options, ""), -1);
  EXPECT_EQ(chosen_option(options, "I do not know"), -1);
}

TEST(Score, EventsCountByF1) {
  const std::vector<std::string> events{"A cat comes", "It goes", "It goes"};
  EXPECT_DOUBLE_EQ(event_f1(events, "A cat comes. It goes. It goes."), 1);
  EXPECT_DOUBLE_EQ(event_f1(events, "It goes. A dog barks"), 2.0 / 5);
  EXPECT_DOUBLE_EQ(event_f1(events, ""), 0);
}

TEST(Score, TheWilsonIntervalCoversTheTruth) {
  KINORA_FRESH_RANDOM(random);
  int covered = 0;
  constexpr int rounds = 2000;
  for (int round = 0; round < rounds; ++round) {
    const double truth = random.uniform(0.05, 0.95);
    int successes = 0;
    for (int i = 0; i < 60; ++i) successes += random.uniform() < truth;
    const ConfidenceInterval interval = wilson_interval(successes, 60);
    covered += interval.low <= truth && truth <= interval.high;
  }
  EXPECT_NEAR(covered / double{rounds}, 0.95, 0.025);
  EXPECT_EQ(wilson_interval(0, 0).high, 1);
}

TEST(Score, ThePairedTestMatchesTheBinomial) {
  EXPECT_DOUBLE_EQ(paired_probability(0, 0), 1);
  EXPECT_NEAR(paired_probability(0, 5), 2.0 / 32, 1e-12);
  EXPECT_NEAR(paired_probability(1, 7), 2 * (1.0 + 8.0) / 256, 1e-12);
  EXPECT_DOUBLE_EQ(paired_probability(4, 4), 1);
  EXPECT_LT(paired_probability(900, 1100), 1e-4);
}

}  // namespace
}  // namespace kinora
