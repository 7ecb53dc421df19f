#include "generate/draft_costs.h"

#include <algorithm>
#include <utility>

namespace kinora {
namespace {

constexpr double fading = 0.97;  // of a measurement with each later one
constexpr double outlier = 3;    // times what was expected: something else took the time
constexpr int64_t trial_steps = 8;
// Plain passes that drafting may lose before it rests: at first, and once it has shown its worth.
constexpr double trial_patience = 2.5, patience = 4;
// Of gains, in plain passes, what later losses may use up before it rests; whether guesses come
// true varies much from step to step. And what a next text begins with.
constexpr double saved = 8, lent = 4;
// Drafting must look this much faster than plain passes to count as a gain. A plain pass measured
// between drafts is slower than one of a session that never drafts (states are taken out of it; on
// a GPU a quarter was seen), so what looks like a small gain is a loss.
constexpr double margin = 1.15;
// Steps until a plain one is measured, at first and later.
constexpr int64_t first_plain = 2, next_plain = 64;
// Of all time. After a loss, plain steps follow until it is that little: half of what drafting may
// cost, as it is tried again after that, and what was lost is known only roughly.
constexpr double allowed_loss = 0.01;
constexpr int64_t longest_rest = 4096;
constexpr int64_t short_rest = 64;  // of a draft that has brought more than it cost

}  // namespace

double CostLine::share(int64_t tokens) const {
  return 1 + token_share_ * static_cast<double>(tokens - 1);
}

void CostLine::add(double tokens, double seconds) {
  weight_ += 1;
  tokens_ += tokens;
  squares_ += tokens * tokens;
  seconds_ += seconds;
  products_ += tokens * seconds;
}

void CostLine::note(int64_t tokens, double seconds) {
  if (!known()) {  // two points on the line that was assumed
    const double one = seconds / share(tokens);
    add(1, one);
    add(9, one * share(9));
  } else {
    seconds = std::min(seconds, outlier * at(tokens));
  }
  for (double* sum : {&weight_, &tokens_, &squares_, &seconds_, &products_}) *sum *= fading;
  add(static_cast<double>(tokens), seconds);
}

double CostLine::at(int64_t tokens) const {
  const double mean_tokens = tokens_ / weight_, mean_seconds = seconds_ / weight_;
  const double spread = squares_ / weight_ - mean_tokens * mean_tokens;
  const double together = products_ / weight_ - mean_tokens * mean_seconds;
  const double slope = spread > 1e-9 ? std::max(0.0, together / spread) : 0;
  const double line = mean_seconds + slope * (static_cast<double>(tokens) - mean_tokens);
  return std::max(line, 0.1 * mean_seconds);
}

DraftCosts DraftCosts::for_other_text() const {
  DraftCosts known = *this;
  known.loss_ = -std::clamp(balance_, 0.0, lent * pass(1));
  known.balance_ = 0;
  known.drafted_steps_ = known.rest_ = 0;
  known.begun_ = false;
  return known;
}

void DraftCosts::note_pass(int64_t tokens, double seconds) {
  passes_.note(run_(tokens), seconds);
  ++since_plain_;
  if (tokens > 1) return;
  plain_ = plain_ == 0 ? seconds : plain_ + 0.3 * (std::min(seconds, outlier * plain_) - plain_);
  since_plain_ = 0;
}

double DraftCosts::pass(int64_t tokens) const {
  if (!passes_.known()) return 0;
  return tokens == 1 && plain_ > 0 ? plain_ : passes_.at(run_(tokens));
}

void DraftCosts::note_growth(double above, double below) {
  if (above > 0) growth_ += 0.1 * (std::min(1.0, below / above) - growth_);
}

void DraftCosts::note_step(double drafting, double passing, int64_t tokens, int64_t right,
                           double promised) {
  justified_ = fading * justified_ + static_cast<double>(right);
  promised_ = fading * promised_ + promised;
  ++drafted_steps_;
  if (!passes_.known()) return;
  // A machine that is busy with something else is so for plain passes too. A little slower than the
  // line says is no sign of that: lines are learnt.
  const double usually = passes_.at(run_(tokens)), slower = passing / usually;
  const double busy = slower > 1.5 ? std::min(slower, outlier) : 1;
  const double brought = (1 + static_cast<double>(right)) * pass(1);
  const double checking = std::min(passing, outlier * usually);
  // Something else may take the time once. What takes long again and again is the draft.
  const double usual = drafting_ == 0 ? drafting : std::min(drafting, outlier * drafting_);
  double lost = margin * (usual + checking) - brought * busy;
  if (!std::exchange(begun_, true)) {
    // With its first guess it reads all of the text, which it need not do again.
    lost = std::min(lost, trial_patience * pass(1));
  } else {
    drafting_ = drafting_ == 0 ? drafting : drafting_ + 0.3 * (usual - drafting_);
  }
  balance_ += brought - margin * (drafting + checking);
  // Few gains are saved up: what it once brought does not excuse for long what it costs now.
  loss_ = std::max(-saved * pass(1), loss_ + lost);
}

// In seconds, or where there are none yet in plain passes.
double DraftCosts::pass_or_share(int64_t tokens) const {
  return passes_.known() ? pass(tokens) : passes_.share(tokens);
}
double DraftCosts::level_or_share(int64_t tokens) const {
  if (passes_.known() && levels_.known()) return levels_.at(tokens);
  return shares_.level * pass_or_share(1) * levels_.share(tokens);
}

double DraftCosts::likely(double promised) const {
  return std::clamp(justified_ / promised_, 0.1, 1.5) * promised;
}

double DraftCosts::rate(double promised, int64_t checked, double drafting) const {
  return (1 + likely(promised)) / (pass_or_share(1 + checked) + drafting);
}

bool DraftCosts::could_pay(int64_t guesses, double level) const {
  const auto count = static_cast<double>(guesses);
  return 1 + count > margin * (1 + (level + shares_.checked) * count);
}

int64_t DraftCosts::worth_checking(std::span<const double> confidences, double spent) const {
  const double drafting = passes_.known() ? spent : 2 * level_or_share(1);
  double tokens = 0, best_rate = rate(0, 0, drafting);
  int64_t best = 0;
  for (int64_t i = 0; i < std::ssize(confidences); ++i) {
    tokens += confidences[static_cast<size_t>(i)];
    const double now = rate(tokens, i + 1, drafting);
    if (now <= best_rate) continue;
    best_rate = now;
    best = i + 1;
  }
  return best;
}

int64_t DraftCosts::worth_going_on(std::span<const double> deepest, std::span<const double> all,
                                   int64_t along, double spent) const {
  const double drafting = passes_.known() ? spent : 2 * level_or_share(1);
  const int64_t checked = worth_checking(all, spent);
  double tokens = 0;
  for (const double confidence : all.first(static_cast<size_t>(checked))) tokens += confidence;
  double best_rate = rate(tokens, checked, drafting);
  int64_t best = 0;
  for (int64_t i = 0; i < std::ssize(deepest); ++i) {
    tokens += growth_ * deepest[static_cast<size_t>(i)];  // the best guess below each is counted
    const double level = level_or_share(i == 0 ? 1 : i + 1 + along);
    const double now = rate(tokens, checked + i + 1, drafting + level);
    if (now <= best_rate) continue;
    best_rate = now;
    best = i + 1;
  }
  return best;
}

bool DraftCosts::try_now() {
  if (rest_ > 0) {
    --rest_;
    return false;
  }
  if (since_plain_ >= (plain_ == 0 ? first_plain : next_plain)) return false;
  const double plain = pass(1);
  if (loss_ <= (drafted_steps_ < trial_steps ? trial_patience : patience) * plain) return true;
  rest_ = std::min(balance_ > 0 ? short_rest : longest_rest,
                   static_cast<int64_t>(loss_ / (allowed_loss * plain)));
  loss_ = 0;
  drafted_steps_ = 0;
  return rest_-- <= 0;
}

}  // namespace kinora
