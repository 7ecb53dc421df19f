// What drafting costs and what it brings, learnt as it goes: how long a pass over n tokens takes,
// how long a level of the draft takes, how often its confidence is justified. From that follows how
// many guesses are worth checking, how many to go on from, and whether to draft at all: an answer
// of a few thousand tokens takes at most 2 % longer than without, whatever the draft. Knows no
// clock: who uses it (draft_pace.h) says what took how long.
#pragma once

#include <cstdint>
#include <span>

namespace kinora {

// Seconds by a number of tokens: a line through what was measured, older measurements fading.
class CostLine {
 public:
  // Until something is known, each further token adds this share of the first one's time.
  explicit CostLine(double token_share) : token_share_(token_share) {}

  void note(int64_t tokens, double seconds);
  bool known() const { return weight_ > 0; }
  double share(int64_t tokens) const;  // of one token's time, before anything is known
  double at(int64_t tokens) const;

 private:
  void add(double tokens, double seconds);

  double token_share_;
  double weight_ = 0, tokens_ = 0, squares_ = 0, seconds_ = 0, products_ = 0;  // Σ over all
};

class DraftCosts {
 public:
  // Before anything was measured, in shares of a plain pass: one more token in a pass, one token
  // through the draft, each further one.
  struct Shares {
    double checked = 0.25;
    double level = 0.2;
    double drafted = 0.25;  // of that
  };
  // How many tokens a pass runs for so many that it is given: where graphs exist for some numbers
  // only, further guesses cost nothing up to the next.
  using TokensRun = int64_t (*)(int64_t);
  explicit DraftCosts(
      const Shares& shares, TokensRun run = [](int64_t tokens) { return tokens; })
      : shares_(shares), run_(run), passes_(shares.checked), levels_(shares.drafted) {}

  // The same knowledge for another text. Of what became of drafting in this one only what it
  // brought counts, a little: so much may be lost before it rests.
  DraftCosts for_other_text() const;

  void note_pass(int64_t tokens, double seconds);  // of the target
  void note_level(int64_t tokens, double seconds) { levels_.note(tokens, seconds); }
  // A level below guesses of this total confidence had this total itself, the best of each counted.
  void note_growth(double above, double below);
  // A whole step: seconds of the draft and of the pass, tokens in the pass, guesses that were
  // right, and how many the confidences had promised. Before the pass itself is noted.
  void note_step(double drafting, double passing, int64_t tokens, int64_t right, double promised);

  // Seconds of a pass; 0 before the first one.
  double pass(int64_t tokens) const;

  // False if so many guesses, each of which takes this share of a plain pass to make, would not
  // even pay if all of them came true.
  bool could_pay(int64_t guesses, double level) const;
  // How many of the guesses, likeliest first, bring the most tokens a second, now that this much
  // time was spent on them. Confidences are probabilities.
  int64_t worth_checking(std::span<const double> confidences, double spent) const;
  // From how many of the deepest guesses, likeliest first, to go on; 0: it does not pay. `all` is
  // the tree so far, likeliest first. `along` further tokens run with more than one of them.
  int64_t worth_going_on(std::span<const double> deepest, std::span<const double> all,
                         int64_t along, double spent) const;

  // Whether the next step should draft. Asked once a step: where drafting has not paid, it is tried
  // again after a while, and now and then a plain pass is measured to know whether it does.
  bool try_now();

 private:
  double likely(double promised) const;  // of promised tokens, those that will be right
  double rate(double promised, int64_t checked, double drafting) const;
  double pass_or_share(int64_t tokens) const;
  double level_or_share(int64_t tokens) const;

  Shares shares_;
  TokensRun run_;
  CostLine passes_, levels_;
  double justified_ = 4, promised_ = 4;  // as if four promised guesses had come true
  double growth_ = 0.6;
  double plain_ = 0;         // seconds of a pass over one token, as measured; 0: never
  int64_t since_plain_ = 0;  // steps
  double drafting_ = 0;      // seconds of a step's draft, usually; 0: not known
  bool begun_ = false;       // a draft of this text was paid for
  double loss_ = 0;          // seconds that drafting has cost more than it brought, lately
  double balance_ = 0;       // and that it has brought more than it cost, in all of this text
  int64_t drafted_steps_ = 0;
  int64_t rest_ = 0;  // steps until drafting is tried again
};

}  // namespace kinora
