// A pattern of a few lines, as a new one would be described: everything else follows from it.
#include "attention/policies/pattern_policy.h"

#include <gtest/gtest.h>

#include "attention/test_support.h"
#include "base/error.h"

namespace kinora {
namespace {

struct Stripes {
  int32_t near_by = 64;
  int32_t step = 0;  // 0: the tokens of a frame
  bool first = true;
};

LinePattern<Stripes> stripes() {
  PatternSizes<Stripes> sizes({});
  sizes.count("near-by", &Stripes::near_by, SizeChange::grows, "nearest tokens");
  sizes.settings()
      .count_or("step", &Stripes::step, {1}, {"frame", 0}, "from column to column")
      .flag("first", &Stripes::first, "the first token too");
  sizes.store({.key = "step"}, &Stripes::step)
      .store({.key = "first", .flag = true}, &Stripes::first);
  return {.name = "stripes",
          .summary = "nearest tokens and every Nth column",
          .sizes = sizes,
          .resolve =
              [](const Stripes& pattern, const Region&, const Probe&) {
                LineIndex index;
                index.local = pattern.near_by;
                index.sink = pattern.first ? 1 : 0;
                index.stride = pattern.step;
                index.vertical = {0};
                return index;
              },
          .text = [](const Stripes& pattern) { return std::to_string(pattern.step); },
          .problem = [](const Stripes& pattern) -> std::string {
            return pattern.step > 1000 ? "a step that is too large" : "";
          },
          .follow_frames =
              [](Stripes& pattern, int32_t frame_stride) {
                if (pattern.step == 0) pattern.step = frame_stride;
              },
          .shapes = [](const Stripes& pattern) -> std::vector<Stripes> {
            return {pattern, {32, pattern.step, false}};
          },
          .candidates = [](int32_t frame_stride) -> std::vector<Stripes> {
            return {{128, frame_stride, true}, {256, 7, false}};
          }};
}

TEST(PatternPolicy, SizesHaveOneMeaningEverywhere) {
  const auto kind = pattern_kind(stripes());
  ASSERT_EQ(kind->sizes.size(), 3u);
  EXPECT_EQ(kind->sizes[0].key, "near_by");  // as tables have it
  EXPECT_TRUE(kind->sizes[2].flag);
  const auto read = [&](std::string_view text) {
    return make_pattern(*kind, kind->read(split_policy(text).settings, 50));
  };
  EXPECT_EQ(read("stripes").sizes, (SizeValues{64, 50, 1}));
  EXPECT_EQ(read("stripes:near-by=3,step=9,first=0").sizes, (SizeValues{3, 9, 0}));
  EXPECT_THROW(read("stripes:step=1001"), Error);
  EXPECT_THROW(read("stripes:step=0"), Error);
  EXPECT_EQ(to_string(read("stripes")), "stripes 50");
  EXPECT_EQ(kind->candidates(50), (std::vector<SizeValues>{{128, 50, 1}, {256, 7, 0}}));
  EXPECT_EQ(resolve(read("stripes:step=9"), {}, {}).stride, 9);
  EXPECT_EQ(scaled(read("stripes"), nominal_length / 4).sizes, (SizeValues{16, 50, 1}));
}

TEST(PatternPolicy, GrowsWhatCanGrow) {
  const auto kind = pattern_kind(stripes());
  PatternSpec spec = make_pattern(*kind, {100, 50, 1});
  EXPECT_TRUE(resize(spec, 2));
  EXPECT_EQ(spec.sizes, (SizeValues{200, 50, 1}));
  EXPECT_TRUE(resize(spec, 0.01));  // a quarter at most
  EXPECT_EQ(spec.sizes, (SizeValues{50, 50, 1}));
  EXPECT_EQ(at_one_cost(spec).sizes, (SizeValues{4096, 50, 1}));
  spec.sizes[0] = 0;
  EXPECT_EQ(at_one_cost(spec), spec);
  EXPECT_FALSE(resize(spec, 0.5));
  EXPECT_FALSE(resize(spec, 1.5));
  const auto shapes = shapes_of(spec);
  ASSERT_EQ(shapes.size(), 2u);
  EXPECT_EQ(shapes[0], spec);
  EXPECT_EQ(shapes[1].sizes, (SizeValues{4096, 50, 0}));
  spec.sizes[0] = 3;
  EXPECT_TRUE(resize(spec, 0.01));
  EXPECT_EQ(spec.sizes[0], 1);
  EXPECT_FALSE(resize(spec, 0.01));
  PatternSpec dense;
  EXPECT_FALSE(resize(dense, 2));
  EXPECT_EQ(shapes_of(dense), std::vector{dense});
}

TEST(PatternPolicy, AttendsAsItsIndexSays) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  const testing::Problem problem =
      testing::make_problem(random, {.queries = 300, .heads = 2, .head_size = 16});
  const AttentionPolicy policy = pattern_policy(stripes());
  std::vector<std::string> keys;
  for (const SettingInfo& setting : policy.info.settings) keys.push_back(setting.key);
  EXPECT_EQ(keys, (std::vector<std::string>{"near-by", "step", "first", "boundary", "last", "least",
                                            "dense-layers"}));
  AttentionOptions options;
  options.frame_stride = 20;
  const auto attention =
      policy.make(split_policy("stripes:near-by=2500,first=0,last=0").settings, options);
  EXPECT_EQ(attention->name(), "stripes");
  const auto plans =
      attention->planner()->plans(context, 0, problem.queries(), problem.memory(), 1.0f);
  ASSERT_EQ(plans.size(), 1u);
  EXPECT_EQ(plans[0].label, "stripes");
  validate(plans[0].plan, problem.queries(), problem.memory());
  const auto mask = expand(plans[0].plan, problem.queries(), problem.memory(), 1);
  const int64_t near = 2500 * 300 / nominal_length;
  for (int64_t q = 0; q < 300; ++q) {
    for (int64_t row = 0; row <= q; ++row) {
      if (row % 20 == 0 || q - row < near) {
        EXPECT_TRUE(mask[static_cast<size_t>(q * 300 + row)]) << q << " " << row;
      }
    }
  }
  EXPECT_FALSE(mask[static_cast<size_t>(299 * 300 + 1)]);
}

}  // namespace
}  // namespace kinora
