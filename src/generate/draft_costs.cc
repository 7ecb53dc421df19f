#include "generate/draft_costs.h"

#include <algorithm>

namespace kinora {
namespace {

constexpr double fading = 0.97;      // of a measurement with each later one
constexpr double draft_share = 0.2;  // of a plain pass: a draft's run, before one was measured
constexpr double outlier = 3;        // times what was expected: something else took the time
constexpr int64_t trial_steps = 8;
// Plain passes that drafting may lose before it rests: at first, and once it has shown its worth.
constexpr double trial_patience = 2.5, patience = 5;
// Of all time. After a loss, plain steps follow until it is that little.
constexpr double allowed_loss = 0.015;

void blend(double& value, double fresh) {
  value = value == 0 ? fresh : value + 0.15 * (std::min(fresh, outlier * value) - value);
}

}  // namespace

void DraftCosts::note_pass(int64_t tokens, double seconds) {
  const auto add = [&](double count, double time) {
    weight_ += 1;
    tokens_ += count;
    squares_ += count * count;
    seconds_ += time;
    products_ += count * time;
  };
  const auto count = static_cast<double>(tokens);
  if (weight_ == 0) {  // two points on the line that is assumed
    const double plain = seconds / (1 + token_share_ * (count - 1));
    add(1, plain);
    add(9, plain * (1 + 8 * token_share_));
  } else {
    seconds = std::min(seconds, outlier * pass(tokens));
  }
  for (double* sum : {&weight_, &tokens_, &squares_, &seconds_, &products_}) *sum *= fading;
  add(count, seconds);
}

double DraftCosts::pass(int64_t tokens) const {
  if (weight_ == 0) return 0;
  const double mean_tokens = tokens_ / weight_, mean_seconds = seconds_ / weight_;
  const double spread = squares_ / weight_ - mean_tokens * mean_tokens;
  const double together = products_ / weight_ - mean_tokens * mean_seconds;
  const double slope = spread > 1e-9 ? std::max(0.0, together / spread) : 0;
  const double line = mean_seconds + slope * (static_cast<double>(tokens) - mean_tokens);
  return std::max(line, 0.1 * mean_seconds);
}

void DraftCosts::note_first(double seconds) { blend(first_, seconds); }
void DraftCosts::note_level(double seconds) { blend(level_, seconds); }

void DraftCosts::note_growth(double above, double below) {
  if (above > 0) growth_ += 0.1 * (std::min(1.0, below / above) - growth_);
}

void DraftCosts::note_step(double seconds, int64_t right, double promised) {
  justified_ = fading * justified_ + static_cast<double>(right);
  promised_ = fading * promised_ + promised;
  const double most = outlier * (pass(16) + draft_seconds(first_, draft_share) +
                                 4 * draft_seconds(level_, draft_share));
  // Gains are not saved up: what it once brought does not excuse what it costs now.
  loss_ =
      std::max(0.0, loss_ + std::min(seconds, most) - (1 + static_cast<double>(right)) * pass(1));
  ++drafted_steps_;
}

double DraftCosts::draft_seconds(double measured, double share) const {
  return measured > 0 ? measured : share * pass(1);
}

double DraftCosts::rate(double tokens, int64_t checked, double drafting) const {
  return (1 + std::clamp(justified_ / promised_, 0.1, 1.5) * tokens) /
         (pass(1 + checked) + drafting);
}

int64_t DraftCosts::worth_checking(std::span<const double> confidences) const {
  if (weight_ == 0) return std::ssize(confidences);
  const double drafting = draft_seconds(first_, draft_share) + draft_seconds(level_, draft_share);
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

bool DraftCosts::worth_going_on(std::span<const double> frontier,
                                std::span<const double> all) const {
  if (weight_ == 0) return true;
  const double level = draft_seconds(level_, draft_share);
  const double sunk = draft_seconds(first_, draft_share);
  const int64_t checked = worth_checking(all);
  double tokens = 0, reach = 0;
  for (const double confidence : all.first(static_cast<size_t>(checked))) tokens += confidence;
  // Of the next level at most one guess below each of the frontier is counted.
  double best = 0;
  int64_t below = 0;
  for (const double confidence : frontier) {
    reach += growth_ * confidence;
    ++below;
    best = std::max(best, rate(tokens + reach, checked + below, sunk + level));
  }
  return best > rate(tokens, checked, sunk);
}

bool DraftCosts::try_now() {
  if (rest_ > 0) {
    --rest_;
    return false;
  }
  const double plain = pass(1);
  if (loss_ <= (drafted_steps_ < trial_steps ? trial_patience : patience) * plain) return true;
  rest_ = static_cast<int64_t>(loss_ / (allowed_loss * plain));
  loss_ = 0;
  drafted_steps_ = 0;
  return rest_-- <= 0;
}

}  // namespace kinora
