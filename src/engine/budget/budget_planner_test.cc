// The planner against an exhaustive search with a cost of its own, and what must hold for any
// numbers.
#include "engine/budget/budget_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

#include "support/random_data.h"

namespace kinora {
namespace {

constexpr int64_t unlimited = BudgetRequest::unlimited;

int64_t between(Random& random, int64_t low, int64_t high) {
  return low + random.below(high - low + 1);
}

InputShape random_input(Random& random) {
  InputShape input;
  input.to_read = random.below(4) != 0;
  input.moves = random.below(4) != 0;
  input.may_shrink = input.to_read && input.moves;
  input.frames = between(random, 1, 67);
  input.frames_per_unit = between(random, 1, 3);
  input.tokens_per_unit = between(random, 1, 129);
  input.trailing_tokens = random.below(2) * between(random, 0, 5);
  input.frame_pixels = between(random, 1, 1000);
  input.coded_pixels = between(random, 1, 1000);
  input.decoded_pictures = between(random, 1, 1000);
  input.indexed_pictures = between(random, 0, 1000);
  return input;
}

BudgetRequest random_request(Random& random) {
  BudgetRequest request;
  for (int64_t i = random.below(4); i > 0; --i) request.inputs.push_back(random_input(random));
  const int64_t text = between(random, 1, 300), of_frame = random.below(3);
  request.text_tokens = [text, of_frame](std::span<const int64_t> frames) {
    return text + of_frame * std::accumulate(frames.begin(), frames.end(), int64_t{0}) / 2;
  };
  if (random.below(2) == 0) {
    request.retention =
        parse_retention("key-norm:" + std::to_string(random.uniform(0.001, 1)).substr(0, 6));
  }
  if (random.below(2) == 0) {
    request.tokens = parse_tokens("evs:" + std::to_string(random.uniform(0.001, 1)).substr(0, 6));
  }
  request.tokens_before = random.below(2) * random.below(500);
  request.token_bytes = between(random, 1, 5000);
  request.row_bytes_before = request.tokens_before * request.token_bytes;
  request.weight_bytes = random.below(1'000'000);
  request.hidden_size = between(random, 1, 64);
  request.frames_per_group = between(random, 1, 17);
  request.max_group_tokens = between(random, 1, 2049);
  request.decode_threads = static_cast<int>(between(random, 1, 9));
  request.speed = {1, 1, 1, 1e6, 1e6};
  request.speed.shares_cores = random.below(2) == 0;
  return request;
}

// What a plan costs where nothing is left to a formula: groups and units are walked one by one.
struct SlowCost {
  int64_t context = 0, row_bytes = 0, bytes = 0;
};

SlowCost slow_cost(const BudgetRequest& request, const std::vector<int64_t>& frames, double share) {
  int64_t tokens = request.text_tokens(frames), rows = tokens, index = 0, most = 0;
  for (size_t i = 0; i < frames.size(); ++i) {
    const InputShape& input = request.inputs[i];
    const int64_t units = static_cast<int64_t>(
        std::ceil(static_cast<double>(frames[i]) / static_cast<double>(input.frames_per_unit)));
    int64_t group = 0;
    while (group < request.frames_per_group) group += input.frames_per_unit;
    const int64_t all = units * input.tokens_per_unit + input.trailing_tokens;
    if (input.to_read) {
      bool first = true;
      for (int64_t unit = 0, waiting = 0; unit < units; ++unit) {
        waiting += input.tokens_per_unit;
        if (unit + 1 < units && (unit + 1) % (group / input.frames_per_unit) != 0) continue;
        if (input.moves && request.tokens.prunes()) {
          const auto part =
              static_cast<int64_t>(std::round(request.tokens.ratio * static_cast<double>(waiting)));
          waiting = std::max(part, first ? input.tokens_per_unit : 1);
        }
        first = false;
        if (unit + 1 == units) waiting += input.trailing_tokens;
        tokens += waiting;
        const double kept = request.retention.prunes()
                                ? std::round(share * static_cast<double>(waiting))
                                : static_cast<double>(waiting);
        rows += std::max<int64_t>(1, static_cast<int64_t>(kept));
        waiting = 0;
      }
    }
    int64_t largest = group * input.tokens_per_unit;
    if (!request.retention.prunes()) {
      largest = std::max(largest,
                         std::min(request.max_group_tokens, all) + largest / input.frames_per_unit);
    }
    largest = std::min(largest, all) + 512;
    index += input.indexed_pictures * 128;
    most = std::max(most, request.decode_threads * 20 * (input.coded_pixels * 3 / 2) +
                              8 * group * input.frame_pixels * 3 +
                              largest * 9 * request.hidden_size * 4);
  }
  SlowCost cost;
  cost.context = request.tokens_before + tokens;
  cost.row_bytes = request.row_bytes_before + rows * request.token_bytes;
  cost.bytes = request.weight_bytes + cost.row_bytes + index + most + (int64_t{31} << 20);
  return cost;
}

bool context_fits(const BudgetRequest& request, const SlowCost& cost) {
  const int64_t most = request.max_tokens;
  return most == unlimited || cost.context + std::min<int64_t>(64, most / 4) <= most;
}

bool memory_fits(const BudgetRequest& request, const SlowCost& cost) {
  const int64_t answer = 64 * request.token_bytes;
  return (request.max_bytes == unlimited || cost.bytes + answer <= request.max_bytes) &&
         (request.max_row_bytes == unlimited || cost.row_bytes + answer <= request.max_row_bytes);
}

// The frames of each input with one more unit at a time: to the input that is furthest behind.
std::vector<std::vector<int64_t>> ladder(const BudgetRequest& request) {
  std::vector<int64_t> units, wanted;
  for (const InputShape& input : request.inputs) {
    wanted.push_back((input.frames + input.frames_per_unit - 1) / input.frames_per_unit);
    units.push_back(input.may_shrink ? 1 : wanted.back());
  }
  std::vector<std::vector<int64_t>> steps;
  while (true) {
    std::vector<int64_t> frames;
    size_t next = units.size();
    for (size_t i = 0; i < units.size(); ++i) {
      const InputShape& input = request.inputs[i];
      frames.push_back(std::min(input.frames, units[i] * input.frames_per_unit));
      if (units[i] == wanted[i]) continue;
      // (2 units + 1) / wanted, the next unit's middle
      if (next == units.size() ||
          (2 * units[i] + 1) * wanted[next] < (2 * units[next] + 1) * wanted[i]) {
        next = i;
      }
    }
    steps.push_back(frames);
    if (next == units.size()) return steps;
    ++units[next];
  }
}

struct Choice {
  bool fits = false;
  std::vector<int64_t> frames;
  double share = 1;
};

Choice search(const BudgetRequest& request) {
  std::vector<std::vector<int64_t>> steps = ladder(request);
  const double asked = request.retention.ratio;
  const auto in_memory = [&](const std::vector<int64_t>& frames, double share) {
    return memory_fits(request, slow_cost(request, frames, share));
  };
  const auto in_context = [&](const std::vector<int64_t>& frames) {
    return context_fits(request, slow_cost(request, frames, asked));
  };
  if (in_memory(steps.back(), asked) && in_context(steps.back())) {
    return {true, steps.back(), asked};
  }
  if (request.strict) return {};
  while (!steps.empty() && !in_context(steps.back())) steps.pop_back();
  if (steps.empty()) return {};
  if (in_memory(steps.back(), asked)) return {true, steps.back(), asked};
  double least = asked;
  const bool sees = std::any_of(request.inputs.begin(), request.inputs.end(),
                                [](const InputShape& input) { return input.to_read; });
  for (int step = 1000; step > 0 && request.retention.prunes() && sees; --step) {
    const double share = step / 1000.0;
    if (share >= asked || share < asked / 2) continue;
    if (in_memory(steps.back(), share)) return {true, steps.back(), share};
    least = share;
  }
  while (!steps.empty() && !in_memory(steps.back(), least)) steps.pop_back();
  if (steps.empty()) return {};
  return {true, steps.back(), least};
}

// Limits somewhere between far too little and more than enough.
void limit(Random& random, BudgetRequest& request) {
  const std::vector<std::vector<int64_t>> steps = ladder(request);
  const SlowCost most = slow_cost(request, steps.back(), request.retention.ratio);
  const SlowCost least = slow_cost(request, steps.front(), request.retention.ratio / 2);
  const auto some = [&](int64_t low, int64_t high) {
    return std::max<int64_t>(
        1, low + static_cast<int64_t>(random.uniform(-0.2, 1.2) * static_cast<double>(high - low)));
  };
  const int64_t answer = 64 * request.token_bytes;
  if (random.below(2) == 0) request.max_bytes = some(least.bytes + answer, most.bytes + answer);
  if (random.below(3) == 0) {
    request.max_row_bytes = some(least.row_bytes + answer, most.row_bytes + answer);
  }
  if (random.below(2) == 0) request.max_tokens = some(least.context + 60, most.context + 70);
}

TEST(BudgetPlanner, CostsWhatWalkingThroughTheGroupsCosts) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 500; ++round) {
    const BudgetRequest request = random_request(random);
    for (const std::vector<int64_t>& frames : ladder(request)) {
      const double share = request.retention.ratio * random.uniform(0.5, 1);
      const SlowCost expected = slow_cost(request, frames, share);
      const Cost cost = cost_of(request, frames, share);
      ASSERT_EQ(cost.context, expected.context) << round;
      ASSERT_EQ(cost.row_bytes, expected.row_bytes) << round;
      ASSERT_EQ(cost.bytes(), expected.bytes) << round;
    }
  }
}

TEST(BudgetPlanner, FindsWhatAnExhaustiveSearchFinds) {
  KINORA_FRESH_RANDOM(random);
  int refused = 0, fewer = 0, smaller = 0;
  for (int round = 0; round < 2000; ++round) {
    BudgetRequest request = random_request(random);
    request.strict = random.below(8) == 0;
    limit(random, request);
    const Choice expected = search(request);
    const BudgetPlan plan = plan_budget(request);
    ASSERT_EQ(plan.fits, expected.fits) << round;
    ASSERT_EQ(plan.frames.size(), request.inputs.size());
    if (!plan.fits) {
      ++refused;
      EXPECT_NE(plan.exceeded, Limit::none);
      continue;
    }
    ASSERT_EQ(plan.frames, expected.frames) << round;
    ASSERT_EQ(plan.share, expected.share) << round;
    bool all = true;
    for (size_t i = 0; i < plan.frames.size(); ++i) {
      all = all && plan.frames[i] == request.inputs[i].frames;
    }
    EXPECT_EQ(plan.frames_limit == Limit::none, all);
    EXPECT_EQ(plan.share_limit == Limit::none, plan.share == request.retention.ratio);
    EXPECT_LE(plan.cost.row_bytes + 64 * request.token_bytes, plan.row_room);
    fewer += !all;
    smaller += plan.share < request.retention.ratio;
  }
  // Every way out was taken.
  EXPECT_GT(refused, 20);
  EXPECT_GT(fewer, 100);
  EXPECT_GT(smaller, 100);
}

TEST(BudgetPlanner, MoreMemoryNeverGivesFewerFramesOrLessOfThem) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 200; ++round) {
    BudgetRequest request = random_request(random);
    limit(random, request);
    request.max_bytes = request.max_row_bytes = unlimited;
    const BudgetPlan free = plan_budget(request);
    if (!free.fits) continue;
    int64_t BudgetRequest::*const limited =
        random.below(2) == 0 ? &BudgetRequest::max_bytes : &BudgetRequest::max_row_bytes;
    const int64_t most = free.cost.bytes() + 65 * request.token_bytes;
    std::optional<BudgetPlan> before;
    for (int64_t step = 0; step <= 40; ++step) {
      request.*limited = most / 40 * step + step;
      const BudgetPlan plan = plan_budget(request);
      if (before && before->fits) {
        ASSERT_TRUE(plan.fits);
        ASSERT_GE(plan.share, before->share);
        for (size_t i = 0; i < plan.frames.size(); ++i) {
          ASSERT_GE(plan.frames[i], before->frames[i]);
        }
      }
      before = plan;
    }
    EXPECT_TRUE(before->fits);
    EXPECT_EQ(before->frames, free.frames);
    EXPECT_EQ(before->share, free.share);
  }
}

TEST(BudgetPlanner, MoreContextNeverGivesFewerFrames) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 200; ++round) {
    BudgetRequest request = random_request(random);
    const int64_t most = plan_budget(request).cost.context + 64;
    std::optional<BudgetPlan> before;
    for (request.max_tokens = 1; request.max_tokens <= most + 3;
         request.max_tokens += 1 + most / 50) {
      const BudgetPlan plan = plan_budget(request);
      if (before && before->fits) {
        ASSERT_TRUE(plan.fits);
        for (size_t i = 0; i < plan.frames.size(); ++i) {
          ASSERT_GE(plan.frames[i], before->frames[i]);
        }
      }
      before = plan;
    }
  }
}

TEST(BudgetPlanner, ARefusalNamesTheSmallestLimitThatWorks) {
  KINORA_FRESH_RANDOM(random);
  int bytes = 0, rows = 0, tokens = 0;
  for (int round = 0; round < 600; ++round) {
    BudgetRequest request = random_request(random);
    request.strict = random.below(3) == 0;
    int64_t BudgetRequest::*limited = &BudgetRequest::max_bytes;
    switch (random.below(3)) {
      case 0:
        limited = &BudgetRequest::max_row_bytes;
        break;
      case 1:
        limited = &BudgetRequest::max_tokens;
        break;
      default:
        break;
    }
    request.*limited = 0;
    const BudgetPlan refused = plan_budget(request);
    ASSERT_FALSE(refused.fits);
    request.*limited = refused.smallest_limit;
    EXPECT_TRUE(plan_budget(request).fits) << round;
    request.*limited = refused.smallest_limit - 1;
    const BudgetPlan again = plan_budget(request);
    EXPECT_FALSE(again.fits) << round;
    EXPECT_EQ(again.smallest_limit, refused.smallest_limit);
    bytes += refused.exceeded == Limit::bytes;
    rows += refused.exceeded == Limit::row_bytes;
    tokens += refused.exceeded == Limit::tokens;
  }
  EXPECT_GT(std::min({bytes, rows, tokens}), 0);
}

TEST(BudgetPlanner, UnitsAreSpreadInProportionAndNobodyLosesOne) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 200; ++round) {
    std::vector<InputShape> inputs;
    int64_t total = 0;
    for (int64_t i = between(random, 1, 5); i > 0; --i) {
      inputs.push_back(random_input(random));
      inputs.back().may_shrink = true;
      total += inputs.back().units(inputs.back().frames);
    }
    std::vector<int64_t> before(inputs.size(), 0);
    for (auto units = static_cast<int64_t>(inputs.size()); units <= total; ++units) {
      const std::vector<int64_t> frames = spread_units(inputs, units);
      int64_t given = 0;
      for (size_t i = 0; i < inputs.size(); ++i) {
        ASSERT_GE(frames[i], before[i]);
        ASSERT_LE(frames[i], inputs[i].frames);
        const int64_t own = inputs[i].units(frames[i]);
        given += own;
        // Half a unit around the fair part for two inputs, a little more for many; the unit that
        // everybody has comes on top.
        const double fair = static_cast<double>(units) / static_cast<double>(total) *
                            static_cast<double>(inputs[i].units(inputs[i].frames));
        ASSERT_NEAR(static_cast<double>(own), fair, static_cast<double>(inputs.size()));
      }
      ASSERT_EQ(given, units);
      before = frames;
    }
    for (size_t i = 0; i < inputs.size(); ++i) EXPECT_EQ(before[i], inputs[i].frames);
  }
}

TEST(BudgetPlanner, LimitsOfNothingAndGroupsOfEverything) {
  BudgetRequest request;
  request.text_tokens = [](std::span<const int64_t>) { return int64_t{7}; };
  EXPECT_EQ(plan_budget(request).cost.tokens, 7);  // no input at all
  EXPECT_TRUE(plan_budget(request).frames.empty());

  InputShape day;  // a day of every frame
  day.may_shrink = true;
  day.frames = 24 * 3600 * 30;
  day.frames_per_unit = 2;
  day.tokens_per_unit = 300;
  day.frame_pixels = 300 * 784;
  day.coded_pixels = 3840 * 2160;
  request.inputs = {day};
  request.token_bytes = 57344;
  request.hidden_size = 3584;
  request.frames_per_group = request.max_group_tokens = std::numeric_limits<int64_t>::max();
  EXPECT_GT(plan_budget(request).cost.bytes(), 0);
  request.frames_per_group = 16;
  request.max_group_tokens = 2048;
  request.max_bytes = int64_t{64} << 30;
  const BudgetPlan plan = plan_budget(request);
  ASSERT_TRUE(plan.fits);
  EXPECT_GT(plan.frames[0], 2);
  const std::vector<int64_t> more = {plan.frames[0] + 2};
  EXPECT_LE(plan.cost.bytes() + 64 * request.token_bytes, request.max_bytes);
  EXPECT_GT(cost_of(request, more, 1).bytes() + 64 * request.token_bytes, request.max_bytes);
}

TEST(BudgetPlanner, SecondsGrowWithTheWork) {
  BudgetRequest request;
  request.text_tokens = [](std::span<const int64_t>) { return int64_t{10}; };
  InputShape input;
  input.frames = 4;
  input.tokens_per_unit = 5;
  input.coded_pixels = 100;
  input.decoded_pictures = 30;
  request.inputs = {input};
  request.token_bytes = 1;
  request.row_bytes_before = 20;
  request.speed = {2, 3, 4, 10, 100, 0, true};
  // 30 tokens, 20 of them visual, over 20 + 30 / 2 rows; 3000 pixels
  const double computing = (30 * 2 + 30 * 35 * 3 + 20 * 4) / 10.0;
  EXPECT_DOUBLE_EQ(plan_budget(request).cost.seconds, computing + 30);
  request.speed.shares_cores = false;
  EXPECT_DOUBLE_EQ(plan_budget(request).cost.seconds, computing);
  request.speed.pixel_rate = 1;
  EXPECT_DOUBLE_EQ(plan_budget(request).cost.seconds, 3000);
}

}  // namespace
}  // namespace kinora
