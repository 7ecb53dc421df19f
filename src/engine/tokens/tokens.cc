#include "engine/tokens/tokens.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/tokens/policies.h"

namespace kinora {
namespace {

TokenChoice read(std::string_view text) {
  const PolicyText parts = split_policy(text);
  return find_policy(parts.name, token_policies()).make(parts.settings);
}

bool applies(const TokenChoice& choice, const VisualPlan& plan) {
  return choice.prunes() && plan.source.modality == Modality::video;
}

}  // namespace

const PolicyPoint& tokens_point() {
  static const PolicyPoint point{.name = "tokens",
                                 .summary = "which visual tokens reach the decoder",
                                 .form = "NAME[:RATIO]",
                                 .initial = "all",
                                 .policies = infos_of(token_policies()),
                                 .check = [](std::string_view text) { read(text); }};
  return point;
}

TokenChoice parse_tokens(std::string_view text) {
  return in_words("tokens", text, [&] { return read(text); });
}

std::string to_string(const TokenChoice& choice) {
  if (!choice.prunes()) return "all";
  return std::string(choice.rule->name()) + ":" + share_text(choice.ratio);
}

int64_t kept_of_group(const TokenChoice& choice, int64_t tokens_per_unit, int64_t units,
                      bool first) {
  const int64_t tokens = units * tokens_per_unit;
  if (!choice.prunes() || tokens == 0) return tokens;
  const int64_t least = first ? tokens_per_unit : 1;
  return std::clamp<int64_t>(std::llround(choice.ratio * static_cast<double>(tokens)), least,
                             tokens);
}

int64_t kept_of_input(const TokenChoice& choice, const VisualPlan& plan, int64_t frames_per_group) {
  if (!applies(choice, plan) || plan.units == 0) return plan.tokens();
  const int64_t group = whole_units(frames_per_group, plan.frames_per_unit) / plan.frames_per_unit;
  const auto kept = [&](int64_t units, bool first) {
    return kept_of_group(choice, plan.tokens_per_unit, units, first);
  };
  if (plan.units <= group) return kept(plan.units, true) + plan.trailing_tokens;
  const int64_t groups = (plan.units - 1) / group;  // before the last
  return kept(group, true) + (groups - 1) * kept(group, false) +
         kept(plan.units - groups * group, false) + plan.trailing_tokens;
}

TokenPruner::TokenPruner(const TokenChoice& choice, const VisualPlan& plan, int64_t hidden)
    : choice_(choice), tokens_per_unit_(plan.tokens_per_unit), hidden_(hidden) {
  if (applies(choice, plan)) judge_ = choice.rule->begin(tokens_per_unit_);
}

std::vector<int32_t> TokenPruner::choose(const Context& context, ConstTensorView tokens,
                                         int64_t units) {
  std::vector<int32_t> places(static_cast<size_t>(tokens.size(0)));
  std::iota(places.begin(), places.end(), 0);
  if (!judge_ || units == 0) return places;
  const int64_t count = units * tokens_per_unit_;
  const int64_t kept =
      kept_of_group(choice_, tokens_per_unit_, units, std::exchange(first_, false));
  std::vector<float> scores =
      judge_->scores(context, tokens.rows(0, count).columns(0, hidden_), units, kept);
  for (float& score : scores) {
    if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();
  }
  const auto better = [&](int32_t a, int32_t b) {
    const float left = scores[static_cast<size_t>(a)], right = scores[static_cast<size_t>(b)];
    return left != right ? left > right : a < b;
  };
  const auto end = places.begin() + count;  // what trails the units stays
  std::nth_element(places.begin(), places.begin() + kept, end, better);
  places.erase(places.begin() + kept, end);
  std::sort(places.begin(), places.end());
  return places;
}

}  // namespace kinora
