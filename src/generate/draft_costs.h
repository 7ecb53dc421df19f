// What drafting costs and what it brings, learnt as it goes: how long a pass over so many tokens
// takes, how long the draft takes, how often its confidence is justified. From that follows how
// many guesses are worth checking, whether to go a level deeper, and whether to draft at all. Knows
// no clock: who uses it (sparrow.h) says what took how long.
#pragma once

#include <cstdint>
#include <span>

namespace kinora {

class DraftCosts {
 public:
  // Before anything was measured, one more token in a pass is taken to add this share of a plain
  // pass.
  explicit DraftCosts(double token_share) : token_share_(token_share) {}

  void note_pass(int64_t tokens, double seconds);  // of the target
  void note_first(double seconds);                 // of the draft: the newest tokens
  void note_level(double seconds);                 // one level of a tree
  // A whole step: seconds of draft and pass, guesses that were right, and how many the confidences
  // had promised.
  void note_step(double seconds, int64_t right, double promised);

  // Seconds of a pass; 0 before the first one.
  double pass(int64_t tokens) const;

  // How many of the guesses, likeliest first, bring the most tokens a second. `confidences` are
  // probabilities.
  int64_t worth_checking(std::span<const double> confidences) const;
  // Whether another level below guesses of these confidences is likely to pay.
  // `all` are those of the tree so far, likeliest first.
  bool worth_going_on(std::span<const double> frontier, std::span<const double> all) const;
  // A level below a frontier of this total confidence had this total itself.
  void note_growth(double above, double below);

  // Whether the next step should draft. Asked once a step: where drafting has not paid, it is tried
  // again after a while.
  bool try_now();

 private:
  double rate(double tokens, int64_t checked, double drafting) const;
  double draft_seconds(double measured, double share) const;

  double token_share_;
  // Σ over passes, older ones fading: a line through (tokens, seconds).
  double weight_ = 0, tokens_ = 0, squares_ = 0, seconds_ = 0, products_ = 0;
  double first_ = 0, level_ = 0;
  double justified_ = 4, promised_ = 4;  // as if four promised guesses had come true
  double growth_ = 0.6;
  double loss_ = 0;  // seconds that drafting has cost more than it brought, lately
  int64_t drafted_steps_ = 0;
  int64_t rest_ = 0;  // steps until drafting is tried again
};

}  // namespace kinora
