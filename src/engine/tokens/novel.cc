// What the decoder has not seen at its place: tokens are taken one by one, each time the one that
// is least like all that were taken at the same place, in this group or last before it. Something
// that stays, comes back or flickers is taken once; something that drifts is taken anew when it has
// become another.
#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <utility>

#include "engine/tokens/changes.h"
#include "engine/tokens/policies.h"
#include "ops/cosine.h"
#include "ops/gather.h"

namespace kinora {
namespace {

class NovelJudge final : public TokenJudge {
 public:
  explicit NovelJudge(int64_t tokens_per_unit) : unit_(tokens_per_unit) {}

  std::vector<float> scores(const Context& context, ConstTensorView tokens, int64_t units,
                            int64_t kept) override {
    measure(context, tokens, units);
    const int64_t count = units * unit_;
    std::vector<float> nearest = known_;  // 1 − cosine to the nearest that was taken
    std::vector<float> order(static_cast<size_t>(count), 0);
    // A token's novelty only falls, so what stands at the top of the queue and is up to date is the
    // largest of all. Of equal ones the earlier is taken.
    using Entry = std::pair<float, int64_t>;
    std::priority_queue<Entry> queue;
    for (int64_t i = 0; i < count; ++i) queue.emplace(nearest[static_cast<size_t>(i)], -i);
    std::vector<int64_t> last(static_cast<size_t>(unit_), -1);
    for (int64_t taken = 0; taken < kept;) {
      const auto [novelty, minus] = queue.top();
      queue.pop();
      const int64_t token = -minus, place = token % unit_;
      if (novelty > nearest[static_cast<size_t>(token)]) {
        queue.emplace(nearest[static_cast<size_t>(token)], minus);
        continue;
      }
      order[static_cast<size_t>(token)] = static_cast<float>(count - taken++);
      last[static_cast<size_t>(place)] = std::max(last[static_cast<size_t>(place)], token);
      for (int64_t other = place; other < count; other += unit_) {
        if (other == token) continue;
        float& least = nearest[static_cast<size_t>(other)];
        least = std::min(least, apart(token, other));
      }
    }
    remember(context, tokens, last);
    return order;
  }

 private:
  // Compares the tokens of a group with each other and with what was taken last, place by place.
  void measure(const Context& context, ConstTensorView tokens, int64_t units) {
    const int64_t count = units * unit_;
    lags_.assign(1, {});
    for (int64_t lag = 1; lag < units; ++lag) {
      const int64_t pairs = count - lag * unit_;
      Tensor alike(DType::f32, {pairs}, context.device);
      cosine_rows(context, tokens.rows(lag * unit_, pairs), tokens.rows(0, pairs), alike);
      lags_.push_back(one_minus(alike));
    }
    known_.assign(static_cast<size_t>(count), std::numeric_limits<float>::infinity());
    if (!taken_.defined()) return;
    Tensor alike(DType::f32, {count}, context.device);
    for (int64_t i = 0; i < units; ++i) {
      cosine_rows(context, tokens.rows(i * unit_, unit_), taken_,
                  alike.view().rows(i * unit_, unit_));
    }
    known_ = one_minus(alike);
    for (float& known : known_) {
      if (std::isnan(known)) known = -std::numeric_limits<float>::infinity();
    }
  }

  float apart(int64_t a, int64_t b) const {
    const int64_t lag = (std::max(a, b) - std::min(a, b)) / unit_;
    return lags_[static_cast<size_t>(lag)][static_cast<size_t>(std::min(a, b))];
  }

  void remember(const Context& context, ConstTensorView tokens, const std::vector<int64_t>& last) {
    if (!taken_.defined()) {
      taken_ = Tensor::zeros(DType::f32, {unit_, tokens.size(1)}, context.device);
    }
    std::vector<int32_t> rows, places;
    for (int64_t place = 0; place < unit_; ++place) {
      const int64_t token = last[static_cast<size_t>(place)];
      if (token < 0) continue;
      rows.push_back(static_cast<int32_t>(token));
      places.push_back(static_cast<int32_t>(place));
    }
    if (rows.empty()) return;
    Tensor fresh(DType::f32, {std::ssize(rows), tokens.size(1)}, context.device);
    gather_rows(context, tokens, rows, fresh);
    scatter_rows(context, fresh, places, taken_);
  }

  const int64_t unit_;
  Tensor taken_;              // f32 [tokens of a unit, hidden]: the last at each place
  std::vector<float> known_;  // to those, of each token of the group
  // [lag][token]: to the token at the same place, that many units later
  std::vector<std::vector<float>> lags_;
};

class Novel final : public TokenRule {
 public:
  std::string_view name() const override { return "novel"; }
  std::unique_ptr<TokenJudge> begin(int64_t tokens_per_unit) const override {
    return std::make_unique<NovelJudge>(tokens_per_unit);
  }
};

}  // namespace

TokenPolicy novel_policy() {
  return token_share_policy(std::make_shared<Novel>(),
                            "what is least like all that went on at its place, taken one by one, "
                            "goes on");
}

}  // namespace kinora
