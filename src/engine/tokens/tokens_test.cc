// Which visual tokens go on, against the definitions walked one token at a time in double
// precision.
#include "engine/tokens/tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "engine/tokens/policies.h"
#include "engine/tokens/slow_tokens.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using namespace testing;

VisualPlan plan_of(int64_t tokens_per_unit, int64_t units, int64_t trailing = 0,
                   int64_t frames_per_unit = 1) {
  VisualPlan plan;
  plan.tokens_per_unit = tokens_per_unit;
  plan.units = units;
  plan.trailing_tokens = trailing;
  plan.frames_per_unit = frames_per_unit;
  return plan;
}

std::vector<std::string> rules() {
  std::vector<std::string> names;
  for (const TokenPolicy& policy : token_policies()) {
    if (policy.info.name != "all") names.push_back(policy.info.name);
  }
  return names;
}

const ThreadPool pool(2);

// Contexts that a rule runs on.
std::vector<Context> contexts() {
  std::vector<Context> all{Context(pool)};
  for (size_t i = 0; i < cuda_devices().size(); ++i) {
    all.emplace_back(pool, Device::cuda(static_cast<int>(i)));
  }
  return all;
}

// What a pruner keeps of a video that comes in groups of so many units, as places in the whole.
std::vector<int64_t> kept_of(const Context& context, const TokenChoice& choice,
                             const SlowVideo& video, int64_t group, int64_t deep = 0) {
  const int64_t unit = video.tokens_per_unit, hidden = video.hidden;
  TokenPruner pruner(choice, plan_of(unit, video.units()), hidden);
  std::vector<int64_t> kept;
  for (int64_t first = 0; first < video.units(); first += group) {
    const int64_t units = std::min(group, video.units() - first);
    Tensor tokens(DType::f32, {units * unit, hidden + deep});
    for (int64_t row = 0; row < units * unit; ++row) {
      float* to = tokens.data<float>() + row * (hidden + deep);
      std::copy_n(video.values.begin() + (first * unit + row) * hidden, hidden, to);
      std::fill_n(to + hidden, deep, static_cast<float>(1e6 / static_cast<double>(row + 1)));
    }
    for (const int32_t place : pruner.choose(context, tokens.to(context.device), units)) {
      kept.push_back(first * unit + place);
    }
  }
  return kept;
}

TEST(Tokens, HowManyStayIsKnownBefore) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 300; ++round) {
    const int64_t unit = 1 + random.below(130), per_unit = 1 + random.below(3);
    const int64_t units = 1 + random.below(70), frames = 1 + random.below(20);
    const VisualPlan plan = plan_of(unit, units, random.below(3), per_unit);
    const std::string ratio = std::to_string(random.uniform(0.0001, 1)).substr(0, 6);
    const TokenChoice choice = parse_tokens("evs:" + ratio);
    int64_t group = 0;
    while (group * per_unit < frames) ++group;
    int64_t expected = plan.trailing_tokens;
    for (int64_t first = 0; first < units; first += group) {
      const int64_t tokens = std::min(group, units - first) * unit;
      const auto share =
          static_cast<int64_t>(std::round(std::stod(ratio) * static_cast<double>(tokens)));
      const int64_t kept = std::max(share, first == 0 ? unit : 1);
      EXPECT_EQ(kept_of_group(choice, unit, std::min(group, units - first), first == 0), kept);
      expected += kept;
    }
    EXPECT_EQ(kept_of_input(choice, plan, frames), expected);
    EXPECT_EQ(kept_of_input(parse_tokens("evs:1"), plan, frames), plan.tokens());
    EXPECT_EQ(kept_of_input({}, plan, frames), plan.tokens());
    VisualPlan picture = plan;
    picture.source.modality = Modality::image;
    EXPECT_EQ(kept_of_input(choice, picture, frames), plan.tokens());
  }
}

TEST(Tokens, EveryRuleKeepsItsCountAndTheFirstStepOrItsShare) {
  KINORA_FRESH_RANDOM(random);
  for (const Context& context : contexts()) {
    for (const std::string& rule : rules()) {
      SCOPED_TRACE(rule);
      for (int round = 0; round < 20; ++round) {
        const int64_t group = 1 + random.below(9);
        const SlowVideo video = SlowVideo::random(random, 1 + random.below(33),
                                                  1 + random.below(20), 1 + random.below(65));
        const TokenChoice choice{parse_tokens(rule + ":0.5").rule, random.uniform(0.01, 1)};
        const auto kept = kept_of(context, choice, video, group);
        EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end()));
        EXPECT_EQ(std::set(kept.begin(), kept.end()).size(), kept.size());
        EXPECT_EQ(std::ssize(kept),
                  kept_of_input(choice, plan_of(video.tokens_per_unit, video.units()), group));
        // Ratio 1 leaves nothing out.
        EXPECT_EQ(std::ssize(kept_of(context, {choice.rule, 1}, video, group)),
                  video.units() * video.tokens_per_unit);
      }
    }
  }
}

TEST(Tokens, EvsKeepsWhatChangesMost) {
  KINORA_FRESH_RANDOM(random);
  for (const Context& context : contexts()) {
    for (int round = 0; round < 40; ++round) {
      const int64_t group = 1 + random.below(9);
      const SlowVideo video = SlowVideo::random(random, 1 + random.below(33), 1 + random.below(20),
                                                1 + random.below(65));
      const TokenChoice choice{parse_tokens("evs:0.5").rule, random.uniform(0.01, 1)};
      // What stands beside the embedding (DeepStack) does not count.
      const auto kept = kept_of(context, choice, video, group, random.below(2) * 3);
      EXPECT_LE(slow_mistake(video, group, slow_changes(video), kept), 1e-6);
    }
  }
}

TEST(Tokens, NovelKeepsWhatIsLeastLikeAllThatWasTaken) {
  KINORA_FRESH_RANDOM(random);
  for (const Context& context : contexts()) {
    int compared = 0;
    for (int round = 0; round < 30; ++round) {
      const int64_t group = 1 + random.below(6);
      const SlowVideo video = SlowVideo::random(random, 1 + random.below(14), 1 + random.below(7),
                                                2 + random.below(63));
      const TokenChoice choice{parse_tokens("novel:0.5").rule, random.uniform(0.01, 1)};
      double closest = 0;
      const std::vector<int64_t> expected = slow_novel(video, group, choice.ratio, closest);
      if (closest < 1e-5) continue;  // rounding may decide
      EXPECT_EQ(kept_of(context, choice, video, group, random.below(2) * 3), expected);
      ++compared;
    }
    EXPECT_GE(compared, 10);
  }
}

TEST(Tokens, NovelTakesWhatComesBackOnce) {
  // One place: a, b, a, b, c, a; then, in the next group, a, a, b.
  SlowVideo video{1, 2, {}};
  for (const float angle : {0.0f, 1.0f, 0.0f, 1.0f, 2.5f, 0.0f, 0.0f, 0.0f, 1.0f}) {
    video.values.push_back(std::cos(angle));
    video.values.push_back(std::sin(angle));
  }
  EXPECT_EQ(kept_of(Context(pool), parse_tokens("novel:0.5"), video, 6),
            (std::vector<int64_t>{0, 1, 4, 6, 8}));
}

TEST(Tokens, EvsKeepsTheFirstStepAndThenTheOnlyThingThatMoves) {
  // Nothing moves but place 2, from unit 3 on.
  SlowVideo video{4, 2, {}};
  for (int unit = 0; unit < 6; ++unit) {
    for (int place = 0; place < 4; ++place) {
      const float angle = place == 2 && unit >= 3 ? 0.3f * static_cast<float>(unit) : 0.0f;
      video.values.push_back(std::cos(angle));
      video.values.push_back(std::sin(angle));
    }
  }
  EXPECT_EQ(kept_of(Context(pool), parse_tokens("evs:0.2917"), video, 6),
            (std::vector<int64_t>{0, 1, 2, 3, 14, 18, 22}));
  // Ties: the earlier ones.
  EXPECT_EQ(kept_of(Context(pool), parse_tokens("evs:0.01"), video, 2),
            (std::vector<int64_t>{0, 1, 2, 3, 14, 18}));
}

TEST(Tokens, PicturesAndWhatTrailsAVideoAreLeftWhole) {
  const ThreadPool one(1);
  const Context context(one);
  VisualPlan picture = plan_of(7, 1);
  picture.source.modality = Modality::image;
  const Tensor tokens = Tensor::zeros(DType::f32, {7, 3});
  TokenPruner whole(parse_tokens("evs:0.1"), picture, 3);
  EXPECT_EQ(whole.choose(context, tokens, 1).size(), 7u);
  TokenPruner video(parse_tokens("evs:0.1"), plan_of(3, 2, 1), 3);
  EXPECT_EQ(video.choose(context, tokens, 2), (std::vector<int32_t>{0, 1, 2, 6}));
  TokenPruner closing(parse_tokens("evs:0.1"), plan_of(3, 2, 1), 3);
  EXPECT_EQ(closing.choose(context, tokens.view().rows(0, 1), 0), std::vector<int32_t>{0});
}

TEST(Tokens, AScoreThatIsNoNumberIsTheLowest) {
  SlowVideo video{2, 1, {1, 1, 1, 1, -1, 1}};
  video.values[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(kept_of(Context(pool), parse_tokens("evs:0.5"), video, 3),
            (std::vector<int64_t>{0, 1, 4}));
}

TEST(Tokens, ControlsAreWhatTheySay) {
  KINORA_FRESH_RANDOM(random);
  const SlowVideo video = SlowVideo::random(random, 64, 8, 3);
  const TokenChoice quarter = parse_tokens("frames:0.25");
  // Every fourth step, whole.
  std::vector<int64_t> expected;
  for (int64_t i = 0; i < 64 * 8; ++i) {
    if (i / 8 % 4 == 0) expected.push_back(i);
  }
  EXPECT_EQ(kept_of(Context(pool), quarter, video, 8), expected);
  EXPECT_EQ(kept_of(Context(pool), quarter, video, 64), expected);
  // Chance does not look at the tokens, is the same in every run and spreads evenly.
  const auto drawn = kept_of(Context(pool), parse_tokens("random:0.25"), video, 8);
  EXPECT_EQ(drawn, kept_of(Context(pool), parse_tokens("random:0.25"),
                           SlowVideo::random(random, 64, 8, 3), 8));
  for (int64_t place = 0; place < 8; ++place) {
    const auto there = std::count_if(drawn.begin(), drawn.end(),
                                     [&](int64_t token) { return token % 8 == place; });
    EXPECT_GE(there, 4) << place;
    EXPECT_LE(there, 32) << place;
  }
}

TEST(Tokens, ReadAndWritten) {
  EXPECT_FALSE(parse_tokens("all").prunes());
  EXPECT_FALSE(parse_tokens("all:1").prunes());
  EXPECT_EQ(to_string(TokenChoice{}), "all");
  for (const std::string& rule : rules()) {
    EXPECT_EQ(parse_tokens(rule + ":0.25").ratio, 0.25);
    EXPECT_EQ(to_string(parse_tokens(rule + ":ratio=0.25")), rule + ":0.25");
  }
  const auto refused = [](const std::string& text) -> std::string {
    try {
      parse_tokens(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_NE(refused("evs").find("ratio is missing"), std::string::npos);
  EXPECT_NE(refused("evs:0").find("above 0 and at most 1"), std::string::npos);
  EXPECT_NE(refused("evs:1.5").find("above 0 and at most 1"), std::string::npos);
  EXPECT_NE(refused("evs:nan").find("above 0 and at most 1"), std::string::npos);
  EXPECT_NE(refused("esv:0.5").find("did you mean evs?"), std::string::npos);
  EXPECT_NE(refused("all:0.5").find("ratio"), std::string::npos);
  EXPECT_NE(refused("evs:0.5,step=2").find("step"), std::string::npos);
  EXPECT_NE(refused("").find("no policy has this name"), std::string::npos);
}

}  // namespace
}  // namespace kinora
