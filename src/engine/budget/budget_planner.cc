#include "engine/budget/budget_planner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/visual_plan.h"

namespace kinora {
namespace {

constexpr int64_t unlimited = BudgetRequest::unlimited;

// Of a picture in the index of its file and in FFmpeg's tables.
constexpr int64_t picture_bytes = 128;

// The program itself, its libraries and what they set up.
constexpr int64_t program_bytes = int64_t{31} << 20;

// Reference pictures and those under way, of one decoding thread.
constexpr int64_t decoder_pictures = 20;

// Groups of frames that wait in queues or are being made.
constexpr int64_t groups_under_way = 8;

// A group that is meant to hold everything does not make the sums overflow.
constexpr int64_t most_group_frames = int64_t{1} << 20;

// A pruner that the person chose may be made this much stricter before frames are given up.
constexpr double least_of_share = 0.5;
constexpr int64_t share_steps = 1000;  // three digits are easy to read

int64_t answer_bytes(const BudgetRequest& request) { return answer_tokens * request.token_bytes; }

int64_t room_for_context(int64_t max_tokens) {
  return max_tokens - std::min(answer_tokens, max_tokens / 4);
}

int64_t group_frames(const BudgetRequest& request, const InputShape& input) {
  return whole_units(std::min(request.frames_per_group, most_group_frames), input.frames_per_unit);
}

// Tokens of an input that reach the decoder, and the rows that they leave in memory.
struct Kept {
  int64_t tokens = 0;
  int64_t rows = 0;
};

Kept kept_of(const BudgetRequest& request, const InputShape& input, int64_t frames,
             const Retention& retention) {
  const TokenChoice choice = input.moves ? request.tokens : TokenChoice{};
  const int64_t group = group_frames(request, input) / input.frames_per_unit;
  const int64_t units = input.units(frames);
  const int64_t before = (units - 1) / group;  // groups before the last
  Kept kept;
  const auto add = [&](int64_t groups, int64_t of_units, bool first, int64_t trailing) {
    const int64_t tokens = kept_of_group(choice, input.tokens_per_unit, of_units, first) + trailing;
    kept.tokens += groups * tokens;
    kept.rows += groups * kept_count(retention, tokens);
  };
  if (before > 0) {
    add(1, group, true, 0);
    add(before - 1, group, false, 0);
  }
  add(1, units - before * group, before == 0, input.trailing_tokens);
  return kept;
}

// The tokens of the largest prefill group.
int64_t group_tokens(const BudgetRequest& request, const InputShape& input, int64_t frames) {
  const int64_t group = group_frames(request, input);
  const int64_t all = input.tokens(frames);
  int64_t tokens = group * input.tokens_per_unit;
  if (!request.retention.prunes()) {  // then groups of frames are joined
    const int64_t before = std::min(request.max_group_tokens, all);
    tokens = std::max(tokens, before + tokens / input.frames_per_unit);
  }
  return std::min(tokens, all) + 512;
}

void add_working_bytes(const BudgetRequest& request, std::span<const int64_t> frames, Cost& cost) {
  cost.program_bytes = program_bytes;
  int64_t most = 0;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    const InputShape& input = request.inputs[i];
    const int64_t group = group_frames(request, input);
    const int64_t decoders =
        request.decode_threads * decoder_pictures * (input.coded_pixels * 3 / 2);
    const int64_t in_flight = groups_under_way * group * input.frame_pixels * 3;
    // Deep rows are held as they come and, for a moment, joined.
    const int64_t widths = 9 + 2 * request.deep_levels;
    const int64_t activations =
        group_tokens(request, input, frames[i]) * widths * request.hidden_size * 4;
    cost.index_bytes += input.indexed_pictures * picture_bytes;
    if (decoders + in_flight + activations <= most) continue;
    most = decoders + in_flight + activations;
    cost.decoder_bytes = decoders;
    cost.frame_bytes = in_flight;
    cost.activation_bytes = activations;
  }
  cost.activation_bytes +=
      cost.row_bytes / std::max<int64_t>(1, request.token_bytes) * request.widened_bytes;
}

// The first limit that a cost is over.
Limit exceeded_by(const BudgetRequest& request, const Cost& cost) {
  const int64_t answer = answer_bytes(request);
  if (cost.bytes() > request.max_bytes - answer) return Limit::bytes;
  if (cost.row_bytes > request.max_row_bytes - answer) return Limit::row_bytes;
  if (cost.context > room_for_context(request.max_tokens)) return Limit::tokens;
  return Limit::none;
}

// The smallest value of the limit that this cost keeps within.
int64_t smallest(const BudgetRequest& request, const Cost& cost, Limit limit) {
  switch (limit) {
    case Limit::bytes:
      return cost.bytes() + answer_bytes(request);
    case Limit::row_bytes:
      return cost.row_bytes + answer_bytes(request);
    case Limit::tokens: {
      int64_t tokens = cost.context;
      while (room_for_context(tokens) < cost.context) ++tokens;
      return tokens;
    }
    case Limit::none:
      break;
  }
  return 0;
}

// The inputs in the order in which they get their second and later units: unit k of an input that
// wants w stands at (k − ½) / w. Whoever gets one more unit takes none from the others.
std::vector<size_t> order_of_units(std::span<const InputShape> inputs) {
  struct Unit {
    int64_t place;  // 2 k − 1
    int64_t wanted;
    size_t input;
  };
  std::vector<Unit> units;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int64_t wanted = inputs[i].units(inputs[i].frames);
    for (int64_t unit = 2; inputs[i].may_shrink && unit <= wanted; ++unit) {
      units.push_back({2 * unit - 1, wanted, i});
    }
  }
  std::stable_sort(units.begin(), units.end(), [](const Unit& a, const Unit& b) {
    return a.place * b.wanted < b.place * a.wanted;
  });
  std::vector<size_t> order;
  order.reserve(units.size());
  for (const Unit& unit : units) order.push_back(unit.input);
  return order;
}

// With one unit of each input that may shrink, and the first `more` units in this order.
std::vector<int64_t> spread(std::span<const InputShape> inputs, std::span<const size_t> order,
                            int64_t more) {
  std::vector<int64_t> frames;
  for (const InputShape& input : inputs) {
    frames.push_back(input.may_shrink ? std::min(input.frames, input.frames_per_unit)
                                      : input.frames);
  }
  for (const size_t i : order.first(static_cast<size_t>(more))) {
    frames[i] = std::min(inputs[i].frames, frames[i] + inputs[i].frames_per_unit);
  }
  return frames;
}

// The largest number in [0, most] that `fits`, which is true up to some number; −1 if none does.
template <typename Fits>
int64_t largest(int64_t most, const Fits& fits) {
  int64_t good = -1, bad = most + 1;
  while (bad - good > 1) {
    const int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

class Planner {
 public:
  explicit Planner(const BudgetRequest& request) : request_(request) {}

  BudgetPlan plan() {
    BudgetPlan plan;
    for (const InputShape& input : request_.inputs) plan.frames.push_back(input.frames);
    plan.share = request_.retention.ratio;
    plan.wanted = plan.cost = cost_of(request_, plan.frames, plan.share);
    Limit over = exceeded_by(request_, plan.wanted);
    if (over == Limit::none) return finish(plan);
    if (request_.strict) return refuse(plan, over);

    order_ = order_of_units(request_.inputs);
    const auto all = static_cast<int64_t>(order_.size());
    units_ = largest(all, [&](int64_t units) {
      return cost(units, plan.share).context <= room_for_context(request_.max_tokens);
    });
    if (units_ < 0) return refuse(choose(plan, 0), Limit::tokens);
    if (units_ < all) plan.frames_limit = Limit::tokens;
    over = exceeded_by(request_, cost(units_, plan.share));
    if (over != Limit::none) lower_share(plan, over);
    over = exceeded_by(request_, cost(units_, plan.share));
    if (over == Limit::none) return finish(choose(plan, units_));

    plan.frames_limit = over;
    units_ = largest(units_, [&](int64_t units) {
      return exceeded_by(request_, cost(units, plan.share)) == Limit::none;
    });
    if (units_ >= 0) return finish(choose(plan, units_));
    over = exceeded_by(request_, cost(0, plan.share));
    return refuse(choose(plan, 0), over);
  }

 private:
  Cost cost(int64_t units, double share) const {
    return cost_of(request_, spread(request_.inputs, order_, units), share);
  }

  BudgetPlan& choose(BudgetPlan& plan, int64_t units) const {
    plan.frames = spread(request_.inputs, order_, units);
    plan.cost = cost_of(request_, plan.frames, plan.share);
    return plan;
  }

  // As large as it fits, else the least.
  void lower_share(BudgetPlan& plan, Limit over) const {
    const bool sees = std::any_of(request_.inputs.begin(), request_.inputs.end(),
                                  [](const InputShape& input) { return input.to_read; });
    if (!request_.retention.prunes() || !sees) return;
    const double asked = request_.retention.ratio;
    const auto least = static_cast<int64_t>(std::ceil(asked * least_of_share * share_steps));
    auto most = static_cast<int64_t>(std::floor(asked * share_steps));
    const auto share_at = [&](int64_t step) {
      return static_cast<double>(least + step) / share_steps;
    };
    while (most >= least && share_at(most - least) >= asked) --most;
    if (most < least) return;
    const int64_t best = largest(most - least, [&](int64_t step) {
      return exceeded_by(request_, cost(units_, share_at(step))) == Limit::none;
    });
    plan.share = share_at(std::max<int64_t>(0, best));
    plan.share_limit = over;
  }

  BudgetPlan finish(BudgetPlan& plan) const {
    plan.row_room = request_.max_row_bytes;
    if (request_.max_bytes != unlimited) {
      const int64_t own = request_.max_bytes - plan.cost.weight_bytes - plan.cost.working_bytes();
      plan.row_room = std::clamp<int64_t>(own, 0, request_.max_row_bytes);
    }
    return std::move(plan);
  }

  BudgetPlan refuse(BudgetPlan& plan, Limit over) const {
    plan.fits = false;
    plan.exceeded = over;
    plan.smallest_limit = smallest(request_, plan.cost, over);
    return finish(plan);
  }

  const BudgetRequest& request_;
  std::vector<size_t> order_;
  int64_t units_ = 0;  // beyond one of each input that may shrink
};

}  // namespace

std::vector<int64_t> spread_units(std::span<const InputShape> inputs, int64_t units) {
  const auto shrinking = std::count_if(inputs.begin(), inputs.end(),
                                       [](const InputShape& input) { return input.may_shrink; });
  const std::vector<size_t> order = order_of_units(inputs);
  const auto most = static_cast<int64_t>(order.size());
  return spread(inputs, order, std::clamp<int64_t>(units - shrinking, 0, most));
}

Cost cost_of(const BudgetRequest& request, std::span<const int64_t> frames, double share) {
  Retention retention = request.retention;
  retention.ratio = share;
  const int64_t text = request.text_tokens(frames);
  int64_t rows = text, seen = 0;
  double pixels = 0;
  Cost cost;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    const InputShape& input = request.inputs[i];
    if (!input.to_read) continue;
    cost.frames += frames[i];
    const Kept kept = kept_of(request, input, frames[i], retention);
    cost.visual_tokens += kept.tokens;
    rows += kept.rows;
    seen += input.tokens(frames[i]);
    const int64_t pictures = frames[i] > 1 ? input.decoded_pictures : 1;
    pixels += static_cast<double>(pictures) * static_cast<double>(input.coded_pixels);
  }
  cost.tokens = text + cost.visual_tokens;
  cost.context = request.tokens_before + cost.tokens;
  cost.row_bytes = request.row_bytes_before + rows * request.token_bytes;
  cost.weight_bytes = request.weight_bytes;
  add_working_bytes(request, frames, cost);
  const int64_t rows_before = request.row_bytes_before / std::max<int64_t>(1, request.token_bytes);
  cost.stages = expected_stages(
      request.speed, {cost.tokens, seen,
                      static_cast<double>(rows_before) + static_cast<double>(rows) / 2, pixels});
  cost.seconds = expected_seconds(request.speed, cost.stages);
  return cost;
}

BudgetPlan plan_budget(const BudgetRequest& request) { return Planner(request).plan(); }

}  // namespace kinora
